"""A peer that plays another: what shards and the coordinator answer, and that nobody is hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.errors import AuthError, DownpourError, RemoteProtocolError
from pydownpour.net.client import Client
from pydownpour.wire import frames
from pydownpour.wire.frames import Kind
from pydownpour.wire.messages import HeartbeatAnswer, Leave
from tests.e2e.stage import Stage, ones
from tests.e2e.stranger import Stranger, dismiss

LENGTH = 1000


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A running job with one shard, in which a gradient of -1 counts up."""
    quick = limits.Limits(heartbeat_s=0.05)  # its end is heard of sooner
    job = dp.Job(parameters={"w": np.zeros(LENGTH, np.float32)}, optimizer=dp.SGD(lr=1.0))
    async with Stage(job, tmp_path / "run", shards=1, limits=quick) as stage:
        await Stranger.join(stage.url)
        yield stage
        await dismiss(stage.url)


def played(
    stranger: Stranger, replica: int, incarnation: int, *, secret: str | None = None
) -> Stranger:
    """The stranger, saying that it is somebody else."""
    actor = Stranger(stranger.joined, stranger.access)
    actor.replica, actor.incarnation = replica, incarnation
    actor.secret = stranger.secret if secret is None else secret
    return actor


def floor_frame(actor: Stranger) -> bytes:
    """Everything up to 2^62 is settled, says this announcement."""
    notice = frames.PushNotice(first_open=1 << 62, clock=1, samples=1, norm=1.0)
    return frames.push(
        replica=actor.replica,
        incarnation=actor.incarnation,
        push=1 << 62,
        fragment=0,
        count=1,
        notice=notice,
    )


async def refused(actor: Stranger) -> list[DownpourError]:
    """What a stream, a push and a fetch under this identity are answered with."""
    errors: list[DownpourError] = []
    with pytest.raises(DownpourError) as stream_error:
        async with actor.stream():
            pass
    with pytest.raises(DownpourError) as push_error:
        await actor.post(floor_frame(actor))
    async with actor.client() as client:
        with pytest.raises(DownpourError) as fetch_error:
            async for _ in client.chunks("/v1/fetch?since=0", actor.headers):
                pass
    errors += [stream_error.value, push_error.value, fetch_error.value]
    return errors


async def test_nobody_is_acknowledged_cut_or_fenced_by_another(stage: Stage) -> None:
    hostile = await Stranger.join(stage.url)
    async with dp.join(stage.url) as victim:
        for _ in range(5):
            await victim.step(ones(stage.job, -1.0))
        for incarnation in (1, 2, 2**32 - 1):
            for secret in (None, "", "0" * 64):
                actor = played(hostile, victim.id, incarnation, secret=secret)
                for error in await refused(actor):
                    assert type(error) is AuthError
                    assert "nobody speaks for another" in str(error)
                    assert "\n" not in str(error)
        for _ in range(5):
            await victim.step(ones(stage.job, -1.0))
        await victim.flush()
        await victim.fetch()
        counts = victim.statistics()
        assert (counts.pushes_acked, counts.records_duplicate, counts.reconnects) == (10, 0, 0)
        np.testing.assert_array_equal(victim.parameters["w"], 10.0)


async def test_one_s_own_stream_carries_nobody_else_s_frames(stage: Stage) -> None:
    hostile = await Stranger.join(stage.url)
    async with dp.join(stage.url) as victim:
        await victim.step(ones(stage.job, -1.0))
        actor = played(hostile, victim.id, 1)
        async with hostile.stream() as stream:
            stream.write(floor_frame(actor))
            (answer,) = await stream.frames(1)
            assert answer.kind == Kind.ERROR
            assert f"push of replica {victim.id}.1 on the connection of" in answer.payload.decode()
        with pytest.raises(RemoteProtocolError, match="on the connection of"):
            await hostile.post(floor_frame(actor))
        await victim.step(ones(stage.job, -1.0))
        await victim.flush()
        assert victim.statistics().records_duplicate == 0


async def test_a_number_of_ones_own_moves_nothing_beyond_what_was_announced(stage: Stage) -> None:
    stranger = await Stranger.join(stage.url)
    async with stranger.stream() as stream:
        stream.write(stranger.push(np.full(LENGTH, -1.0, np.float32)))
        stream.write(floor_frame(stranger))
        acked, answer = await stream.frames(2)
        assert (acked.kind, frames.receipt(acked).applied) == (Kind.ACK, acked.count)
        assert (answer.kind, answer.aux) == (Kind.REFUSE, frames.Code.UNKNOWN)


async def test_the_newer_life_cuts_the_older_and_never_the_other_way_round(stage: Stage) -> None:
    older = await Stranger.join(stage.url, owner="the same")
    async with older.stream() as stream:
        newer = await Stranger.join(stage.url, owner="the same")
        assert (newer.replica, newer.incarnation) == (older.replica, 2)
        async with newer.stream() as successor:
            await stream.wait_closed()
            # It has not pushed yet, and still nobody can take its place.
            for error in await refused(older):
                assert "incarnation 1 is fenced: incarnation 2 took its place" in str(error)
            successor.write(newer.push(np.full(LENGTH, -1.0, np.float32)))
            (acked,) = await successor.frames(1)
            assert (acked.kind, frames.receipt(acked).applied) == (Kind.ACK, acked.count)


async def test_a_reader_s_secret_only_reads(stage: Stage) -> None:
    hostile = await Stranger.join(stage.url)
    for error in await refused(played(hostile, 0, 0)):
        assert type(error) is AuthError


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Downpour-Replica", "²"),
        ("X-Downpour-Replica", "1_0"),
        ("X-Downpour-Replica", "9" * 5000),
        ("X-Downpour-Replica", "4294967296"),
        ("X-Downpour-Incarnation", " "),
        ("X-Downpour-Incarnation", "-1"),
        ("X-Downpour-Secret", "é" * 100),
    ],
)
async def test_headers_that_name_nobody_are_one_line(stage: Stage, header: str, value: str) -> None:
    stranger = await Stranger.join(stage.url)
    headers = {**stranger.headers, header: value}
    async with stranger.client() as client:
        with pytest.raises((AuthError, RemoteProtocolError)) as pushed:
            await client.exchange("/v1/push", [b""], headers, size_max=1 << 20)
        with pytest.raises((AuthError, RemoteProtocolError)) as fetched:
            _ = [chunk async for chunk in client.chunks("/v1/fetch?since=0", headers)]
    for words in (str(pushed.value), str(fetched.value)):
        assert "\n" not in words
        assert len(words) < 300


async def test_a_goodbye_for_another_is_not_heard(stage: Stage) -> None:
    hostile = await Stranger.join(stage.url)
    async with dp.join(stage.url) as victim:
        async with Client(stage.url, access=stage.access) as client:
            for secret in ("", hostile.secret):
                goodbye = Leave(replica=victim.id, incarnation=1, secret=secret)
                with pytest.raises(AuthError):
                    await client.post("/v1/leave", goodbye, HeartbeatAnswer)
        await victim.step(ones(stage.job, -1.0))
        await victim.flush()
        status = await stage.status()
        (seen,) = [r for r in status.replicas if r.id == victim.id]
        assert (seen.state, seen.incarnation) == ("live", 1)
