"""HardSync, step by step, and what becomes of a round when its members change."""

from __future__ import annotations

from typing import Any

import pytest

from pydownpour.errors import ConfigError
from pydownpour.policy import Accumulate, Actions, ClusterView, NotYet, PushInfo, ShardRule, Wait
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.pieces.combine import LATE_PATIENCE_S


def push(replica: int, round: int = 0, samples: int = 8) -> PushInfo:
    return PushInfo(replica, clock=1, samples=samples, norm=1.0, round=round)


def live(*ids: int) -> ClusterView:
    return ClusterView(epoch=1, live=ids)


def test_a_replica_pushes_after_each_step_and_waits_for_the_round() -> None:
    rule = HardSync().replica()
    expected = Actions(push=True, fetch=True, wait=True, after_round=True)
    assert [rule.after_step(k, ClusterView()) for k in range(3)] == [expected] * 3
    assert (rule.local_rate, rule.land, rule.payload) == (0.0, "replace", "accrued")


def test_a_round_is_one_gradient_of_every_live_replica() -> None:
    rule, view = HardSync().shard(), live(2, 3, 5)
    for who, missing in ((3, (2, 5)), (5, (2,))):
        assert rule.announce(push(who), view) == Accumulate(round=0)
        rule.arrived(push(who))
        assert rule.due(view, 0.0) == Wait("round 0 waits for {on}", on=missing)
    rule.arrived(push(2))
    assert rule.due(view, 0.0) is None
    rule.closed()
    assert rule.round == 1
    assert rule.due(view, 0.0) == Wait("round 1 waits for replicas 2, 3 and 5", on=(2, 3, 5))


def test_a_second_gradient_of_one_replica_waits_for_the_next_round() -> None:
    rule, view = HardSync().shard(), live(1, 2)
    rule.arrived(push(1))
    assert rule.announce(push(1), view) == NotYet("round 0 waits for replica 2", on=(2,))


def test_in_order_each_waits_for_those_with_lower_ids() -> None:
    rule, view = HardSync(ordered=True).shard(), live(1, 2, 3)
    words = "round 0 adds in the order of ids: replicas 1 and 2"
    assert rule.announce(push(3), view) == NotYet(words, on=(1, 2))
    for who in (1, 2, 3):
        assert rule.announce(push(who), view) == Accumulate(0)
        rule.arrived(push(who))
    assert rule.announce(push(3, round=0), live(3)) == NotYet("round 0 waits for a gradient")


@pytest.mark.parametrize(
    ("settings", "samples", "weight"), [({}, 5, 1.0), ({"by_samples": True}, 5, 5.0),
                                        ({"by_samples": True}, 0, 1.0)],
)  # fmt: skip
def test_weights(settings: dict[str, Any], samples: int, weight: float) -> None:
    decision = HardSync(**settings).shard().announce(push(1, samples=samples), live(1))
    assert decision == Accumulate(0, weight)


def test_the_first_round_waits_for_as_many_as_it_is_told() -> None:
    rule = HardSync(replicas=2).shard()
    rule.arrived(push(1))
    words = "round 0 waits for 2 replicas (replicas=...), 1 have come"
    assert rule.due(live(1), 0.0) == Wait(words)
    rule.arrived(push(2))
    assert rule.due(live(1, 2), 0.0) is None
    rule.closed()
    rule.arrived(push(1, round=1))
    assert rule.due(live(1), 0.0) is None


@pytest.mark.parametrize("view", [live(1, 2), live(1), live()], ids=["back", "gone", "all gone"])
def test_a_late_gradient_is_added_and_its_replica_still_owes_one(view: ClusterView) -> None:
    """Replica 2 was believed dead when round 0 was closed."""
    rule = HardSync().shard()
    rule.arrived(push(1))
    assert rule.due(live(1), 0.0) is None
    rule.closed()
    assert rule.announce(push(2, round=0), view) == Accumulate(round=1)
    rule.arrived(push(2, round=0))
    if view.live:
        assert isinstance(rule.due(view, 0.0), Wait)
        rule.arrived(push(1, round=1))
    assert (rule.due(view, 0.0) is None) == (2 not in view.live)
    rule.arrived(push(2, round=1))
    assert rule.due(view, 0.0) is None


def test_what_a_late_replica_owes_is_waited_for_no_longer_than_a_circle_of_shards_may_last() -> (
    None
):
    rule = HardSync().shard()
    rule.arrived(push(1))
    rule.closed()
    rule.arrived(push(2, round=0))
    assert rule.due(live(1, 2), 5.0) == Wait("round 1 waits for {on}", on=(1, 2))
    rule.arrived(push(1, round=1))
    owed = Wait("round 1 waits for {on}", 9.0 + LATE_PATIENCE_S, (2,))
    assert rule.due(live(1, 2), 9.0) == owed
    assert rule.due(live(1, 2), 10.9) == owed
    assert rule.due(live(1, 2, 3), 10.9) == Wait("round 1 waits for {on}", on=(2, 3))
    assert isinstance(rule.due(live(1, 2), 11.5), Wait), "it begins anew"
    assert rule.due(live(1, 2), 13.5) is None
    rule.closed()
    rule.arrived(push(1, round=2))
    assert rule.due(live(1, 2), 99.0) == Wait("round 2 waits for {on}", on=(2,)), "who is not late"


def test_shards_that_hear_of_a_newcomer_at_different_moments_are_level_after_its_next_round() -> (
    None
):
    """Shard a knows of replica 3 before round 0 is closed, shard b only behind that."""
    a, b = HardSync().shard(), HardSync().shard()
    shards = {"a": a, "b": b}
    view = {"a": live(1, 2, 3), "b": live(1, 2)}

    def give(who: int, made_for: dict[str, int]) -> None:
        for name, rule in shards.items():
            rule.arrived(push(who, made_for[name]))
            while rule.due(view[name], 0.0) is None:
                rule.closed()

    def rounds(*rules: ShardRule) -> dict[str, int]:
        return {name: rule.round for name, rule in zip(shards, rules, strict=True)}

    give(1, {"a": 0, "b": 0})
    give(2, {"a": 0, "b": 0})
    assert rounds(a, b) == {"a": 0, "b": 1}  # 1 and 2 wait for a, which waits for 3
    view["b"] = live(1, 2, 3)
    give(3, {"a": 0, "b": 0})
    assert rounds(a, b) == {"a": 1, "b": 1}
    for step in range(1, 4):
        for who in (3, 1, 2):
            give(who, {"a": step, "b": step})
        assert rounds(a, b) == {"a": step + 1, "b": step + 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"combine": "median"}, "combine='median': choose mean or sum"),
        ({"ordered": 1}, "ordered=1 must be True or False"),
        ({"replicas": 0}, "replicas=0 must be at least 1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HardSync(**settings)
