"""Reducing among replicas: who sends to whom, one round, and who has which gradient."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pydownpour.replica.encoded import EncodedPush
from pydownpour.replica.pushes import Base, Push
from pydownpour.replica.reduction import plan
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.reduction.round import Round
from pydownpour.wire.messages import Group, GroupMember

# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 34))
def test_each_member_sends_once_and_the_first_gets_all(count: int) -> None:
    for listening in range(1, count + 1):
        places = plan.places(count, listening)
        assert [place.index for place in places if place.parent is None] == [0]
        for place in places:
            assert list(place.children) == sorted(place.children)
            assert not place.children or place.index < listening, "who has children listens"
            for child in place.children:
                assert places[child].parent == place.index
            above, depth = place, 0
            while above.parent is not None:
                above, depth = places[above.parent], depth + 1
            if listening == count:
                assert depth <= count.bit_length() - 1
        assert sum(len(place.children) for place in places) == count - 1


@pytest.mark.parametrize("count", [2, 4, 8, 16, 31])
def test_where_all_listen_nobody_has_more_than_two_children(count: int) -> None:
    assert max(len(place.children) for place in plan.places(count, count)) == min(2, count - 1)


def test_who_cannot_listen_is_spread_over_those_that_do() -> None:
    places = plan.places(9, 2)
    assert [len(place.children) for place in places[:2]] == [4, 4]
    assert all(not place.children for place in places[2:])


def group(*ids: int, number: int = 1, deaf: tuple[int, ...] = ()) -> Group:
    members = [
        GroupMember(id=one, incarnation=1, url="" if one in deaf else f"http://r{one}")
        for one in (*(one for one in ids if one not in deaf), *deaf)
    ]
    return Group(number=number, proof="", members=members)


def test_a_life_before_is_not_a_member() -> None:
    four = group(1, 3, 5, 7, deaf=(3,))
    assert [plan.index_of(four, one, 1) for one in (1, 5, 7, 3)] == [0, 1, 2, 3]
    assert plan.index_of(four, 5, 2) is plan.index_of(four, 2, 1) is None
    assert plan.place_in(four, 1) == plan.Place(1, 0, (3,))


# -- a round ---------------------------------------------------------------------------------------


def test_a_fragment_is_added_when_all_of_it_is_here() -> None:
    round = Round(1, 4, (5, 6))
    round.landed(5, 3)
    assert list(round.ready()) == [], "the member's own is missing"
    round.give()
    assert list(round.ready()) == [], "the other child's is missing"
    round.landed(6, 2)
    assert list(round.ready()) == [0, 1]
    round.add(range(0, 2))
    assert list(round.ready()) == []
    for child in (5, 6):
        round.landed(child, 4)
        round.whole(child, 2, 10 * child)
    round.add(round.ready())
    assert round.is_summed
    assert round.totals(1, 7) == (5, 117)


def test_a_sum_is_whole_when_its_children_have_said_so() -> None:
    round = Round(3, 1, (2,))
    round.give()
    round.landed(2, 1)
    round.add(round.ready())
    assert (round.is_summed, round.missing) == (False, [2])
    round.whole(2, 1, 5)
    assert (round.is_summed, round.missing) == (True, [])


def test_who_has_no_children_is_never_waiting() -> None:
    round = Round(1, 3, ())
    round.give()
    assert list(round.ready()) == [0, 1, 2]
    round.add(round.ready())
    assert round.is_summed
    assert round.totals(1, 4) == (1, 4)


# -- who has which gradient ------------------------------------------------------------------------


def gradient() -> Gradient:
    return Gradient(Push(1, EncodedPush(0, 0, 0), Base(), 1, 1, 0.0))


def versions(*values: int) -> Any:
    return np.array(values, np.uint64)


def test_what_a_former_sum_has_reached_is_not_given_again() -> None:
    one = gradient()
    assert one.joins(3, 2, versions(7, 7, 7)) == "give"
    assert one.missing.all()
    assert one.joins(4, 2, versions(8, 7, 7)) == "give"
    assert list(one.missing) == [False, True, True]
    assert one.joins(6, 2, versions(9, 8, 7)) == "give"
    assert list(one.missing) == [False, False, True]
    assert one.joins(7, 2, versions(9, 8, 8)) == "done"


def test_what_was_never_given_has_reached_nothing_however_old_it_is() -> None:
    one = gradient()
    assert one.joins(9, 9, versions(80, 70)) == "give"
    assert one.missing.all()


def test_who_was_left_out_in_between_gives_up_what_it_had_given() -> None:
    one = gradient()
    assert one.joins(3, 1, versions(7)) == "give"
    assert one.joins(5, 5, versions(7)) == "lost"
    assert one.joins(5, 0, versions(7)) == "lost"


class Shards:
    """A few fragments, each at a shard of its own, as the way of a sum meets them."""

    def __init__(self, fragments: int) -> None:
        self.versions = np.zeros(fragments, np.uint64)
        self.groups = [0] * fragments
        self.applied: list[Counter[tuple[int, int]]] = [Counter() for _ in range(fragments)]

    def look(self, number: int) -> Any:
        """A member fetches, and says in which group it is."""
        self.groups = [max(number, group) for group in self.groups]
        return self.versions.copy()

    def push(self, fragment: int, number: int, base: int, who: list[tuple[int, int]]) -> None:
        if self.groups[fragment] == number and self.versions[fragment] == base:
            self.applied[fragment].update(who)
            self.versions[fragment] += 1


@pytest.mark.parametrize("members", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(60))
def test_whoever_dies_or_is_left_out_when_each_gradient_is_in_each_fragment_once(
    members: int, seed: int
) -> None:
    """A slow world: groups end anywhere in a round, old first members push on, and come back.

    Each fragment of an old sum may arrive at any later moment; members look at their own times.
    """
    rng = random.Random(f"{members}/{seed}")
    shards = Shards(fragments := 4)
    step = dict.fromkeys(range(members), 0)
    open_: dict[int, Gradient] = {one: gradient() for one in step}
    since = dict.fromkeys(range(members), 0)
    done: set[tuple[int, int]] = set()
    lost: set[tuple[int, int]] = set()
    late: list[tuple[int, int, int, list[tuple[int, int]]]] = []
    number = 0

    def late_records() -> None:
        for record in rng.sample(late, rng.randint(0, len(late))):
            late.remove(record)
            shards.push(*record)

    def ended(one: int, which: set[tuple[int, int]]) -> None:
        which.add((one, step[one]))
        step[one], open_[one] = step[one] + 1, gradient()

    for _ in range(40):
        number += 1
        inside = sorted(one for one in step if rng.random() < 0.8)
        for one in step:
            since[one] = (since[one] or number) if one in inside else 0
        if not inside:
            continue
        gone = False
        seen: dict[int, Any] = {}
        for one in rng.sample(inside, len(inside)):
            late_records()
            seen[one] = shards.look(number)
            verdict = open_[one].joins(number, since[one], seen[one])
            while verdict != "give":
                ended(one, done if verdict == "done" else lost)
                verdict = open_[one].joins(number, since[one], seen[one])
            gone = gone or rng.random() < 0.1
        assert all(np.array_equal(seen[one], seen[inside[0]]) for one in inside)
        while not gone:
            bases = shards.versions.copy()
            records = []
            for fragment in range(fragments):
                who = [(one, step[one]) for one in inside if open_[one].missing[fragment]]
                if who:
                    records.append((fragment, number, int(bases[fragment]), who))
            rng.shuffle(records)
            cut = rng.randint(0, len(records)) if rng.random() < 0.4 else len(records)
            for record in records[:cut]:
                shards.push(*record)
            if cut < len(records):
                late += records[cut:]
                break
            heard = inside if rng.random() < 0.7 else rng.sample(inside, len(inside) - 1)
            for one in heard:
                ended(one, done)
                assert open_[one].joins(number, since[one], shards.versions) == "give"
            gone = len(heard) < len(inside)
    for applied in shards.applied:
        assert not [who for who, times in applied.items() if times > 1 and who not in lost]
        assert done <= applied.keys()
    assert len(done) >= 10
