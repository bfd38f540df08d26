"""Fault plans are data: complete, checked, and doing what they say."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from pydownpour.errors import ConfigError
from pydownpour.sim.faults.kinds import FAULTS
from pydownpour.sim.faults.plans import PLANS, Dose, FaultName, FaultPlan, fault_plan
from pydownpour.sim.faults.storm import drawn
from pydownpour.sim.trace import Trace
from pydownpour.sim.world import swarm


def test_every_name_of_a_fault_has_its_function() -> None:
    assert set(get_args(FaultName)) == set(FAULTS)


def test_every_fault_is_in_a_plan() -> None:
    assert {dose.fault for each in PLANS.values() for dose in each.doses} == set(FAULTS)


def test_a_swarm_may_draw_everything_a_job_can_survive() -> None:
    """But moves and switches, which nobody's fault is: they have plans of their own."""
    honest = set(FAULTS) - {"doom", "hostile", "move", "switch"}
    assert {dose.fault for dose in PLANS["swarm"].doses} == honest


def test_a_seed_draws_some_doses_and_rates_of_its_own() -> None:
    doses = PLANS["swarm"].doses
    mixes = [drawn(doses, random.Random(seed)) for seed in range(20)]
    assert all(0 < len(mix) < len(doses) for mix in mixes)
    assert len({mix for mix in mixes}) == len(mixes)


def test_wrong_names_and_numbers_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="no fault plan 'storm'; there are calm, kill"):
        fault_plan("storm")
    with pytest.raises(ConfigError, match="fault 'fire' is unknown; known are kill, power"):
        Dose("fire", 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="every_s must be positive"):
        Dose("kill", 0.0)
    with pytest.raises(ConfigError, match="for_s a range"):
        Dose("pause", 1.0, (2.0, 1.0))


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"doom"}))
def test_each_fault_strikes_and_is_named_in_the_trace(fault: FaultName) -> None:
    trace = Trace(keep=True)
    world = swarm.world(3, "calm", trace)
    targets = {"disk": "coordinator", "move": "shards"}.get(fault, "replicas")
    dose = Dose(fault, 0.3, (0.1, 0.5), targets)  # type: ignore[arg-type]
    object.__setattr__(world.settings, "faults", FaultPlan(fault, (dose,)))
    world.run()
    struck = [who for _, kind, who, _ in trace.kept or () if kind == "fault"]
    assert struck
    named = {f"{fault} {targets.rstrip('s')}"} | ({"kill shard"} if fault == "move" else set())
    assert all(who.startswith(tuple(named)) for who in struck), struck
    assert world.checks.violations == []


def test_what_was_broken_is_mended_when_the_storm_is_over() -> None:
    trace = Trace(keep=True)
    world = swarm.world(7, "swarm", trace).run()
    events = trace.kept or []
    kinds = [kind for _, kind, _, _ in events]
    assert "healed" in kinds, "choose a seed whose job outlives its storm"
    rest = kinds[kinds.index("healed") :]
    assert not {"fault", "cut", "kill", "power cut", "pause"} & set(rest)
    assert world.network.cut == {}


@pytest.mark.parametrize("seed", range(6))
def test_doom_ends_in_words_that_name_who_died(seed: int) -> None:
    world = swarm.world(seed, "doom").run()
    assert world.checks.violations == []
    if world.faults:
        assert "shard" in world.failure or "coordinator" in world.failure


def test_a_run_in_which_nothing_happened_is_no_evidence() -> None:
    calm, stormy = swarm.world(1, "calm"), swarm.world(1, "kill")
    assert calm.run().checks.is_evidence
    assert stormy.run().checks.is_evidence
    stormy.faults = 0
    assert not stormy.checks.is_evidence
