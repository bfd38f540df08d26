"""The gate: a rule that the code relies on cannot be broken without some seed noticing."""

from __future__ import annotations

import dataclasses

import pytest

from pydownpour.sim.faults.plans import PLANS
from pydownpour.sim.world import swarm
from tests.simulation.mutations import MUTATIONS, Mutation, use_twin

SEEDS_MAX = 40
"""A rule that is broken shows within the first few; the bound keeps a gate that is red quick."""


def noticed(mutation: Mutation, seeds: range) -> str:
    """The first violation by a check that should notice, or ""."""
    for seed in seeds:
        for plan in mutation.plans:
            for violation in mutation.world(seed, plan).run().checks.violations:
                if any(word in violation for word in mutation.notices):
                    return f"seed {seed}, {plan}: {violation}"
    return ""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_broken_rule_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch)
    seeds = range(mutation.first, mutation.first + SEEDS_MAX)
    assert noticed(mutation, seeds), "no seed noticed: the simulator has a blind spot"


WITH_TWIN = {plan for m in MUTATIONS for plan in m.plans} - {"moves", "switch"}
"""The twin keeps the windows in the core's place, and what moves to another process is the core's:
the rules of a move are broken in the product itself, and no plan's shards move beside the twin."""


@pytest.mark.parametrize("plan", sorted(WITH_TWIN))
def test_the_twin_with_all_its_rules_passes(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_twin(monkeypatch)
    monkeypatch.setitem(PLANS, plan, dataclasses.replace(PLANS[plan], apart=()))
    for seed in range(4):
        assert swarm.world(seed, plan).run().checks.violations == [], swarm.replay(seed, plan)
    assert swarm.synced(0, plan).run().checks.violations == [], f"synced 0, {plan}"
