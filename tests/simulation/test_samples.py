"""Work that is recorded was applied: the sample oracle under every setting, calm and with kills."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.coordinator.job_state import JobState
from pydownpour.policy import Policy
from pydownpour.policy.downpour import Downpour
from pydownpour.sim.checks.oracle import read
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import fault_plan
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from tests.fakes.policies import Choosy
from tests.simulation.mutations import stopped


def counted(
    policy: Policy,
    *,
    seed: int = 1,
    faults: str = "calm",
    wire_dtype: str = "float32",
    replicas: int = 3,
    backup: float = 8.0,
    change: Callable[[SampleOracle], None] = lambda oracle: None,
    virtual_s_max: float = 600.0,
) -> World:
    """Three replicas and two shards; every sample is one parameter."""
    oracle = SampleOracle(
        samples=300, passes=2, policy=policy, wire_dtype=wire_dtype, backup=backup
    )
    change(oracle)
    settings = Settings(
        seed=seed,
        replicas=replicas,
        shards=2,
        faults=fault_plan(faults),
        compute=ComputeModel(base_s=0.05, jitter=0.5),
        virtual_s_max=virtual_s_max,
    )
    return World(oracle.job, settings, samples=oracle)


def counts(world: World) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """How often each sample was applied."""
    return np.concatenate([read(shard) for shard in world.serving()])


def policies() -> list[Downpour]:
    """Each of what decides when a gradient is pushed."""
    return [
        Downpour(push_every=push, fetch_every=fetch, overlap=overlap, local_rate=0.0)
        for push in (1, 7, 1000)
        for fetch in (1, 1000)
        for overlap in (True, False)
    ]


@pytest.mark.parametrize("faults", ["calm", "kill", "reset"])
def test_a_unit_of_which_a_push_is_turned_down_goes_out_under_another_lease(faults: str) -> None:
    """What was taken of it is applied, so it is computed twice: the books of leases say that."""
    world = counted(Choosy(), faults=faults).run()
    assert world.checks.violations == []
    assert world.report["state"] == "done"
    assert counts(world).min() >= 2.0
    assert world.report["work"]["leases_ended"] > 0


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


def test_a_replica_that_stood_still_goes_on_under_its_leases() -> None:
    """Alone, it is called dead again and again; what it has is not lent to it once more."""
    world = counted(Downpour(push_every=2, local_rate=0.0), replicas=1)
    deaths = []

    def pause() -> None:
        world.processes.pause(world.processes.live["replica-0"])
        world.loop.at(world.loop.now + 5.0, resume)

    def resume() -> None:
        (member,) = core_of(world).members
        deaths.append(member.state)
        world.processes.resume(world.processes.live["replica-0"])
        if len(deaths) < 6:
            world.loop.at(world.loop.now + 0.37, pause)

    world.loop.at(4.1, pause)  # after a calm storm, in which all is healed
    world.run()
    assert world.checks.violations == []
    assert deaths == ["dead"] * 6
    assert set(counts(world).tolist()) == {2.0}
    assert world.report["replicas"][0]["units_refused"] == 0


def hanging(oracle: SampleOracle) -> None:
    """The first replica hangs inside a step, for ever; it lives and sends heartbeats."""

    async def train(replica: Any) -> None:
        async for unit in replica.work():
            if replica.id == 1 and replica.steps >= 6:
                await asyncio.sleep(1e6)
            for batch in unit.batches(oracle.batch):
                await replica.step(oracle.gradient(batch))

    oracle.job._train = train


@pytest.mark.parametrize("backup", [8.0, 0.0])
def test_a_unit_at_a_replica_that_hangs_is_lent_to_another(backup: float) -> None:
    world = counted(Downpour(local_rate=0.0), backup=backup, change=hanging, virtual_s_max=60.0)
    notes: dict[str, None] = {}

    def look() -> None:
        notes[core_of(world).notes.get("held", "")] = None
        world.loop.at(world.loop.now + 0.5, look)

    world.loop.at(1.0, look)
    world.run()
    said = "\n".join(notes)
    assert re.search(r"held long: unit \d+ of pass 1 at replica 1 for \d+\.\d s.*; usual is", said)
    if not backup:
        assert "BudgetSpent" in world.failure
        return
    assert world.checks.violations == []
    assert world.report["work"]["backups"] >= 1
    assert set(counts(world).tolist()) == {2.0}


def test_nobody_waits_for_the_last_unit_of_a_slow_replica() -> None:
    """At the tail of the work the quick ones do it, too; the slow one hears that it was late."""
    world = counted(Downpour(local_rate=0.0), change=lambda oracle: slow_once(oracle, 90.0))
    world.run()
    assert world.checks.violations == []
    assert world.report["seconds"] < 30.0
    assert world.report["work"]["backups"] >= 1


def slow_once(oracle: SampleOracle, seconds: float) -> None:
    """One step of the first replica takes so long."""
    waited: list[Any] = []

    async def train(replica: Any) -> None:
        async for unit in replica.work():
            for batch in unit.batches(oracle.batch):
                if replica.id == 1 and replica.steps == 20 and not waited:
                    waited.append(unit)
                    await asyncio.sleep(seconds)
                await replica.step(oracle.gradient(batch))

    oracle.job._train = train


@pytest.mark.parametrize("seed", range(12))
def test_what_an_operator_s_stop_leaves_is_in_the_parameters_or_not_recorded(seed: int) -> None:
    """Replicas push what they have accrued if there is time; else its units are not complete."""
    world = stopped(seed, "calm").run()
    assert world.report["state"] == "stopped"
    assert [v for v in world.checks.violations if "ends well" not in v] == []


def test_what_is_accrued_when_a_job_ends_is_pushed_before_the_goodbye() -> None:
    world = counted(Downpour(push_every=1000, local_rate=0.0), replicas=1)

    def end() -> None:
        core_of(world).finish("lunch", world.loop.now, outcome="stopped")

    world.loop.at(3.0, end)
    world.run()
    assert world.report["replicas"][0]["steps"] > 10
    assert world.report["pushes"]["applied"] == 2, "the first step's, and the rest at the end"
    assert counts(world).sum() == 5 * world.report["replicas"][0]["steps"]


def core_of(world: World) -> JobState:
    """The coordinator's."""
    assert world.coordinator is not None
    return world.coordinator.job


def test_a_unit_whose_report_is_under_way_is_not_done_again_when_the_next_one_raises() -> None:
    """Its gradients are applied: the goodbye says so, whatever became of the report."""
    job, failed = (
        dp.Job(
            parameters={"w": np.zeros(50, np.float32)}, optimizer=dp.SGD(lr=1.0),
            data=dp.Work(40, unit=4),
        ),
        list[int](),
    )  # fmt: skip

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for step, _ in enumerate(unit.batches(1), 1):
                await replica.step({"w": -np.ones(50, np.float32)})
                if not failed and replica._trainer.leases._told:
                    failed.append(step)
                    raise ValueError("while the report of the unit before is under way")

    report = dp.simulate(
        job, replicas=1, seed=1, links=dp.LinkModel(latency_s=0.03),
        compute=dp.ComputeModel(base_s=0.02, jitter=0.0),
    )  # fmt: skip
    assert (report["failure"], report["violations"], report["samples"]) == ("", [], 40)
    assert len(failed) == 1
    assert report["gradients"]["computed"] == 40 + failed[0], "of the unit that raised, no more"
