"""Single faults at chosen moments, where a random one would come too rarely."""

from __future__ import annotations

import pytest

from pydownpour import limits
from pydownpour.sim.compute import ComputeModel
from pydownpour.sim.hosts import LinkModel
from pydownpour.sim.oracle import Oracle
from pydownpour.sim.transport import SimTransport
from pydownpour.sim.world import Settings, World

STUCK_S = 10.0


def small_world(*, latency_s: float = 0.03) -> World:
    """Two replicas at work for some six virtual seconds."""
    oracle = Oracle(pushes=24)
    settings = Settings(
        seed=1,
        replicas=2,
        shards=2,
        link=LinkModel(latency_s=latency_s),
        compute=ComputeModel(base_s=0.5),
        virtual_s_max=120.0,
    )
    return World(oracle.job, settings, oracle=oracle)


def connections(world: World, path: str) -> list[SimTransport]:
    """The open ends of a path, e.g. ``shard-0>coordinator``."""
    ends = [end for c in world.network.connections.values() for end in c.ends]
    return [end for end in ends if end.path == path and not end.is_lost]


@pytest.mark.parametrize("at", [1.0 + 0.05 * i for i in range(12)])
def test_one_heartbeat_that_is_stuck_does_not_make_a_shard_dead(at: float) -> None:
    world = small_world()

    def stick() -> None:
        for end in connections(world, "shard-0>coordinator"):
            end.arrives_at = world.loop.now + STUCK_S  # as a connection that a router forgot

    world.loop.at(at, stick)
    assert world.run().checks.violations == []


def test_replicas_whose_streams_are_stuck_send_again_elsewhere_and_lose_nothing() -> None:
    world = small_world()

    def stick() -> None:
        for shard in range(2):
            for replica in range(2):
                for end in connections(world, f"shard-{shard}>replica-{replica}"):
                    end.arrives_at = world.loop.now + 2 * limits.ACK_TIMEOUT_S

    world.loop.at(2.0, stick)
    assert world.run().checks.violations == []
    assert world.virtual_s < 2.0 + 2 * limits.ACK_TIMEOUT_S
    assert all(replica["reconnects"] >= 2 for replica in world.report["replicas"])
