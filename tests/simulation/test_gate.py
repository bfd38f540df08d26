"""Nothing is acknowledged before a shard's journal says that it is safe."""

from __future__ import annotations

import pytest

from tests.simulation.gates import late


@pytest.mark.parametrize("plan", ["calm", "reset", "kill", "links", "moves"])
def test_what_is_acknowledged_is_durable(plan: str) -> None:
    moved = 0
    for seed in range(4):
        world = late(seed, plan).run()
        assert world.checks.violations == [], f"seed {seed}"
        assert {shard["durability"] for shard in world.report["shards"]} == {"logged"}
        moved += sum(len(services) > 1 for services in world.shard_services.values())
    assert (moved > 0) == (plan == "moves")
