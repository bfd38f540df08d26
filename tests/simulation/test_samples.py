"""Work that is recorded was applied: the sample oracle under every setting, calm and with kills."""

from __future__ import annotations

import numpy as np
import pytest

from pydownpour.policy import Downpour
from pydownpour.sim.compute import ComputeModel
from pydownpour.sim.oracle import read
from pydownpour.sim.plans import Plan, plan
from pydownpour.sim.samples import SampleOracle
from pydownpour.sim.world import Settings, World


def counted(
    policy: Downpour, *, seed: int = 1, faults: str | Plan = "calm", wire_dtype: str = "float32"
) -> World:
    """Three replicas and two shards; every sample is one parameter."""
    oracle = SampleOracle(samples=300, passes=2, policy=policy, wire_dtype=wire_dtype)
    settings = Settings(
        seed=seed,
        replicas=3,
        shards=2,
        faults=plan(faults) if isinstance(faults, str) else faults,
        compute=ComputeModel(base_s=0.05, jitter=0.5),
        virtual_s_max=600.0,
    )
    return World(oracle.job, settings, samples=oracle)


def counts(world: World) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """How often each sample was applied."""
    shards = [service.shard for _, service in sorted(world.shard_services.items())]
    return np.concatenate([read(shard) for shard in shards if shard is not None])


def policies() -> list[Downpour]:
    """Each of what decides when a gradient is pushed."""
    return [
        Downpour(push_every=push, fetch_every=fetch, overlap=overlap, local_rate=0.0)
        for push in (1, 7, 1000)
        for fetch in (1, 1000)
        for overlap in (True, False)
    ]


@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
@pytest.mark.parametrize("policy", policies(), ids=lambda p: f"{p.push_every}-{p.fetch_every}")
def test_each_sample_counts_exactly_once_a_pass(policy: Downpour, wire_dtype: str) -> None:
    world = counted(policy, wire_dtype=wire_dtype).run()
    assert world.checks.violations == []
    assert world.report["state"] == "done"
    assert world.report["work"]["leases_ended"] == 0
    assert set(counts(world).tolist()) == {2.0}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", policies(), ids=lambda p: f"{p.push_every}-{p.fetch_every}")
def test_nothing_recorded_is_lost_when_replicas_are_killed(policy: Downpour, seed: int) -> None:
    world = counted(policy, seed=seed, faults="kill").run()
    assert world.checks.violations == []
    assert world.faults > 0
    assert counts(world).min() >= 2.0
    assert world.report["units"] == world.report["work"]["units_total"]


def test_a_policy_s_schedule_is_kept_however_small_the_units_are() -> None:
    """Units whose gradients wait for the next push do not stop their replica from going on."""
    world = counted(Downpour(push_every=7, local_rate=0.0)).run()
    steps = sum(replica["steps"] for replica in world.report["replicas"])
    sent = world.report["pushes"]["sent"]
    assert steps / 7 <= sent <= steps / 7 + 3 * len(world.report["replicas"])
