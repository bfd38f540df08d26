"""On real sockets: a shard acknowledges nothing before its journal says that it is durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import _core, limits
from pydownpour.shard.gate import AckGate
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, Kind
from pydownpour.wire.messages import LEVELS
from tests.e2e.stage import Stage
from tests.e2e.stranger import RawStream, Stranger, dismiss

LENGTH = 16
ONES = np.ones(LENGTH, np.float32)


@pytest.fixture
async def gate() -> AckGate:
    """Of a journal that is durable when the test says so."""
    return AckGate("logged", _core.Journal(size_max=1 << 20))


@pytest.fixture
async def stranger(gate: AckGate, tmp_path: Path) -> AsyncIterator[Stranger]:
    """A peer of a job whose one shard has that journal."""
    quick = limits.Limits(heartbeat_s=0.05)
    job = dp.Job(parameters={"w": np.zeros(LENGTH, np.float32)}, optimizer=dp.SGD(lr=1.0))
    async with Stage(job, tmp_path / "run", shards=1, gate=gate, limits=quick) as stage:
        yield await Stranger.join(stage.url)
        gate.passed(1 << 40)
        await dismiss(stage.url)


async def answers(stream: RawStream) -> list[int]:
    """Kinds of what was answered before a PING was, which no gate holds."""
    known = len(await stream.frames(0))
    stream.write(frames.simple(Kind.PING, seq=9))
    while Kind.PONG not in [f.kind for f in (await stream.frames(0))[known:]]:
        await asyncio.sleep(0)
    return [f.kind for f in (await stream.frames(0))[:-1] if f.kind not in (Kind.PONG, Kind.VIEW)]


async def test_an_acknowledgement_waits_for_its_lsn(stranger: Stranger, gate: AckGate) -> None:
    async with stranger.stream() as stream:
        stream.write(stranger.push(ONES, number=1) + stranger.push(ONES, number=2))
        assert await answers(stream) == []
        assert (await stranger.stats()).lsn == 2, "applied, and visible"
        gate.passed(1)
        assert await answers(stream) == [Kind.ACK]
        first = next(f for f in await stream.frames(0) if f.kind == Kind.ACK)
        assert LEVELS[frames.receipt(first).level] == "logged", "it says what it is worth"
        gate.passed(2)
        assert await answers(stream) == [Kind.ACK, Kind.ACK]


async def test_a_refusal_keeps_its_place_behind_what_is_held(
    stranger: Stranger, gate: AckGate
) -> None:
    async with stranger.stream() as stream:
        stream.write(stranger.push(ONES, number=1) + stranger.push(ONES * np.nan, number=2))
        assert await answers(stream) == []
        gate.passed(1)
        kinds = await answers(stream)
        assert kinds[:2] == [Kind.ACK, Kind.REFUSE]


async def test_a_duplicate_is_not_answered_before_the_first_one_is_durable(
    stranger: Stranger, gate: AckGate
) -> None:
    for _ in range(2):  # the first connection breaks before its answer
        async with stranger.stream() as stream:
            stream.write(stranger.push(ONES))
            assert await answers(stream) == []
    assert not gate.waiting, "a connection that ends takes nothing with it"
    async with stranger.stream() as stream:
        stream.write(stranger.push(ONES))
        assert await answers(stream) == []
        gate.passed(1)
        assert await answers(stream) == [Kind.ACK]
    assert (await stranger.stats()).records_duplicate == 2


async def test_a_post_is_answered_when_everything_in_it_is_durable(
    stranger: Stranger, gate: AckGate
) -> None:
    body = stranger.push(ONES, number=1) + stranger.push(ONES, number=2)
    posted = asyncio.create_task(stranger.post(body))
    while (await stranger.stats()).lsn < 2:
        await asyncio.sleep(0)
    gate.passed(1)
    assert (await stranger.stats()).lsn == 2
    assert not posted.done()
    gate.passed(2)
    assert [frame.kind for frame in await posted] == [Kind.ACK, Kind.ACK]


async def test_held_answers_are_bounded_and_pushes_wait_behind_them(
    stranger: Stranger, gate: AckGate
) -> None:
    pushes = 3 * limits.DEFAULT.answers_held_max
    async with stranger.stream() as stream:
        for number in range(1, pushes + 1):
            stream.write(stranger.push(ONES, number=number))
        while (await stranger.stats()).lsn <= limits.DEFAULT.answers_held_max:
            await asyncio.sleep(0)
        assert (await stranger.stats()).lsn == limits.DEFAULT.answers_held_max + 1
        for lsn in range(1, pushes + 1):
            with contextlib.suppress(TimeoutError):
                gate.passed(lsn)
                await stream.frames(lsn)
        heard = [f for f in await stream.frames(pushes) if f.kind == Kind.ACK]
        assert len(heard) == pushes


async def test_a_full_journal_refuses_for_now(stranger: Stranger, gate: AckGate) -> None:
    gate.passed(1 << 40)
    assert gate.journal is not None
    async with stranger.stream() as stream:
        count = (1 << 20) // (96 + 4 * LENGTH)
        for number in range(1, count + 2):
            stream.write(stranger.push(ONES, number=number))
            if number % 64 == 0:
                await stream.frames(number)
        last = (await stream.frames(count + 1))[count]
        assert (last.kind, last.aux) == (Kind.REFUSE, Code.FULL)
        assert "journal" in last.payload.decode()
        assert len(gate.journal.take()) == count
        stream.write(stranger.push(ONES, number=count + 1))
        assert await answers(stream)
