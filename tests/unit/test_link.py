"""What a link says of its pushes: numbers, runs, and which of them are settled."""

from __future__ import annotations

import asyncio
import contextlib
import random

import numpy as np
import pytest

from pydownpour import _core
from pydownpour.errors import JobFailed
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.replica.encoded import EncodedPush
from pydownpour.replica.link import Link
from pydownpour.replica.pushes import Base, Push
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, Kind
from pydownpour.wire.messages import LEVELS, Level, ShardEntry

LENGTH, FRAGMENT_LEN = 100, 16
START, SHARD_LEN = 32, 48
"""The shard owns fragments 2 to 4 of 7."""


def make_link(limits: Limits = DEFAULT, durability: Level = "memory") -> Link:
    return Link(
        ShardEntry(index=0, url="http://a", start=START, len=SHARD_LEN),
        lambda entry: Client(entry.url, access=Access(), limits=limits),
        replica=1,
        incarnation=1,
        headers={},
        fragment_len=FRAGMENT_LEN,
        wire_dtype="float32",
        durability=durability,
        staging=np.zeros(LENGTH, np.float32),
        versions=np.arange(10, 17, dtype=np.uint64),
        rng=random.Random(0),
    )


def push(link: Link, number: int) -> Push:
    """Queue one, and say that it is on its way."""
    arrays = _core.Gather([(LENGTH,)]).plain([np.arange(LENGTH, dtype=np.float32)])
    assert arrays is not None
    base = Base(np.arange(10, 17, dtype=np.uint64), (0,))
    encoded = EncodedPush(7 * 64 + 4 * LENGTH, 64 + 4 * FRAGMENT_LEN, 7)
    _ = arrays.encode(
        encoded.memory, dtype=1, fragment_len=FRAGMENT_LEN, first=0, count=7, replica=1,
        incarnation=1, push=number, versions=base.versions,
    )  # fmt: skip
    one = Push(number, encoded, base, 1, 1, 0.0, open_portions=1)
    link.push(one)
    portion = link.queue[-1]
    portion.send(portion.first, portion.count)
    return one


def ack(link: Link, number: int, fragment: int, count: int, level: int = 0) -> None:
    payload = frames.RECEIPT.pack(count, 0, level, *frames.View())
    data = _core.encode_frame(
        kind=Kind.ACK, seq=number, fragment=fragment, count=count, payload=payload
    )
    for frame in _core.scan_frames(data):
        link.on_frame(frame)


async def test_a_run_carries_the_layout_s_fragments_and_their_base_versions() -> None:
    link = make_link()
    push(link, 7)
    run = link._run(link.queue[0], 3, 2)
    data = run.announcement + b"".join(map(bytes, run.batches(4096)))
    announced, *records = _core.scan_frames(data)
    assert (announced.seq, announced.fragment, announced.count) == (7, 3, 2)
    assert [(one.seq, one.fragment, one.version) for one in records] == [(7, 3, 13), (7, 4, 14)]
    sent = np.frombuffer(b"".join(one.payload for one in records), np.float32)
    np.testing.assert_array_equal(sent, np.arange(48, 80))
    assert len(run.frames) == sum(64 + len(one.payload) for one in records)


async def test_what_was_turned_down_is_sent_again_when_the_pause_is_over() -> None:
    """uvloop counts in whole milliseconds: half of its timers are early by the clock."""
    refusal = frames.refuse(push=1, fragment=2, count=3, code=Code.WINDOW, words="too many")
    links = [make_link(limits=Limits(backoff_min_s=0.02 + 0.0001 * i)) for i in range(20)]
    for link in links:
        push(link, 1)
        link._wake.clear()
        for frame in _core.scan_frames(refusal):
            link.on_frame(frame)
        assert link._next_run(8) is None
    for link in links:
        await link._wake.wait()
        assert link._next_run(8) is not None


