"""Real sockets: a push slower than any time limit on whole ones, a proxy with a body limit."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.errors import ConfigError
from pydownpour.testing import FaultProxy, Faults
from tests.e2e.stage import Stage, ones
from tests.e2e.stranger import dismiss

MIB = limits.MIB


def counting_job(length: int, pushes: int) -> dp.Job:
    job = dp.Job(
        parameters={"w": np.zeros(length, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(local_rate=0.0, fetch_every=100),
        data=dp.Work(pushes, unit=1),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            await replica.step(ones(job, -1.0))

    return job


async def test_a_push_that_takes_longer_than_the_time_limit_is_sent_once(
    tmp_path: Path,
) -> None:
    brief = limits.Limits(ack_timeout_s=1.0, ack_every_s=0.2)

    def before(target: str) -> FaultProxy:
        # The proxy takes all of it at once, so that only the shard's words tell of progress.
        return FaultProxy(target, to_target=Faults(bytes_per_s=200_000, slice_max=16_384))

    job = counting_job(length=MIB // 8, pushes=1)  # two fragments
    async with Stage(job, tmp_path / "run", shards=1, before_shards=before, limits=brief) as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 1.0)
    (replica,), pushes = stage.report["replicas"], stage.report["pushes"]
    assert (replica["reconnects"], pushes["sent"], pushes["duplicate"]) == (0, 1, 0)


class BodyLimit:
    """A reverse proxy that passes no Upgrade on, and no body above a limit."""

    def __init__(self, target: str, size_max: int) -> None:
        self.host, port = target.split(":")
        self.port, self.size_max = int(port), size_max
        self.refused: list[int] = []
        self.passed: list[int] = []

    async def __aenter__(self) -> BodyLimit:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            size = int(found[1]) if found else 0
            if size > self.size_max:
                self.refused.append(size)
                words = b"<html>413 Request Entity Too Large</html>"
                writer.write(
                    b"HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(words), words)
                )
                while await reader.read(65536):  # lingers, or the client would see a reset
                    pass
            else:
                self.passed.append(size)
                await self._pass(head, size, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _pass(self, head: bytes, size: int, reader: Any, writer: Any) -> None:
        head = re.sub(rb"(?i)\r\n(upgrade|connection): [^\r]*", b"", head)
        behind, before = await asyncio.open_connection(self.host, self.port)
        before.write(head[:-2] + b"Connection: close\r\n\r\n" + await reader.readexactly(size))
        while data := await behind.read(65536):
            writer.write(data)
            await writer.drain()
        before.close()


def behind(size_max: int, made: list[BodyLimit]) -> Any:
    def before(target: str) -> BodyLimit:
        made.append(BodyLimit(target, size_max))
        return made[-1]

    return before


async def test_a_proxy_with_a_limit_on_bodies_gets_smaller_ones_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxies: list[BodyLimit] = []
    job = counting_job(length=MIB, pushes=2)  # 16 fragments
    async with Stage(job, tmp_path / "run", shards=1, before_shards=behind(MIB, proxies)) as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 2.0)
    (replica,), pushes = stage.report["replicas"], stage.report["pushes"]
    assert replica["fallback"]
    assert (pushes["applied"], pushes["duplicate"], pushes["refused"]) == (2, 0, 0)
    (proxy,) = proxies
    (too_large,) = proxy.refused
    assert too_large > MIB >= max(proxy.passed) > MIB // 2
    named = [r.getMessage() for r in caplog.records if "413" in r.getMessage()]
    assert len(named) == 1
    assert f"a body of {too_large} bytes was too large, sending at most 2 records" in named[0]


async def test_a_limit_below_one_fragment_ends_the_replica_in_words(tmp_path: Path) -> None:
    job = counting_job(length=MIB // 8, pushes=1)
    before = behind(100_000, [])
    async with Stage(job, tmp_path / "run", shards=1, before_shards=before) as stage:
        with pytest.raises(ConfigError, match=r"HTTP 413.*client_max_body_size"):
            await stage.replica()
        await dismiss(stage.url)
