"""Policies are pure: what they answer depends on their arguments alone."""

from typing import Any

import pytest

from pydownpour.errors import ConfigError
from pydownpour.policy import POLICIES, Downpour, PushInfo, from_wire


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_survives_the_wire(name: str) -> None:
    policy = POLICIES[name]()
    assert from_wire(policy.to_wire()) == policy


def test_the_push_test_stands_after_the_accumulation() -> None:
    """With n_push = 3 the first push carries one gradient, later ones three (Dean et al.)."""
    policy = Downpour(push_every=3, fetch_every=2)
    assert [k for k in range(8) if policy.after_step(k).push] == [0, 3, 6]
    # A fetch belongs before step k when k % n_fetch == 0, so it is asked for after step k - 1.
    assert [k for k in range(8) if policy.after_step(k).fetch] == [1, 3, 5, 7]


def test_every_push_is_admitted_unscaled() -> None:
    decision = Downpour().admit(PushInfo(replica=3, clock=1, samples=8, norm=1e30))
    assert decision.accept
    assert decision.scale == 1.0


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
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Downpour(**settings)


def test_unknown_policies_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'swim'; known are downpour"):
        from_wire({"name": "swim"})
    with pytest.raises(ConfigError, match="unknown settings speed"):
        from_wire({"name": "downpour", "speed": 3})