async def test_first_open_passes_what_has_all_of_its_answers_and_no_push_before_it() -> None:
    link = make_link()
    assert link.first_open == 1
    for number in (1, 2, 3):
        push(link, number)
    ack(link, 2, 2, 3)
    assert link.first_open == 1, "the first is open"
    ack(link, 1, 2, 2)
    assert link.first_open == 1, "a fragment of it has no answer"
    ack(link, 1, 4, 1)
    assert link.first_open == 3
    refusal = frames.refuse(push=3, fragment=2, count=3, code=Code.NON_FINITE, words="NaN")
    for frame in _core.scan_frames(refusal):
        link.on_frame(frame)
    assert link.first_open == 4, "a refusal is an answer"


async def test_pushes_that_had_nothing_for_a_shard_are_not_called_settled_there() -> None:
    """It has never heard of them, and would take it for a past that it lost."""
    link = make_link()
    push(link, 1)
    ack(link, 1, 2, 3)
    push(link, 9)
    assert link.first_open == 2
    shard = _core.Shard(
        len=SHARD_LEN,
        stripe_len=16,
        fragment_len=FRAGMENT_LEN,
        first_fragment=2,
        optimizer=_core.Optimizer([("sgd", {"lr": 1.0})]),
    )
    assert shard.admit(1, 1, 1, 2, 3, 1) == "new"
    assert shard.admit(1, 1, 9, 2, 3, link.first_open) == "new"
    ack(link, 9, 2, 3)
    push(link, 12)
    assert shard.admit(1, 1, 12, 2, 3, link.first_open) == "new"
    assert shard.applied(1) == (1, 9, 0)


async def test_what_others_have_superseded_is_settled_and_nobody_is_to_blame() -> None:
    link = make_link()
    one = push(link, 1)
    words = frames.refuse(push=1, fragment=3, count=1, code=Code.SUPERSEDED, words="too late")
    for frame in _core.scan_frames(words):
        link.on_frame(frame)
    ack(link, 1, 2, 1)
    ack(link, 1, 4, 1)
    assert (one.open_portions, one.refused, one.superseded, one.by_policy) == (0, 1, 1, True)


def test_how_long_pushes_were_turned_down_is_told_by_why() -> None:
    """For want of room, and by the policy; what comes of a full window is a wait for answers."""

    def told(link: Link, *data: bytes) -> None:
        for one in data:
            for frame in _core.scan_frames(one):
                link.on_frame(frame)

    async def story() -> list[tuple[float, float]]:
        link, seconds = make_link(), []
        for code, end in (
            (Code.FULL, "ack"), (Code.NOT_YET, "may come"), (Code.ROUND, "ack"),
            (Code.WINDOW, "ack"),
        ):  # fmt: skip
            push(link, 1)
            no = frames.refuse(push=1, fragment=2, count=3, code=code, words="no")
            told(link, no)
            await asyncio.sleep(2.0)
            told(link, no)
            await asyncio.sleep(1.0)
            if end == "may come":
                told(link, frames.view(frames.View(), send_again=True))
            ack(link, 1, 2, 3)
            await asyncio.sleep(5.0)
            seconds.append((link.turned_down.no_room_s, link.turned_down.not_yet_s))
        return seconds

    with contextlib.closing(SimLoop(events_max=1000, virtual_s_max=100.0)) as loop:
        seconds = loop.run_until_complete(story())
    assert seconds == [(3.0, 0.0), (3.0, 3.0), (3.0, 6.0), (3.0, 6.0)]


@pytest.mark.parametrize("asked", LEVELS)
async def test_an_acknowledgement_of_a_lower_level_than_the_job_s_is_none(asked: Level) -> None:
    link = make_link(durability=asked)
    for number, level in enumerate(LEVELS, start=1):
        one = push(link, number)
        if LEVELS.index(level) < LEVELS.index(asked):
            with pytest.raises(JobFailed, match=f"at the level {level} .* asks for {asked}"):
                ack(link, number, 2, 3, LEVELS.index(level))
            assert one.open_portions == 1, "nothing of it is settled"
        else:
            ack(link, number, 2, 3, LEVELS.index(level))
            assert one.open_portions == 0
