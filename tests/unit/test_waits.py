"""Who waited for whom: each second once, whoever asks meanwhile, and constant in size."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from pydownpour import limits
from pydownpour.limits import DEFAULT
from pydownpour.waits import WaitEntry, Waits, WaitsEntry, across, total


@dataclasses.dataclass
class Clock:
    """It is always the same time."""

    now: float

    def __call__(self) -> float:
        return self.now


def test_a_wait_counts_on_each_whom_it_is_for_as_long_as_it_is() -> None:
    waits = Waits()
    waits.held("a", 1, (2, 3), "replicas 2 and 3", 10.0)
    waits.held("a", 1, (3,), "replica 3", 12.0)
    waits.held("a", 1, (3,), "replica 3", 12.5)
    waits.let_go("a", 1, 15.0)
    entry = waits.entry(lambda: 99.0)
    assert (entry.count, entry.seconds, entry.unnamed_s) == (1, 5.0, 0.0)
    assert entry.pairs == [(1, 3, 5.0), (1, 2, 2.0)]
    assert entry.waiters == [(1, 5.0)]
    assert entry.waited_for == [(3, 5.0), (2, 2.0)]
    assert entry.ended == [WaitEntry(1, 1, [3], 5.0, "replica 3")]
    assert (entry.open_count, entry.open) == (0, [])


def test_a_wait_that_lasts_is_in_the_sums_once_however_often_they_are_asked_for() -> None:
    waits = Waits()
    waits.held("a", 1, (2,), "replica 2", 10.0)
    for now in (11.0, 12.0, 12.0, 14.0):
        entry = waits.entry(Clock(now))
        assert entry.seconds == now - 10.0
        assert entry.open == [WaitEntry(1, 1, [2], now - 10.0, "replica 2")]
        assert waits.seconds_of(1) == now - 10.0
    waits.let_go("a", 1, 15.0)
    assert waits.entry(lambda: 0.0).pairs == [(1, 2, 5.0)]


def test_another_connection_goes_on_with_the_wait_and_the_end_of_the_first_ends_nothing() -> None:
    waits = Waits()
    waits.held("old", 1, (2,), "replica 2", 10.0)
    waits.held("new", 1, (2,), "replica 2", 13.0)
    waits.let_go("old", 1, 14.0)
    assert waits.open == {1: "new"}
    waits.let_go("new", 1, 16.0)
    waits.let_go("new", 1, 17.0)
    entry = waits.entry(lambda: 99.0)
    assert (entry.count, entry.pairs, entry.waiters) == (1, [(1, 2, 6.0)], [(1, 6.0)])


def test_what_is_for_nobody_or_for_too_many_is_unnamed() -> None:
    waits, many = Waits(), tuple(range(2, 3 + limits.WAITED_FOR_NAMED_MAX))
    waits.held("a", 1, (), "blocks", 0.0)
    waits.held("a", 1, many, "many", 1.0)
    waits.held("a", 1, many[1:], "fewer", 3.0)
    entry = waits.entry(lambda: 4.0)
    assert (entry.seconds, entry.unnamed_s, len(entry.pairs)) == (4.0, 3.0, len(many) - 1)
    assert sum(seconds for *_, seconds in entry.pairs) == len(many) - 1


def test_only_long_waits_are_told_when_they_have_ended() -> None:
    waits = Waits()
    for number in range(30):
        began = 10.0 * number
        waits.held("a", 1, (2,), "replica 2", began)
        waits.let_go("a", 1, began + (DEFAULT.wait_notable_s if number % 2 else 1.9))
    numbers = [one.number for one in waits.entry(lambda: 0.0).ended]
    assert numbers == list(range(30, 0, -2))[: limits.WAITS_ENDED_TOLD_MAX][::-1]


def test_the_longest_that_last_are_told_and_words_are_cut() -> None:
    waits = Waits()
    for replica in range(9, 0, -1):
        waits.held("a", replica, (20,), "w" * 500, 10.0 - replica)
    entry = waits.entry(lambda: 11.0)
    assert [one.replica for one in entry.open] == [9, 8, 7, 6]
    assert entry.open_count == 9
    assert len(entry.open[0].words) == limits.WAIT_WORDS_LEN_MAX
    assert entry.outline().open == entry.open[:1]


def test_a_bounded_number_is_counted_by_name_and_the_rest_as_a_sum() -> None:
    """However many pairs there are, the largest come out, and nothing is lost."""
    waits, rng = Waits(dataclasses.replace(DEFAULT, wait_pairs_kept_max=64)), random.Random(1)
    now, slow = 0.0, Counter[tuple[int, int]]()
    for _ in range(5000):
        waiter, on = rng.randint(1, 60), rng.randint(61, 120)
        seconds = 50.0 if (waiter, on) == (7, 70) else 1.0
        slow[waiter, on] += int(seconds)
        waits.held("a", waiter, (on,), "", now)
        now += seconds
        waits.let_go("a", waiter, now)
    for _ in range(3):
        waits.held("a", 7, (70,), "", now)
        now += 1000.0
        waits.let_go("a", 7, now)
    entry = waits.entry(lambda: now)
    assert entry.seconds == sum(slow.values()) + 3000.0
    assert len(entry.pairs) == len(entry.waiters) == limits.WAITS_TOLD_MAX
    assert entry.pairs[0][:2] == (7, 70)
    for table, more in (
        (entry.pairs, entry.pairs_more_s), (entry.waiters, entry.waiters_more_s),
        (entry.waited_for, entry.waited_for_more_s),
    ):  # fmt: skip
        assert sum(row[-1] for row in table) + more == pytest.approx(entry.seconds)


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_a_slow_twin(seed: int) -> None:
    """Which notes each tick of every wait."""
    rng, waits = random.Random(seed), Waits()
    pairs, waiters = Counter[tuple[int, int]](), Counter[int]()
    open_ones: dict[int, tuple[str, tuple[int, ...]]] = {}
    for now in range(400):
        for replica, (_, on) in open_ones.items():
            waiters[replica] += 1
            pairs.update((replica, other) for other in on)
        now += 1
        replica, owner = rng.randint(1, 4), rng.choice("ab")
        if rng.random() < 0.6:
            on = tuple(sorted(rng.sample(range(5, 9), rng.randint(1, 3))))
            waits.held(owner, replica, on, "", float(now))
            open_ones[replica] = owner, on
        else:
            waits.let_go(owner, replica, float(now))
            if open_ones.get(replica, ("", ()))[0] == owner:
                del open_ones[replica]
        if rng.random() < 0.1:
            _ = waits.entry(Clock(now))
    entry = waits.entry(lambda: 400.0)
    assert {(waiter, on): seconds for waiter, on, seconds in entry.pairs} == dict(pairs)
    assert dict(entry.waiters) == dict(waiters)
    assert entry.seconds == sum(waiters.values())


def test_processes_of_one_place_add_up_and_number_on() -> None:
    one, two = Waits(), Waits()
    one.held("a", 1, (2,), "", 0.0)
    one.let_go("a", 1, 3.0)
    before = one.entry(lambda: 3.0)
    two.goes_on_from(before.count)
    two.held("b", 1, (2,), "", 4.0)
    two.let_go("b", 1, 9.0)
    two.held("b", 1, (3,), "", 10.0)
    both = total(before, two.entry(lambda: 11.0))
    assert (both.count, both.seconds) == (3, 9.0)
    assert both.pairs == [(1, 2, 8.0), (1, 3, 1.0)]
    assert [one.number for one in both.ended] == [1, 2]
    assert [one.number for one in both.open] == [3]


def test_across_shards_a_wait_is_as_long_as_at_the_slowest() -> None:
    """Each step waits at all shards at once."""
    one = WaitsEntry(count=3, seconds=5.0, pairs=[(1, 2, 5.0)], waiters=[(1, 5.0)])
    two = WaitsEntry(
        count=4, seconds=7.0, pairs=[(1, 2, 4.0), (3, 2, 3.0)], waiters=[(1, 4.0), (3, 3.0)]
    )
    both = across([one, two])
    assert both.pairs == [(1, 2, 5.0), (3, 2, 3.0)]
    assert both.waiters == [(1, 5.0), (3, 3.0)]
    assert both.count == 4


def test_where_nobody_ever_waited_nothing_is_looked_at() -> None:
    def never() -> float:
        raise AssertionError("the clock is asked")

    assert Waits().entry(never) == WaitsEntry()
