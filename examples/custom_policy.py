"""A policy of one's own: synchronous rounds that do not wait for the last few.

    pydownpour run custom_policy.py --shards 2 --replicas 4
    pydownpour sim custom_policy.py --replicas 8 --seed 3 --faults slow

A round of ``dp.HardSync`` waits for every live replica, so one slow machine sets everybody's pace.
Here it is closed as soon as a quorum of them gave a gradient. Who comes later loses nothing: its
gradient goes into the next round, with a smaller weight because it is stale. (Chen et al., 2016,
"Revisiting Distributed Synchronous SGD", drop such gradients and call those who sent them backup
workers; with unequal machines that throws the slow ones' work away.)

A policy is a frozen description that makes two small machines, one for each replica and one for
each shard. They hold no socket and no clock: they are told what happened and say what to do. So
the same file runs on machines and in the simulator, and ``pydownpour.testing.check_policy`` plays
it through many orders of events (``tests/e2e/test_custom_policy.py`` does).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import mlp

import pydownpour as dp
from pydownpour.data import digits
from pydownpour.policy import (
    Accumulate,
    ClusterView,
    Decision,
    Policy,
    PushInfo,
    ReplicaRule,
    ShardRule,
    Wait,
)


@dataclasses.dataclass(frozen=True)
class Quorum(Policy):
    """Rounds of a share of the live replicas.

    Args:
        share: Of the live replicas, whose gradients close a round; 1 is ``dp.HardSync``.
        late_weight: What a gradient counts for that was made for an earlier round.
    """

    share: float = 0.75
    late_weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise dp.ConfigError(f"share={self.share} must be above 0 and at most 1")

    def replica(self) -> ReplicaRule:
        """Push after each step, and go on with the parameters of the next round."""
        return dp.HardSync().replica()

    def shard(self) -> ShardRule:
        return Rounds(self.share, self.late_weight)


class Rounds(ShardRule):
    """A shard's half. Its whole state is in ``export``, so it moves with the shard."""

    combines = True

    def __init__(self, share: float, late_weight: float) -> None:
        self.share, self.late_weight = share, late_weight
        self.here: set[int] = set()  # replicas that gave a gradient to the open round

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        """Asked before a push's bytes come, perhaps more than once: it changes nothing."""
        is_late = push.round < self.round
        return Accumulate(self.round, weight=self.late_weight if is_late else 1.0)

    def arrived(self, push: PushInfo) -> None:
        self.here.add(push.replica)

    def due(self, view: ClusterView, now: float) -> Wait | None:
        """None closes the round; else who waits is told for whom."""
        quorum = max(1, math.ceil(self.share * len(view.live) - 1e-9))
        if len(self.here) >= quorum:
            return None
        missing = tuple(one for one in view.live if one not in self.here)
        more = quorum - len(self.here)
        return Wait(f"round {self.round} waits for {more} of {{on}}", on=missing)

    def closed(self) -> None:
        super().closed()  # counts the round
        self.here.clear()

    def export(self) -> dict[str, Any]:
        return {**super().export(), "here": sorted(self.here)}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.here = set(state["here"])


x, y, x_test, y_test = digits()

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    optimizer=dp.Adagrad(lr=0.05, initial=0.1),
    policy=Quorum(share=0.75),
    data=dp.Work(len(x), unit=75, passes=30),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    async for unit in replica.work():
        for batch in unit.batches(15):
            loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
            await replica.step(grads, loss=loss)


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}
