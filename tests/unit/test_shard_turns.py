"""What peers may make a shard do in one turn of its loop, and what their connections may keep.

Real conversations over the simulated network: turns and bytes are counted, nothing is timed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from pydownpour import _core, limits
from pydownpour.net.access import Access
from pydownpour.policy import Policy
from pydownpour.shard.service import ShardService
from pydownpour.shard.state import Admitted, Refused, Shard
from pydownpour.shard.turns import Share, Turns
from pydownpour.wire import frames, messages
from pydownpour.wire.frames import Kind
from tests.fakes.network import End
from tests.fakes.serving import HEAD, Serving, serving
from tests.unit.test_shard_memory import shard as make_shard

LENGTH = 1000
FRAGMENT_LEN, FRAGMENTS = 256, 4
"""As a layout of so few elements is cut."""
F32 = 1


# -- the budget alone --------------------------------------------------------------------------


async def test_a_turn_has_its_budget_and_those_who_wait_come_first_in_their_order() -> None:
    turns, order = Turns(), list[str]()
    shares = [Share(turns) for _ in range(limits.DEFAULT.turn_events_max)]
    taken = sum(share.take() for share in shares * 2)
    assert taken == limits.DEFAULT.turn_events_max
    turns.later(lambda: order.append("first"))
    turns.later(lambda: order.append("second"))
    await turns.another()
    assert order == ["first", "second"]
    assert shares[0].take(), "another turn, another budget"


async def test_many_bytes_cost_more_than_one_event() -> None:
    turns = Turns()
    shares = [Share(turns) for _ in range(4)]
    taken = sum(
        share.take(received=3 * limits.DEFAULT.fragment_size)
        for share in shares
        for _ in range(limits.DEFAULT.stream_events_max)
    )
    assert taken == limits.DEFAULT.turn_events_max // 4


async def test_turns_in_which_little_happens_are_not_counted() -> None:
    """Each would be a callback of the loop; what is spent in several of them is one budget."""
    turns = Turns()
    share = Share(turns)
    for _ in range(limits.DEFAULT.stream_events_max // 2 - 1):
        assert share.take()
        await asyncio.sleep(0)
    assert turns.number == 0
    assert share.take()
    await asyncio.sleep(0)
    assert turns.number == 1
    assert turns.left == limits.DEFAULT.turn_events_max


async def test_one_who_always_has_more_does_not_keep_others_waiting() -> None:
    turns, served = Turns(), [0] * 10
    shares = [Share(turns) for _ in served]

    def work(who: int) -> None:
        while shares[who].take():
            served[who] += 1
        turns.later(lambda: work(who))

    for who in range(10):
        work(who)
    for _ in range(100):
        await asyncio.sleep(0)
    assert max(served) - min(served) <= limits.DEFAULT.stream_events_max


# -- a shard -----------------------------------------------------------------------------------


class Served:
    """A loaded shard that serves, and connections of replicas to it."""

    def __init__(self, net: Serving, shard: Shard) -> None:
        self.net, self.shard = net, shard
        self.decided: Counter[int] = Counter()
        """Announcements decided in each turn of the loop."""
        turns = itertools.count()
        turn, decide, run_once = [0], shard.admit, net.loop._run_once

        def admit(frame: _core.Frame) -> Admitted | Refused:
            self.decided[turn[0]] += 1
            return decide(frame)

        def next_turn() -> None:
            turn[0] = next(turns)
            run_once()

        patch = pytest.MonkeyPatch()
        patch.setattr(shard, "admit", admit)
        patch.setattr(net.loop, "_run_once", next_turn)

    def head(self, replica: int) -> bytes:
        mine = {
            messages.HEADER_REPLICA: replica,
            messages.HEADER_INCARNATION: 1,
            messages.HEADER_EPOCH: self.shard.assigned.epoch,
            messages.HEADER_SECRET: self.shard.keeper.secret("replica", replica, 1),
        }
        return HEAD + "".join(f"{name}: {value}\r\n" for name, value in mine.items()).encode()

    def stream(self, replica: int = 1) -> End:
        end = self.net.call()
        upgrade = f"Connection: Upgrade\r\nUpgrade: {messages.UPGRADE}\r\n\r\n".encode()
        self.net.say(end, b"GET /v1/stream HTTP/1.1\r\n" + self.head(replica) + upgrade)
        self.net.wait(1.0)
        assert end.got.startswith(b"HTTP/1.1 101"), end.got
        end.pieces.clear()
        return end

    def post(self, body: bytes) -> bytes:
        kind = b"Content-Type: application/octet-stream\r\n"
        head = b"POST /v1/push HTTP/1.1\r\n" + self.head(1) + kind
        return self.net.ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    @property
    def most(self) -> int:
        """Announcements decided in one turn, at most."""
        return max(self.decided.values())


def served_shard(length: int, policy: Policy | None = None) -> Iterator[Served]:
    service = ShardService(Access())
    shard = service._shard = make_shard(length, policy=policy)
    shard.store.load(0, np.zeros(length, np.float32))
    shard.serve(shard.assigned.epoch)
    with serving(service.routes()) as net:
        yield Served(net, shard)


@pytest.fixture
def served() -> Iterator[Served]:
    """One of a kilobyte or four."""
    yield from served_shard(LENGTH)


@pytest.fixture
def large() -> Iterator[Served]:
    """One whose streams need as much memory as any."""
    yield from served_shard(1 << 20)


def announcement(
    number: int, count: int = 1, replica: int = 1, *, first_open: int = 1, group: int = 0
) -> bytes:
    notice = frames.PushNotice(first_open, clock=1, samples=1, norm=math.inf, round=group)
    return frames.push(
        replica=replica, incarnation=1, push=number, fragment=0, count=count, notice=notice
    )


def push(number: int, group: int = 0) -> bytes:
    values = np.full(LENGTH, -1.0, np.float32)
    records = [
        _core.encode_frame(
            kind=Kind.FRAGMENT, dtype=F32, replica=1, incarnation=1, fragment=fragment, seq=number,
            payload=values[FRAGMENT_LEN * fragment : FRAGMENT_LEN * (fragment + 1)],
        )
        for fragment in range(FRAGMENTS)
    ]  # fmt: skip
    return announcement(number, FRAGMENTS, group=group) + b"".join(records)


def beyond(count: int, replica: int = 1) -> bytes:
    """Announcements that call pushes settled which nobody made: each is refused, in words."""
    return announcement(10**6, 0, replica, first_open=10**6) * count


def kinds(end: End) -> list[Kind]:
    return [Kind(frame.kind) for frame in _core.scan_frames(end.got)]


def test_announcements_of_one_stream_are_answered_over_many_turns(served: Served) -> None:
    end = served.stream()
    served.net.say(end, beyond(3000))
    served.net.wait(20.0)
    assert served.most <= limits.DEFAULT.stream_events_max
    assert kinds(end) == [Kind.REFUSE] * 3000


def test_those_of_many_streams_share_a_turn(served: Served) -> None:
    ends = [served.stream(replica) for replica in range(1, 11)]
    for replica, end in enumerate(ends, 1):
        served.net.say(end, beyond(300, replica))
    served.net.wait(10.0)
    assert limits.DEFAULT.stream_events_max < served.most <= limits.DEFAULT.turn_events_max
    assert all(kinds(end) == [Kind.REFUSE] * 300 for end in ends)


def test_those_of_a_post_are_answered_over_many_turns(served: Served) -> None:
    assert served.post(beyond(3000)).startswith(b"HTTP/1.1 200 OK")
    assert sum(served.decided.values()) == 3000
    assert served.most <= limits.DEFAULT.stream_events_max


def test_a_post_of_announcements_without_end_is_refused_before_its_answers_fill_memory(
    served: Served,
) -> None:
    got = served.post(beyond(100_000))
    assert got.startswith(b"HTTP/1.1 400 "), got[:100]
    assert b"post_answers_size_max" in got
    assert sum(served.decided.values()) * limits.HEADER_SIZE < limits.DEFAULT.post_answers_size_max
    assert served.shard.reserved_bytes == 0


def test_pushes_that_wait_for_another_turn_are_applied_once_each_and_in_order(
    served: Served,
) -> None:
    end, rng = served.stream(), np.random.default_rng(1)
    data = b"".join(push(seq) for seq in range(1, 501))
    cuts = sorted(rng.integers(0, len(data), 20))
    served.net.say(end, *(data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])))
    served.net.wait(1.0)
    assert kinds(end) == [Kind.ACK] * 500
    assert (served.shard.store.lsn, served.shard.pushes) == (500 * FRAGMENTS, 500)
    values = np.empty(LENGTH, np.float32)
    served.shard.store.read(values)
    assert (values == 500.0).all()


# -- memory ------------------------------------------------------------------------------------


def test_open_streams_reserve_nothing_until_they_send(large: Served) -> None:
    ends = [large.stream(replica) for replica in range(1, 20)]
    assert large.shard.reserved_bytes == 0
    large.net.say(ends[-1], announcement(1, 0, 19)[:10])
    large.net.wait(1.0)
    assert large.shard.reserved_bytes == large.shard.payload_size_max


def test_a_stream_that_is_silent_keeps_no_memory_is_asked_and_then_closed(large: Served) -> None:
    dead, alive, stuck = (large.stream(replica) for replica in (1, 2, 3))
    for replica, end in ((1, dead), (2, alive)):
        large.net.say(end, announcement(1, 0, replica))
    large.net.say(stuck, announcement(1, 0, 3)[:-1])
    large.net.wait(2 * limits.DEFAULT.stream_silence_s)
    assert large.shard.reserved_bytes == large.shard.payload_size_max, "half a frame is kept"
    for end in (dead, alive, stuck):
        assert kinds(end)[-1] == Kind.PING
    large.net.say(alive, frames.simple(Kind.PONG, seq=1))
    large.net.wait(limits.DEFAULT.stream_silence_s)
    assert "ECONNRESET" in dead.words
    assert "ECONNRESET" in stuck.words
    assert list(large.shard.streams) == [2]
    for _ in range(4):
        large.net.say(alive, frames.simple(Kind.PONG, seq=1))
        large.net.wait(limits.DEFAULT.stream_silence_s)
    assert list(large.shard.streams) == [2]
    large.net.wait(limits.DEFAULT.stream_silence_s)
    assert large.shard.reserved_bytes == 0


def test_when_memory_is_short_streams_at_rest_give_theirs_and_others_are_told(
    large: Served,
) -> None:
    most = 3 * large.shard.payload_size_max
    large.shard.limits = dataclasses.replace(large.shard.limits, in_flight_size_max=most)
    resting = [large.stream(replica) for replica in (1, 2, 3)]
    for replica, end in enumerate(resting, 1):
        large.net.say(end, announcement(1, 0, replica))
    large.net.wait(1.0)
    halves = [large.stream(replica) for replica in (4, 5, 6)]
    for replica, end in enumerate(halves, 4):
        large.net.say(end, announcement(1, 0, replica)[:-1])
        large.net.wait(1.0)
    assert large.shard.reserved_bytes == most
    large.net.say(resting[0], announcement(1, 0))
    large.net.wait(1.0)
    (*_, error) = _core.scan_frames(resting[0].got)
    assert error.kind == Kind.ERROR
    assert b"in_flight_size_max" in bytes(error.payload)
    large.net.say(halves[0], announcement(1, 0, 4)[-1:])
    large.net.say(resting[1], announcement(1, 0, 2))
    large.net.wait(1.0)
    assert kinds(halves[0])[-1] == kinds(resting[1])[-1] == Kind.ACK
