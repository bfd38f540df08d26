"""Downpour's schedule, gate and settings. What holds for every policy: test_policy_contract.py."""

from typing import Any

import pytest

from pydownpour.errors import ConfigError
from pydownpour.policy import Actions, Apply, ClusterView, PushInfo, Scale, from_wire
from pydownpour.policy.downpour import Downpour

VIEW = ClusterView(epoch=1)


def test_the_push_test_stands_after_the_accumulation() -> None:
    """With n_push = 3 the first push carries one gradient, later ones three (Dean et al.)."""
    rule = Downpour(push_every=3, fetch_every=2).replica()
    assert [k for k in range(8) if rule.after_step(k, VIEW).push] == [0, 3, 6]
    # A fetch belongs before step k when k % n_fetch == 0, so it is asked for after step k - 1.
    assert [k for k in range(8) if rule.after_step(k, VIEW).fetch] == [1, 3, 5, 7]


def test_what_a_trainer_obeys_is_the_rules() -> None:
    rule = Downpour(in_flight=3, local_rate=0.5, land="keep", overlap=False).replica()
    assert (rule.in_flight, rule.local_rate, rule.land, rule.payload) == (3, 0.5, "keep", "accrued")
    assert rule.after_step(0, VIEW) == Actions(push=True, fetch=True, wait=True)


def test_every_push_is_applied_unscaled_when_it_comes() -> None:
    decision = Downpour().shard().announce(PushInfo(replica=3, clock=1, samples=8, norm=1e30), VIEW)
    assert decision == Apply(Scale(factor=1.0, staleness_power=0.0))


def test_warm_start_leaves_the_lowest_live_replica_alone() -> None:
    policy = Downpour(warm_start=100)
    assert policy.may_lease(2, (2, 5), 0) == ""
    assert "replica 2 trains alone, 99 of 100" in policy.may_lease(5, (2, 5), 99)
    assert policy.may_lease(5, (2, 5), 100) == ""
    assert policy.may_lease(5, (5,), 0) == ""


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"push_every": 0}, "push_every=0"),
        ({"fetch_every": 1.5}, "fetch_every=1.5"),
        ({"warm_start": -1}, "warm_start=-1"),
        ({"local_rate": float("nan")}, "local_rate=nan"),
        ({"push_every": "1"}, "push_every='1' must be a whole number"),
        ({"in_flight": True}, "in_flight=True must be a whole number"),
        ({"local_rate": "0.1"}, "local_rate='0.1' must be a number, not a str"),
        ({"overlap": "no"}, "overlap='no' must be True or False"),
        ({"land": "swap"}, "land='swap': choose one of replace, redo, keep"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Downpour(**settings)


def test_unknown_policies_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'swim'; known are bfasgd"):
        from_wire({"name": "swim"})
    with pytest.raises(ConfigError, match="unknown settings speed"):
        from_wire({"name": "downpour", "speed": 3})
