"""Bytes that no honest replica sends: nothing is applied, nobody else notices, words come back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.errors import Fenced, RemoteProtocolError, TooLarge
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.net.server import Call, Route, Server
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, Kind
from pydownpour.wire.messages import RefusedEntry
from tests.e2e.stage import Stage, ones
from tests.e2e.stranger import Stranger, dismiss, raw_connection, rest_of

LENGTH = 1000
POST = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


def counting_job() -> dp.Job:
    """One shard, one fragment; a gradient of -1 counts up, and nothing may be larger."""
    return dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        max_norm=math.sqrt(LENGTH),
    )


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A running job with one shard and a member that does nothing."""
    quick = limits.Limits(heartbeat_s=0.05, header_timeout_s=0.3, body_window_s=0.2)
    async with Stage(counting_job(), tmp_path / "run", shards=1, limits=quick) as stage:
        await Stranger.join(stage.url)
        yield stage
        await dismiss(stage.url)


async def honest_work(stage: Stage, pushes: int) -> None:
    """What any bystander must be able to do."""
    async with dp.join(stage.url) as replica:
        for _ in range(pushes):
            await replica.step(ones(stage.job, -1.0))
        await replica.fetch()
        assert replica.statistics().pushes_acked == pushes


async def check_applied(stage: Stage, stranger: Stranger, pushes: int) -> None:
    """The shard has applied so many whole pushes and nothing else."""
    fragments = -(-LENGTH // stranger.joined.fragment_len)
    assert (await stranger.stats()).lsn == fragments * pushes
    async with dp.join(stage.url) as replica:
        np.testing.assert_array_equal(replica.parameters["w"], float(pushes))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("transport", ["stream", "post"])
async def test_a_raw_push_with_nan_is_refused_counted_and_named(
    stage: Stage, value: float, transport: str
) -> None:
    stranger = await Stranger.join(stage.url)
    values = np.full(stranger.joined.fragment_len, -1.0, np.float32)
    values[17] = value
    body = stranger.push(values)
    if transport == "post":
        answers = await stranger.post(body)
    else:
        async with stranger.stream() as stream:
            stream.write(body)
            answers = await stream.frames(2)
    refused = next(frame for frame in answers if frame.kind == Kind.REFUSE)
    assert (refused.seq, refused.fragment, refused.count) == (1, 0, 1)
    assert refused.aux == Code.NON_FINITE
    words = refused.payload.decode()
    assert "1 NaN or infinite value" in words
    assert "element 17" in words
    stats = await stranger.stats()
    assert stats.refused_by == [RefusedEntry(replica=stranger.replica, records=1)]
    assert (stats.pushes_refused, stats.records_refused) == (1, 1)
    await honest_work(stage, 2)
    await check_applied(stage, stranger, 2)


@pytest.mark.parametrize(("value", "norm"), [(-1.98, 31.6), (3e38, 31.6), (-1.0, 31.7)])
@pytest.mark.parametrize("transport", ["stream", "post"])
async def test_a_finite_lie_is_refused_counted_and_named(
    stage: Stage, value: float, norm: float, transport: str
) -> None:
    """Too large, whatever it says of itself; or it says so, and is believed."""
    stranger = await Stranger.join(stage.url)
    length = stranger.joined.fragment_len  # of one fragment: it is judged by itself
    body = stranger.push(np.full(length, value, np.float32), norm=norm)
    if transport == "post":
        answers = await stranger.post(body)
    else:
        async with stranger.stream() as stream:
            stream.write(body)
            answers = await stream.frames(1)
    refused = next(frame for frame in answers if frame.kind == Kind.REFUSE)
    assert (refused.seq, refused.count, refused.aux) == (1, 1, Code.NORM)
    told = norm if value == -1.0 else value * math.sqrt(length)
    words = refused.payload.decode()
    assert f"replica {stranger.replica}" in words
    assert f"L2 norm of {abs(told):.6g}, above the job's max_norm of 31.6228" in words
    stats = await stranger.stats()
    assert stats.refused_by == [RefusedEntry(replica=stranger.replica, records=1)]
    assert (stats.pushes_refused, stats.records_refused) == (1, 1)
    await honest_work(stage, 2)
    await check_applied(stage, stranger, 2)


@pytest.mark.parametrize("cut", [10, limits.HEADER_SIZE + 5, -1, -400])
async def test_half_a_frame_and_then_nothing_changes_nothing(stage: Stage, cut: int) -> None:
    stranger = await Stranger.join(stage.url)
    values = np.full(LENGTH, -1.0, np.float32)
    record = stranger.push(values[: stranger.joined.fragment_len])
    async with stranger.stream() as stream:
        stream.write(record[:cut])
    await honest_work(stage, 3)
    await check_applied(stage, stranger, 3)
    async with stranger.stream() as stream:  # the same push again, whole: it counts
        stream.write(stranger.push(values))
        (answer,) = await stream.frames(1)
    assert (answer.kind, frames.receipt(answer).applied) == (Kind.ACK, answer.count)
    await check_applied(stage, stranger, 4)


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_end_only_their_own_stream_and_in_words(stage: Stage, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stranger = await Stranger.join(stage.url)
    other = await Stranger.join(stage.url)
    async with other.stream() as bystander:
        async with stranger.stream() as stream:
            stream.write(rng.bytes(5000))
            await stream.wait_closed()
            (error,) = await stream.frames(1)
        assert error.kind == Kind.ERROR
        assert "frame" in error.payload.decode()
        bystander.write(other.push(np.full(LENGTH, -1.0, np.float32)))
        (answer,) = await bystander.frames(1)
        assert answer.kind == Kind.ACK
    await honest_work(stage, 2)
    await check_applied(stage, stranger, 3)


async def test_a_flipped_bit_is_found_wherever_it_is(stage: Stage) -> None:
    stranger = await Stranger.join(stage.url)
    body = stranger.push(np.full(stranger.joined.fragment_len, -1.0, np.float32))
    for place in (0, 5, 40, limits.HEADER_SIZE, 2 * limits.HEADER_SIZE + 24 - 1, len(body) - 1):
        damaged = bytearray(body)
        damaged[place] ^= 4
        with pytest.raises(RemoteProtocolError):
            await stranger.post(bytes(damaged))
    await check_applied(stage, stranger, 0)


async def test_records_that_do_not_fit_the_shard_are_refused_in_words(stage: Stage) -> None:
    stranger = await Stranger.join(stage.url)
    length = stranger.joined.fragment_len
    short = stranger.push(np.full(length - 1, -1.0, np.float32))
    with pytest.raises(RemoteProtocolError, match=f"payload of {4 * length - 4} bytes, expected"):
        await stranger.post(short)
    elsewhere = stranger.push(np.full(2 * length, -1.0, np.float32), first=4)
    (refused,) = await stranger.post(elsewhere)
    assert (refused.kind, refused.aux) == (Kind.REFUSE, Code.FRAGMENT)
    assert (refused.seq, refused.fragment, refused.count) == (1, 4, 2)
    assert b"fragments 4 to 5 of push 1 are not all of shard 0, which has 0 to 3" in refused.payload
    await check_applied(stage, stranger, 0)


async def test_frames_only_a_shard_may_send_end_the_stream(stage: Stage) -> None:
    stranger = await Stranger.join(stage.url)
    async with stranger.stream() as stream:
        stream.write(frames.fetched(request=1, lsn=1, count=1))
        await stream.wait_closed()
        (error,) = await stream.frames(1)
    assert error.kind == Kind.ERROR
    assert "unexpected FETCHED frame: a shard sends it" in error.payload.decode()


async def test_a_push_under_another_s_name_ends_the_stream(stage: Stage) -> None:
    victim, stranger = await Stranger.join(stage.url), await Stranger.join(stage.url)
    forged = victim.push(np.full(LENGTH, -1.0, np.float32))
    with pytest.raises(RemoteProtocolError, match="on the connection of replica"):
        await stranger.post(forged)
    await check_applied(stage, stranger, 0)


async def test_an_old_incarnation_is_refused_at_the_door_and_cuts_nobody_off(stage: Stage) -> None:
    old = await Stranger.join(stage.url, owner="the same")
    new = await Stranger.join(stage.url, owner="the same")
    assert (new.replica, new.incarnation) == (old.replica, old.incarnation + 1)
    async with new.stream() as stream:
        stream.write(new.push(np.full(LENGTH, -1.0, np.float32)))
        await stream.frames(1)
        with pytest.raises(Fenced, match="incarnation 2 took its place"):
            async with old.stream():
                pass
        stream.write(new.push(np.full(LENGTH, -1.0, np.float32), number=2))
        answers = await stream.frames(2)
        assert [frame.kind for frame in answers] == [Kind.ACK, Kind.ACK]
    await check_applied(stage, new, 2)


async def test_an_unknown_protocol_on_the_stream_names_both(
    stage: Stage,
) -> None:
    stranger = await Stranger.join(stage.url)
    async with raw_connection(stranger.shard.url) as (reader, writer):
        head = "".join(f"{name}: {value}\r\n" for name, value in stranger.headers.items())
        writer.write(
            f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n{head}Connection: Upgrade\r\n"
            "Upgrade: pydownpour/99\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"}")
    assert b"400" in answer
    assert b"the peer wants 'pydownpour/99'; this one speaks protocol 1 to 1" in answer


async def test_a_slow_header_is_cut_off_and_others_are_served(
    stage: Stage,
) -> None:
    stranger = await Stranger.join(stage.url)
    for url in (stage.url, stranger.shard.url):
        async with raw_connection(url) as (reader, writer):

            async def dribble() -> None:
                for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 10_000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.01)

            dribbling = asyncio.create_task(dribble())
            await honest_work(stage, 1)
            assert await rest_of(reader) == b"", "closed without an answer"
            dribbling.cancel()
            await asyncio.gather(dribbling, return_exceptions=True)


async def test_a_slow_second_request_on_a_connection_is_cut_off_too(
    stage: Stage,
) -> None:
    async with raw_connection(stage.url) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /healthz HT")
        assert (await reader.read()).endswith(b"ok"), "only the first answer, then the end"


async def test_an_oversized_body_is_refused_before_it_is_read(stage: Stage) -> None:
    async with Client(stage.url, access=Access()) as client:
        body = [bytes(limits.MESSAGE_SIZE_MAX), b"x"]
        with pytest.raises(TooLarge, match="body of 262145 bytes, the limit here is 262144"):
            await client.exchange("/v1/join", body, {}, size_max=1000)
    stranger = await Stranger.join(stage.url)
    async with raw_connection(stranger.shard.url) as (reader, writer):
        head = "".join(f"{name}: {value}\r\n" for name, value in stranger.headers.items())
        writer.write(
            f"POST /v1/push HTTP/1.1\r\nHost: localhost\r\n{head}"
            f"Content-Type: application/octet-stream\r\nContent-Length: {10**12}\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"}")
        assert b"413" in answer
        assert b"body of 1000000000000 bytes" in answer
    await honest_work(stage, 1)
    await check_applied(stage, stranger, 1)


async def test_a_body_that_stalls_is_given_up(stage: Stage) -> None:
    async with raw_connection(stage.url) as (reader, writer):
        writer.write(POST % (b"/v1/join", 100) + b"{")
        answer = await reader.readuntil(b"}")
        assert b"400" in answer
        assert b"body stalled after 1 bytes" in answer


async def test_a_handler_may_take_its_time_between_two_pieces_of_a_body() -> None:
    brief = limits.Limits(body_window_s=0.05)
    sizes: list[int] = []

    async def slowly(call: Call) -> str:
        assert call.chunks is not None
        async for chunk in call.chunks:
            sizes.append(len(chunk))
            await asyncio.sleep(0.2)  # four times what a sender may be silent
        return "done"

    route = Route("POST", "/v1/slowly", slowly, streamed=True)
    async with Server([route], bind=Bind(), access=Access(), name="test", limits=brief) as server:
        async with raw_connection(server.url) as (reader, writer):
            writer.write(POST % (b"/v1/slowly", 6) + b"abc")
            while not sizes:
                await asyncio.sleep(0)
            writer.write(b"def")
            assert b"200 OK" in await reader.readuntil(b"done")
    assert sizes == [3, 3]


async def test_json_that_is_not_a_message_names_the_field(stage: Stage) -> None:
    async with raw_connection(stage.url) as (reader, writer):
        body = b'{"fingerprint": 3}'
        writer.write(POST % (b"/v1/join", len(body)) + body)
        answer = await reader.readuntil(b"}")
        assert b"bad Join message" in answer
        assert b"$.fingerprint" in answer


async def test_refusals_reach_the_report(tmp_path: Path) -> None:
    async with Stage(counting_job(), tmp_path / "run", shards=1) as stage:
        stranger = await Stranger.join(stage.url)
        poison = np.full(stranger.joined.fragment_len, np.nan, np.float32)
        await stranger.post(stranger.push(poison))
        await honest_work(stage, 1)
        await dismiss(stage.url)
    assert stage.report["records"] == {
        "applied": 4, "duplicate": 0, "superseded": 0, "refused": 1,
    }  # fmt: skip
    (shard,) = stage.report["shards"]
    assert shard["refused_by"] == {str(stranger.replica): 1}
