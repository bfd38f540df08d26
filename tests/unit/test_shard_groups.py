"""What a shard takes of the sums of a group of replicas, and of one that was replaced.

Real conversations over the simulated network, on a stream and by POST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pydownpour import _core
from pydownpour.policy.hard_sync import HardSync
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, GroupMark, Kind
from tests.unit.test_shard_turns import FRAGMENTS, LENGTH, Served, push, served_shard

HALF = len(push(1)) // 2


@pytest.fixture
def served() -> Iterator[Served]:
    """One whose replicas reduce among themselves, and which has heard of their third group."""
    for served in served_shard(LENGTH, HardSync(combine="sum", replicas=1, reduce="tree")):
        hear(served, 3)
        yield served


def hear(served: Served, group: int) -> None:
    """Somebody fetches, and says in which group it is."""
    proof = served.shard.keeper.secret("group", group, 0)
    served.shard.heard_group(GroupMark(group, proof))


def by_stream(served: Served, data: bytes) -> list[_core.Frame]:
    """Over a new stream, in two reads."""
    end = served.stream()
    served.net.say(end, data[:HALF], data[HALF:])
    served.net.wait(1.0)
    return list(_core.scan_frames(end.got))


def by_post(served: Served, data: bytes) -> list[_core.Frame]:
    """In a request; none if it has no answer of frames."""
    head, _, body = served.post(data).partition(b"\r\n\r\n")
    return list(_core.scan_frames(body)) if head.startswith(b"HTTP/1.1 200 ") else []


WAYS = pytest.mark.parametrize("ask", [by_stream, by_post])


@WAYS
def test_a_sum_that_was_applied_has_its_answer_whichever_group_came_after(
    served: Served, ask: Callable[[Served, bytes], list[_core.Frame]]
) -> None:
    """The first answer was lost on its way, and the replica sends what it has open again."""
    (first,) = ask(served, push(1, group=3))
    assert (first.kind, first.count) == (Kind.ACK, FRAGMENTS)
    assert frames.receipt(first).applied == FRAGMENTS
    hear(served, 4)
    for _ in range(2):
        (again,) = ask(served, push(1, group=3))
        assert (again.kind, again.seq, again.count) == (Kind.ACK, 1, FRAGMENTS)
        assert frames.receipt(again).applied == 0
    assert served.shard.store.lsn == FRAGMENTS


def fetched_by_stream(served: Served, first: int, count: int) -> list[_core.Frame]:
    end = served.stream()
    served.net.say(end, frames.fetch(request=1, since=0, first=first, count=count))
    served.net.wait(1.0)
    return list(_core.scan_frames(end.got))


@pytest.mark.parametrize(("first", "count"), [(1, 2), (3, 1), (2, 9), (0, 0), (3, 0)])
def test_who_wants_a_share_is_sent_no_more(served: Served, first: int, count: int) -> None:
    """An owner fetches what it has pushed; 0 is all to the last."""
    by_stream(served, push(1, group=3))
    *sent, end = fetched_by_stream(served, first, count)
    stop = min(first + count, FRAGMENTS) if count else FRAGMENTS
    assert [frame.fragment for frame in sent] == list(range(first, stop))
    assert (end.kind, end.count, end.version) == (Kind.FETCHED, stop - first, FRAGMENTS)


@WAYS
def test_a_sum_of_a_group_that_was_replaced_is_refused(
    served: Served, ask: Callable[[Served, bytes], list[_core.Frame]]
) -> None:
    hear(served, 4)
    (answer,) = ask(served, push(1, group=3))
    assert (answer.kind, answer.aux, answer.count) == (Kind.REFUSE, Code.POLICY, FRAGMENTS)
    assert served.shard.store.lsn == 0
    (answer,) = ask(served, push(2, group=4))
    assert (answer.kind, answer.count) == (Kind.ACK, FRAGMENTS)


def test_the_rest_of_a_sum_whose_group_is_replaced_is_not_applied(served: Served) -> None:
    end, data = served.stream(), push(1, group=3)
    served.net.say(end, data[:HALF])
    served.net.wait(1.0)
    half = served.shard.store.lsn
    assert 0 < half < FRAGMENTS
    hear(served, 4)
    served.net.say(end, data[HALF:])
    served.net.wait(1.0)
    assert _core.scan_frames(end.got)[-1].kind == Kind.ERROR
    assert served.shard.store.lsn == half
    (answer,) = by_stream(served, data)
    assert (answer.kind, answer.aux, answer.count) == (Kind.REFUSE, Code.POLICY, FRAGMENTS)
    assert served.shard.store.lsn == half
