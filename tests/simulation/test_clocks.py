"""A gate of clocks holds nobody up whose gradient went nowhere: a clock is what was finished."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.policy import (
    Actions,
    Apply,
    ClusterView,
    Decision,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    ShardRule,
)
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import fault_plan
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World

SAMPLES = 120


@dataclasses.dataclass(frozen=True)
class Gated(Policy):
    """None is more than a slack ahead; pushes are rare, and every so many are refused."""

    slack: int = 1
    push_every: int = 1
    refuse_every: int = 0
    wait: bool = True

    def replica(self) -> ReplicaRule:
        return Gates(self)

    def shard(self) -> ShardRule:
        return Refusing(self.refuse_every)


class Gates(ReplicaRule):
    local_rate = 0.0

    def __init__(self, settings: Gated) -> None:
        self.settings = settings
        self.in_flight = 1 if settings.wait else 4

    def after_step(self, clock: int, view: ClusterView) -> Actions:
        least = max(0, clock + 1 - self.settings.slack)
        is_due = (clock + 1) % self.settings.push_every == 0
        return Actions(push=is_due, fetch=True, wait=self.settings.wait, least_clock=least)


class Refusing(ShardRule):
    def __init__(self, every: int) -> None:
        self.every = every

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        if self.every and push.clock % self.every == 0:
            return Refuse("this one is not wanted")
        return Apply()


def world(
    policy: Gated,
    *,
    poison: bool = False,
    quiet: bool = False,
    faults: str = "calm",
    seed: int = 1,
) -> World:
    """Three replicas, two shards; the first replica's gradients are NaN now and then.

    ``quiet``: what the first replica's say, and all of them for the first shard, is nothing.
    """
    job = dp.Job(
        parameters={"w": np.zeros(4096, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=policy,
        data=dp.Work(SAMPLES, unit=1),
        codec=dp.Threshold(tau=0.5) if quiet else None,
        name="gated",
    )

    @job.replica
    async def train(replica: Any) -> None:
        steps = 0
        async for unit in replica.work():
            for batch in unit.batches(1):
                steps += 1
                gradient = np.full(4096, -1.0, np.float32)
                if poison and replica.id == 1 and steps % 9 in (3, 4, 5):
                    gradient[7] = np.nan
                if quiet:
                    gradient[: 4096 if replica.id == 1 else 2048] = -1e-6
                await replica.step({"w": gradient}, samples=len(batch))

    settings = Settings(
        seed=seed,
        shards=2,
        replicas=3,
        faults=fault_plan(faults),
        compute=ComputeModel(base_s=0.05, jitter=0.5),
        proxied=0.3 if seed % 2 else 0.0,
        virtual_s_max=300.0,
    )
    return World(job, settings)


CASES = {
    "poisoned": (Gated(), "poison"),
    "poisoned, at a barrier": (Gated(slack=0), "poison"),
    "poisoned, in the background": (Gated(wait=False), "poison"),
    "pushes rarely": (Gated(push_every=4), ""),
    "refused": (Gated(refuse_every=3), ""),
    "refused, in the background": (Gated(refuse_every=3, wait=False), ""),
    "says nothing": (Gated(), "quiet"),
    "says nothing, in the background": (Gated(wait=False), "quiet"),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_whoever_pushes_nothing_holds_nobody_at_a_clock(case: str, seed: int) -> None:
    policy, how = CASES[case]
    done = world(policy, poison=how == "poison", quiet=how == "quiet", seed=seed).run()
    assert done.checks.violations == []
    assert done.report["units"] == SAMPLES
