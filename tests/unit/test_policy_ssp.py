"""SSP: Bosen's read rule step by step, and what it promises in every order of events."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from pydownpour.errors import ConfigError
from pydownpour.policy import Actions, Apply, ClusterView, PushInfo
from pydownpour.policy.ssp import SSP
from pydownpour.testing.policies import Member, Play


def after(policy: SSP, clock: int, copy_clock: int) -> Actions:
    return policy.replica().after_step(clock, ClusterView(1, copy_clock=copy_clock))


def test_lazily_a_copy_is_fetched_only_when_it_is_too_old_and_when_all_are_so_far() -> None:
    """Behind c steps it may be of clock c - s at the least."""
    policy = SSP(slack=2)
    on = Actions(push=True, fetch=False)
    assert [after(policy, k, 0) for k in range(2)] == [on, on]
    assert after(policy, 2, 0) == Actions(push=True, fetch=True, wait=True, least_clock=1)
    assert after(policy, 2, 1) == on
    assert after(policy, 7, 5) == Actions(push=True, fetch=True, wait=True, least_clock=6)
    assert after(policy, 7, 6) == on


def test_eagerly_it_is_fetched_behind_each_step_and_waited_for_only_when_it_is_too_old() -> None:
    policy = SSP(slack=2, reads="eager")
    assert after(policy, 7, 6) == Actions(push=True, fetch=True)
    assert after(policy, 7, 5) == Actions(push=True, fetch=True, wait=True, least_clock=6)


@pytest.mark.parametrize("reads", ["lazy", "eager"])
def test_without_slack_each_step_waits_for_everybody(reads: Any) -> None:
    policy = SSP(slack=0, reads=reads)
    for k in range(4):
        assert after(policy, k, k) == Actions(push=True, fetch=True, wait=True, least_clock=k + 1)


@pytest.mark.parametrize("slack", [None, math.inf])
def test_an_infinite_slack_waits_for_nobody(slack: Any) -> None:
    assert SSP(slack=slack) == SSP(slack=None)
    assert after(SSP(slack=slack), 10**6, 0) == Actions(push=True, fetch=False)
    assert after(SSP(slack=slack, reads="eager"), 10**6, 0) == Actions(push=True, fetch=True)


def test_what_a_trainer_obeys_is_the_rules() -> None:
    rule = SSP(in_flight=3, local_rate=0.5).replica()
    assert (rule.in_flight, rule.local_rate, rule.land, rule.payload) == (3, 0.5, "redo", "accrued")
    assert SSP().replica().local_rate is None
    decision = SSP().shard().announce(PushInfo(3, 1, 8, 1.0), ClusterView(1))
    assert decision == Apply()


class Reads(Play):
    """Notes which updates are in each copy, and looks at it whenever a step begins."""

    def __init__(self, slack: int | None, **rest: Any) -> None:
        super().__init__(SSP(slack=slack), **rest)
        self.slack = slack
        self.copies: dict[int, set[tuple[int, int]]] = {m.id: set() for m in self.members}
        self.spread = 0

    def _move(self, m: Member) -> None:
        begins = m.open_push is None and not m.fetches
        lands = m.open_push is None and m.fetches
        if begins:
            self.look(m)
            self.copies[m.id].add((m.id, m.clock + 1))  # its own step, at once
        super()._move(m)
        if lands:
            self.copies[m.id] = {who for update in self.updates for who in update}

    def look(self, m: Member) -> None:
        """What must be in a copy that a step at clock c is computed from."""
        copy, live = self.copies[m.id], [q for q in self.members if q.is_live and not q.is_done]
        assert {(m.id, t + 1) for t in range(m.clock)} <= copy, "own updates are always visible"
        if self.slack is None:
            return
        for q in live:
            must = {(q.id, t + 1) for t in range(m.clock - self.slack)}
            assert must <= copy, f"{m.id} at clock {m.clock} lacks {must - copy}"
        self.spread = max(self.spread, m.clock - min(q.clock for q in live))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slack", [0, 1, 3, None])
def test_reads_are_within_the_slack_in_every_order_of_events(slack: int | None, seed: int) -> None:
    rng = random.Random(seed)
    play = Reads(slack, members=4, steps=12, rng=rng)
    if seed % 3 == 0:
        for _ in range(rng.randint(0, 60)):
            play.turn()
        play.members[0].is_live = False
    play.run()
    assert slack is None or play.spread <= slack


def test_the_slack_is_used() -> None:
    spreads = []
    for seed in range(20):
        play = Reads(3, members=4, steps=12, rng=random.Random(seed))
        play.run()
        spreads.append(play.spread)
    assert max(spreads) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slack": -1}, "slack=-1 must be at least 0"),
        ({"slack": 1.5}, "slack=1.5 must be a whole number"),
        ({"reads": "often"}, "reads='often': choose lazy or eager"),
        ({"in_flight": 0}, "in_flight=0 must be at least 1"),
        ({"local_rate": -1.0}, "local_rate=-1 is out of range"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SSP(**settings)
