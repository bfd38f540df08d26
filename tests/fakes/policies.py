"""A policy as a user might write one, with everything a policy can ask for that ours do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydownpour.policy import (
    Accumulate,
    Actions,
    Apply,
    ClusterView,
    Decision,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    Scale,
    ShardRule,
    Wait,
)


@dataclasses.dataclass(frozen=True)
class EveryFew(Policy):
    """A few gradients are one update, whoever they are of, and weigh less the staler they are.

    Replicas run free, but for a slack: none is more steps ahead of the slowest.
    """

    count: int = 2
    slack: int = 3
    staleness_power: float = 0.5

    def replica(self) -> ReplicaRule:
        return Free(self.slack)

    def shard(self) -> ShardRule:
        return Few(self.count, self.staleness_power)


class Free(ReplicaRule):
    local_rate = 0.0

    def __init__(self, slack: int) -> None:
        self._slack = slack

    def after_step(self, clock: int, view: ClusterView) -> Actions:
        return Actions(
            push=True, fetch=True, wait=True, least_clock=max(0, clock + 1 - self._slack)
        )


class Few(ShardRule):
    combines = True
    mean = False

    def __init__(self, count: int, power: float) -> None:
        self._count = count
        self._scale = Scale(staleness_power=power)
        self._here = 0

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Accumulate(self.round, scale=self._scale)

    def arrived(self, push: PushInfo) -> None:
        self._here += 1

    def due(self, view: ClusterView, now: float) -> Wait | None:
        is_last = self._here > 0 and not view.live
        if self._here >= self._count or is_last:
            return None
        return Wait("another gradient, of {on}", on=view.live)

    def closed(self) -> None:
        super().closed()
        self._here = 0

    def export(self) -> dict[str, Any]:
        return {**super().export(), "here": self._here}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._here = state["here"]


@dataclasses.dataclass(frozen=True)
class Choosy(Policy):
    """Runs free, and takes each push but every third of a replica's; nobody is to blame."""

    def replica(self) -> ReplicaRule:
        return Free(10**6)

    def shard(self) -> ShardRule:
        return _Choosy()


class _Choosy(ShardRule):
    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Refuse("it is a third one") if push.clock % 3 == 0 else Apply()
