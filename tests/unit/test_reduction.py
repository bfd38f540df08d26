"""Reducing among replicas: who sends to whom, one round, and who has which gradient."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pydownpour.policy import Reduction
from pydownpour.policy.reductions import TOPOLOGIES, Place, Share
from pydownpour.replica.encoded import EncodedPush
from pydownpour.replica.pushes import Base, Push
from pydownpour.replica.reduction import plan
from pydownpour.replica.reduction.gradient import Gradient
from pydownpour.replica.reduction.round import Round
from pydownpour.wire.messages import Group, GroupMember

# -- places ----------------------------------------------------------------------------------------


def places(how: str, count: int, listening: int, fragments: int = 40) -> list[Place]:
    return [TOPOLOGIES[how](index, count, listening, fragments) for index in range(count)]


def share_of(place: Place, number: int) -> Share:
    (share,) = [one for one in place.shares if one.number == number]
    return share


@pytest.mark.parametrize("how", TOPOLOGIES)
@pytest.mark.parametrize("count", range(1, 18))
def test_each_gradient_reaches_the_one_that_pushes_a_fragment_once(how: str, count: int) -> None:
    """Whoever listens; and only who does is called."""
    for listening in {1, 2, (count + 1) // 2, count} & set(range(1, count + 1)):
        all_ = places(how, count, listening)
        numbers = {share.number for share in all_[0].shares}
        assert [place.index for place in all_] == list(range(count))
        for number in numbers:
            shares = [share_of(place, number) for place in all_]
            assert len({share.fragments for share in shares}) == 1
            (owner,) = [index for index, share in enumerate(shares) if share.parent is None]
            added = [owner]
            for index in added:
                assert not shares[index].children or index < listening, "who is called listens"
                for child in shares[index].children:
                    assert shares[child].parent == index
                    added.append(child)
            assert sorted(added) == list(range(count))
        parts = sorted((share.fragments for share in all_[0].shares), key=lambda part: part.start)
        assert [fragment for part in parts for fragment in part] == list(range(40))


@pytest.mark.parametrize("how", TOPOLOGIES)
@pytest.mark.parametrize(("count", "listening"), [(2, 1), (2, 2), (5, 5), (7, 4), (9, 2), (16, 16)])
def test_what_one_sends_comes_in_the_order_in_which_the_other_goes_through_it(
    how: str, count: int, listening: int
) -> None:
    all_ = places(how, count, listening)
    for place in all_:
        for child in place.children:
            sent = [one.number for one in all_[child].shares if one.parent == place.index]
            assert sent == [one.number for one in place.from_child(child)]
            given = [one.number for one in reversed(place.shares) if child in one.children]
            assert given == [one.number for one in all_[child].from_parent(place.index)]


@pytest.mark.parametrize("count", range(1, 34))
def test_in_a_tree_all_fragments_go_one_way_and_it_is_not_deep(count: int) -> None:
    for listening in range(1, count + 1):
        shares = [place.shares[0] for place in places("tree", count, listening)]
        assert [index for index, share in enumerate(shares) if share.parent is None] == [0]
        for above in shares if listening == count else []:
            depth = 0
            while above.parent is not None:
                above, depth = shares[above.parent], depth + 1
            assert depth <= count.bit_length() - 1


@pytest.mark.parametrize("count", [2, 4, 8, 16, 31])
def test_where_all_listen_nobody_has_more_children_than_it_should(count: int) -> None:
    most = {
        how: max(len(place.children) for place in places(how, count, count)) for how in TOPOLOGIES
    }
    assert most == {"tree": min(2, count - 1), "ring": 1}


@pytest.mark.parametrize("members", range(2, 33))
def test_a_ring_s_bytes_are_the_formula_s_at_each_member(members: int) -> None:
    """Each share has p - 1 hops for the sum and for the parameters: 2 (p - 1)/p W a member."""
    fragments = 6 * members
    for place in places("ring", members, members, fragments):
        up = sum(len(share.fragments) for share in place.shares if share.parent is not None)
        down = sum(len(share.fragments) * len(share.children) for share in place.shares)
        assert members * up == members * down == (members - 1) * fragments
        assert [len(share.fragments) for share in place.own] == [fragments // members]


def test_who_cannot_listen_is_spread_over_those_that_do() -> None:
    tree = places("tree", 9, 2)
    assert [len(place.children) for place in tree[:2]] == [4, 4]
    assert all(not place.children for place in tree[2:])
    ring = places("ring", 9, 2)
    assert [place.children for place in ring[:2]] == [(1, 2, 4, 6, 8), (0, 3, 5, 7)]
    assert all((place.children, place.own) == ((), ()) for place in ring[2:])
    alone = places("ring", 3, 1)
    assert alone[0].children == (1, 2)
    assert not alone[0].is_shared, "one that listens alone pushes for all"


def test_there_may_be_fewer_fragments_than_members() -> None:
    for place in places("ring", 5, 5, fragments=3):
        assert sorted(len(share.fragments) for share in place.shares) == [0, 0, 1, 1, 1]


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
    tree = Reduction(how="tree")
    assert plan.place_in(four, 1, tree, 8) == Place(1, (Share(0, range(8), 0, (3,)),))
    ring = plan.place_in(four, 2, Reduction(how="ring"), 8)
    assert [share.number for share in ring.shares] == [0, 1, 2], "three of them listen"


# -- a round ---------------------------------------------------------------------------------------


ALL = Share(0, range(4), None, (5, 6))


def test_a_fragment_is_added_when_all_of_it_is_here() -> None:
    round = Round(1, Place(0, (ALL,)))
    round.landed(5, 3)
    assert list(round.ready(ALL)) == [], "the member's own is missing"
    round.give()
    assert list(round.ready(ALL)) == [], "the other child's is missing"
    round.landed(6, 2)
    assert list(round.ready(ALL)) == [0, 1]
    round.add(ALL, range(0, 2))
    assert list(round.ready(ALL)) == []
    for child in (5, 6):
        round.landed(child, 4)
        round.whole(child, 0, 2, 10 * child)
    round.add(ALL, round.ready(ALL))
    assert round.is_summed(ALL)
    assert round.totals(ALL, 1, 7) == (5, 117)


def test_a_sum_is_whole_when_its_children_have_said_so() -> None:
    one = Share(0, range(1), None, (2,))
    round = Round(3, Place(0, (one,)))
    round.give()
    round.landed(2, 1)
    round.add(one, round.ready(one))
    assert (round.is_summed(one), round.missing) == (False, [2])
    round.whole(2, 0, 1, 5)
    assert (round.is_summed(one), round.missing) == (True, [])


def test_who_has_no_children_is_never_waiting() -> None:
    leaf = Share(0, range(3), 1, ())
    round = Round(1, Place(4, (leaf,)))
    assert not round.is_summed(leaf)
    round.give()
    assert list(round.ready(leaf)) == [0, 1, 2]
    round.add(leaf, round.ready(leaf))
    assert round.is_summed(leaf)
    assert round.totals(leaf, 1, 4) == (1, 4)


def test_what_a_child_sends_of_one_share_is_none_of_the_next() -> None:
    """Member 1 of a ring of three: share 2 begins here, 0 and 1 come from behind."""
    place = TOPOLOGIES["ring"](1, 3, 3, 6)
    begun, passed, own = place.shares
    assert [one.number for one in place.shares] == [2, 0, 1]
    round = Round(1, place)
    round.give()
    assert list(round.ready(begun)) == [4, 5]
    round.landed(2, 1)
    assert list(round.ready(passed)) == [0]
    assert list(round.ready(own)) == []
    round.landed(2, 3)
    assert list(round.ready(passed)) == [0, 1]
    assert list(round.ready(own)) == [2]
    round.whole(2, 0, 2, 20)
    assert round.missing == [2], "its sum of the other share"
    round.whole(2, 1, 2, 20)
    assert round.missing == []


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
