"""n-softsync and staleness-aware rounds: when they close, how stale they are, what counts how."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest

from pydownpour.errors import ConfigError
from pydownpour.policy import Accumulate, Actions, Apply, ClusterView, Policy, PushInfo, Scale, Wait
from pydownpour.policy.softsync import Softsync
from pydownpour.policy.staleness_aware import StalenessAware


def push(replica: int, round: int = 0) -> PushInfo:
    return PushInfo(replica, clock=1, samples=8, norm=1.0, round=round)


def live(count: int) -> ClusterView:
    return ClusterView(epoch=1, live=tuple(range(1, count + 1)))


@pytest.mark.parametrize("policy", [Softsync(n=3), StalenessAware(n=3), StalenessAware()])
def test_a_replica_pushes_and_fetches_after_each_step_and_waits_for_nobody(policy: Policy) -> None:
    rule = policy.replica()
    expected = Actions(push=True, fetch=True, wait=True)
    assert [rule.after_step(k, ClusterView(1)) for k in range(3)] == [expected] * 3
    assert (rule.local_rate, rule.land, rule.payload) == (0.0, "replace", "accrued")
    behind = Softsync(overlap=True).replica().after_step(0, ClusterView(1))
    assert behind == Actions(push=True, fetch=True)


@pytest.mark.parametrize(
    ("n", "replicas", "expected"), [(1, 30, 30), (2, 30, 15), (4, 30, 7), (30, 30, 1), (31, 30, 1)]
)
def test_a_round_is_the_floor_of_lambda_over_n(n: int, replicas: int, expected: int) -> None:
    for rule, view in (
        (Softsync(n=n).shard(), live(replicas)),
        (Softsync(n=n, replicas=replicas).shard(), live(2)),
    ):
        for one in range(expected):
            assert isinstance(rule.due(view, 0.0), Wait)
            assert rule.announce(push(7), view) == Accumulate(0), "whoever they are of"
            rule.arrived(push(7))
            assert (rule.due(view, 0.0) is None) == (one + 1 == expected)
        rule.closed()
        assert (rule.round, rule.due(view, 0.0) is None) == (1, False)


def test_who_dies_makes_the_share_smaller_and_the_last_one_s_gradient_is_not_kept_open() -> None:
    rule = Softsync(n=1).shard()
    rule.arrived(push(1))
    assert rule.due(live(3), 0.0) == Wait("round 0 waits for 2 more gradients, whoever they are of")
    assert rule.due(live(1), 0.0) is None
    assert rule.due(live(0), 0.0) is None
    rule.closed()
    assert isinstance(rule.due(live(0), 0.0), Wait), "there is nothing to close"


def test_how_a_gradient_counts() -> None:
    view = live(4)
    assert Softsync(n=4, divide_rate=True).shard().announce(push(1), view) == Accumulate(
        0, scale=Scale(factor=0.25)
    )
    aware = StalenessAware(n=2).shard().announce(push(1), view)
    assert aware == Accumulate(0, scale=Scale(staleness_power=1.0))
    alone = StalenessAware(power=0.5).shard().announce(push(1), view)
    assert alone == Apply(Scale(staleness_power=0.5))


def staleness(policy: Policy, replicas: int, rounds: int, jitter: float) -> Counter[int]:
    """Of gradients, but everybody's first one; only computing takes time, about the same each."""
    rng, rule, view = random.Random(1), policy.shard(), live(replicas)
    told: Counter[int] = Counter()
    base = dict.fromkeys(view.live, 0)
    due = [(rng.gauss(1.0, jitter), who) for who in view.live]
    heapq.heapify(due)
    while rule.round < rounds:
        now, who = heapq.heappop(due)
        one = push(who, base[who])
        assert isinstance(rule.announce(one, view), Accumulate)
        told[rule.round - one.round] += base[who] > 0
        rule.arrived(one)
        if rule.due(view, now) is None:
            rule.closed()
        base[who] = rule.round
        heapq.heappush(due, (now + max(0.0, rng.gauss(1.0, jitter)), who))
    return told


@pytest.mark.parametrize("n", [1, 2, 5, 15, 30])
def test_the_staleness_is_about_n_and_hardly_ever_above_twice_that(n: int) -> None:
    """30 replicas, 5 % jitter, 400 rounds or more. For n = lambda the mean is exactly n - 1."""
    told = staleness(Softsync(n=n), replicas=30, rounds=max(400, 100 * n), jitter=0.05)
    count = sum(told.values())
    mean = sum(tau * many for tau, many in told.items()) / count
    assert abs(round(mean, 1) - n) <= 1
    assert sum(many for tau, many in told.items() if tau > 2 * n) / count < 1e-3


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (Softsync, {"n": 0}, "n=0 must be at least 1"),
        (Softsync, {"replicas": 0}, "replicas=0 must be at least 1"),
        (Softsync, {"combine": "median"}, "combine='median': choose mean or sum"),
        (Softsync, {"divide_rate": 1}, "divide_rate=1 must be True or False"),
        (StalenessAware, {"n": 1.5}, "n=1.5 must be a whole number"),
        (StalenessAware, {"power": 9}, "power=9 is out of range; it must be 0 to 8"),
        (StalenessAware, {"combine": "max"}, "combine='max': choose mean or sum"),
    ],
)
def test_settings_out_of_range_are_named(
    kind: type[Policy], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(**settings)
