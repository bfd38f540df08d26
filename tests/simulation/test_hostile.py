"""A peer that plays others, where a rule that should stop it is broken: somebody else notices."""

from __future__ import annotations

import dataclasses

import pytest

from pydownpour.errors import JobFailed
from pydownpour.sim.world import swarm
from tests.reference import inlet as twin
from tests.simulation.mutations import only_floors, secrets_are_not_checked, use_twin


def test_a_push_that_is_acknowledged_and_applied_nowhere_is_told_to_its_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard that believes anybody any floor: its replicas ask how a new record was known."""
    secrets_are_not_checked(monkeypatch)
    only_floors(monkeypatch)
    use_twin(monkeypatch, twin.Rules(bound_floor=False))
    raised: list[str] = []
    for seed in range(12):
        world = swarm.world(seed, "hostile").run()
        assert not [v for v in world.checks.violations if "acknowledged push is lost" in v]
        raised += [str(error) for error in world.ends if isinstance(error, JobFailed)]
    assert any("sent more of them only once" in words for words in raised), raised


@pytest.mark.parametrize("seed", range(6))
def test_what_a_hostile_peer_says_for_others_changes_nothing(seed: int) -> None:
    world = swarm.world(seed, "hostile").run()
    assert world.checks.violations == []
    replicas = [r for r in world.report["replicas"] if r["host"].startswith("replica")]
    assert replicas
    assert all(r["incarnations"] == 1 for r in replicas), "nobody had to come back"
    assert world.faults > 3


@pytest.mark.parametrize("plan", ["partition", "churn"])
def test_who_is_forgotten_early_is_fenced_and_nothing_of_it_counts_twice(plan: str) -> None:
    """Shards drop windows while their owners may still wake and push: the fence must hold."""
    forgotten = 0
    for seed in range(8):
        world = swarm.world(seed, plan)
        early = dataclasses.replace(world.settings.limits, replicas_gone_max=0, replica_gone_s=1.0)
        world.settings = dataclasses.replace(world.settings, limits=early)
        violations = world.run().checks.violations
        assert violations == [], f"seed {seed}: {violations}"
        assert world.coordinator is not None
        gone = world.coordinator.job.members.forgotten.replicas
        forgotten += gone
        for shard in world.serving():
            held, told = shard.store.replicas, shard.ids_version
            assert told <= gone
            assert held <= len(world.report["replicas"]) + gone
    assert forgotten
