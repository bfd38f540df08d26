"""What holds for every policy: ours, and one that a user might write.

A new policy is one more row in ``POLICIES``; settings of it that are worth their own run go into
``SETTINGS``. ``pydownpour/testing/policies.py`` has the contract.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import pytest

from pydownpour.policy import (
    POLICIES,
    Accumulate,
    ClusterView,
    Decision,
    NotYet,
    Policy,
    PushInfo,
    ShardRule,
    Wait,
)
from pydownpour.testing import check_policy
from pydownpour.testing.policies import CONTRACT, SEEDS
from tests.fakes.policies import EveryFew, Few

SETTINGS: Final[dict[str, list[dict[str, Any]]]] = {
    "bfasgd": [{}, {"c_fetch": 0.5}, {"c_fetch": 0.0, "overlap": True}, {"deviation": 0.001}],
    "blockmomentum": [
        {"every": 2, "replicas": 2},
        {"every": 3, "nesterov": "cntk", "momentum": 0.5},
    ],
    "diloco": [{"every": 3}, {}],
    "modelaveraging": [{"every": 1}, {"every": 2, "combine": "sum", "by_samples": True}],
    "hardsync": [{}, {"ordered": True}, {"combine": "sum", "replicas": 3}, {"by_samples": True}],
    "softsync": [{}, {"n": 3}, {"n": 2, "replicas": 3, "divide_rate": True}],
    "staleness_aware": [{}, {"n": 1}, {"n": 2, "power": 0.5}],
    "ssp": [{}, {"slack": 0}, {"slack": None, "reads": "eager"}, {"slack": 1, "reads": "eager"}],
    "strom": [{}, {"threshold": 3.0, "fetch_every": 4}],
    "downpour": [{}, {"push_every": 3, "fetch_every": 2}, {"overlap": False, "land": "keep"}],
}
CASES: Final[list[Policy]] = [
    *(POLICIES[name](**case) for name in sorted(POLICIES) for case in SETTINGS.get(name, [{}])),
    EveryFew(),
]


@pytest.mark.parametrize("promise", CONTRACT)
@pytest.mark.parametrize("policy", CASES, ids=repr)
def test_every_policy_keeps(policy: Policy, promise: str) -> None:
    for seed in range(SEEDS):
        CONTRACT[promise](policy, seed)


# -- policies that do not --------------------------------------------------------------------------


class Twice(Few):
    def closed(self) -> None:
        self._here = 0


class Barren(Few):
    def due(self, view: ClusterView, now: float) -> Wait | None:
        return None if self.round else super().due(view, now)


class Forever(Few):
    def due(self, view: ClusterView, now: float) -> Wait | None:
        return Wait("four gradients") if self._here < 4 else None


class Deaf(Few):
    """Takes nothing of one replica, for ever."""

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return NotYet("nobody") if push.replica == 4 else super().announce(push, view)


class Naming(Few):
    def due(self, view: ClusterView, now: float) -> Wait | None:
        found = super().due(view, now)
        return dataclasses.replace(found, on=(1, 2, 3, 4)) if found and self.round else found


class Counting(Few):
    asked = 0

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        self.asked += 1
        return super().announce(push, view)

    def export(self) -> dict[str, Any]:
        return {**super().export(), "asked": self.asked}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.asked = state["asked"]


class Silent(Few):
    def due(self, view: ClusterView, now: float) -> Wait | None:
        found = super().due(view, now)
        return dataclasses.replace(found, whom="") if found else None


SHARED: list[int] = []


class Sharing(Few):
    def arrived(self, push: PushInfo) -> None:
        super().arrived(push)
        SHARED.append(push.replica)

    def export(self) -> dict[str, Any]:
        return {**super().export(), "shared": list(SHARED)}


def with_rule(kind: type[Few]) -> Policy:
    @dataclasses.dataclass(frozen=True)
    class Broken(EveryFew):
        def shard(self) -> ShardRule:
            return kind(self.count, self.staleness_power)

    return Broken()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Twice, r"closed\(\) must count the round"),
        (Barren, r"due\(\) closes a round without a gradient"),
        (Forever, "in a round that nobody closes, as \\(replica, step\\)|nobody can move: four"),
        (Deaf, "nobody can move"),
        (Counting, r"announce\(\) and due\(\) change nothing"),
        (Naming, r"it waits for \[.*\], and live are \["),
        (Silent, "Wait says for whom it waits"),
        (Sharing, "share their state|loaded"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_policy_that_breaks_it_is_told(kind: type[Few], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_policy(with_rule(kind))


def test_the_refused_and_the_open_are_counted() -> None:
    """A rule that accumulates into a round of its own invention."""

    class Ahead(Few):
        def announce(self, push: PushInfo, view: ClusterView) -> Decision:
            return Accumulate(self.round + (self.round > 0))

    with pytest.raises(AssertionError, match="accumulates into round 2, open is 1"):
        check_policy(with_rule(Ahead))
