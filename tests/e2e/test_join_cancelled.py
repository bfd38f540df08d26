"""A join that is given up leaves nothing open, whenever that happens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.testing import FaultProxy, Faults
from tests.e2e.stage import Stage


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[aiohttp.ClientSession]:
    """Every client session that is made; those left open are what aiohttp complains of."""
    made: list[aiohttp.ClientSession] = []
    init = aiohttp.ClientSession.__init__

    def noting(self: aiohttp.ClientSession, *arguments: Any, **settings: Any) -> None:
        made.append(self)
        init(self, *arguments, **settings)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", noting)
    return made


@pytest.fixture
def silent() -> Iterator[str]:
    """A URL where somebody listens and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def until_made(sessions: list[aiohttp.ClientSession], count: int) -> None:
    async with asyncio.timeout(60):
        while len(sessions) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("times", [1, 5])
async def test_while_nobody_answers(
    silent: str, sessions: list[aiohttp.ClientSession], times: int
) -> None:
    joining = asyncio.create_task(dp.join(silent).__aenter__())
    await until_made(sessions, 1)
    for _ in range(times):
        joining.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert [session.closed for session in sessions] == [True]


async def test_by_a_timeout(silent: str, sessions: list[aiohttp.ClientSession]) -> None:
    async def join() -> None:
        async with asyncio.timeout(0.1), dp.join(silent):
            pass

    with pytest.raises(TimeoutError):
        await join()
    assert all(session.closed for session in sessions)


@pytest.mark.parametrize("times", [1, 5])
async def test_while_shards_do_not_answer(
    tmp_path: Path, sessions: list[aiohttp.ClientSession], times: int
) -> None:
    """The replica has joined, and waits for its first parameters."""
    job = dp.Job(parameters={"w": np.zeros(40, np.float32)}, optimizer=dp.SGD(lr=1.0))
    slow: list[FaultProxy] = []

    def before(address: str) -> FaultProxy:
        slow.append(FaultProxy(address, Faults(latency_s=0.2)))
        return slow[-1]

    async with Stage(job, tmp_path / "run", shards=2, before_shards=before) as stage:
        async with asyncio.timeout(60):
            while not all(shard.state == "ready" for shard in (await stage.status()).shards):
                await asyncio.sleep(0.01)
        first = len(sessions)
        joining = asyncio.create_task(dp.join(stage.url).__aenter__())
        await until_made(sessions, first + 3)  # the coordinator's, and one a shard
        for _ in range(times):
            joining.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert [session.closed for session in sessions[first : first + 3]] == [True, True, True]


class Enough(BaseException):
    """What Ctrl-C would raise."""


def test_from_a_blocking_join(silent: str, sessions: list[aiohttp.ClientSession]) -> None:
    """Its caller's thread is torn away; the session's loop goes on asking until it is told."""
    brief = limits.Limits(request_timeout_s=0.05)

    def stop(number: int, frame: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Enough), dp.join(silent, limits=brief):
            pass
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert sessions
    assert all(session.closed for session in sessions)
