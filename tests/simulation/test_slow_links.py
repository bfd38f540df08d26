"""Links of 10 kB/s, over either transport: slow, never lost. A shard without room is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from pydownpour import limits
from pydownpour.errors import LimitExceeded
from pydownpour.policy.downpour import Downpour
from pydownpour.shard.state import Admitted, Refused, Shard
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from pydownpour.wire.frames import Code
from tests.reference import inlet as twin
from tests.simulation.mutations import use_twin

SLOW = LinkModel(latency_s=0.05, bytes_per_s=float(limits.DEFAULT.link_rate_min))
PARAMETERS = 160_000
"""Two whole fragments of 256 KiB and a part of one: a minute's worth of a slow link."""

BREAK_S = 45.0


def slow_world(*, transport: str, pushes: int = 2, replicas: int = 1, **settings: Any) -> World:
    oracle = Oracle(
        pushes=pushes,
        unit=1,
        parameters=PARAMETERS,
        policy=Downpour(fetch_every=2, local_rate=0.0),
    )
    everything: dict[str, Any] = {
        "seed": 1,
        "shards": 1,
        "replicas": replicas,
        "faults": FaultPlan("slow links", settle_s=900.0),
        "own_links": (("replica", SLOW),),
        "compute": ComputeModel(base_s=0.5),
        "proxied": 1.0 if transport == "post" else 0.0,
        "virtual_s_max": 10_000.0,
        **settings,
    }
    return World(oracle.job, Settings(**everything), oracle=oracle)


@pytest.mark.parametrize("transport", ["stream", "post"])
def test_a_link_of_ten_kilobytes_a_second_loses_nothing(transport: str) -> None:
    world = slow_world(transport=transport).run()
    assert world.checks.violations == []
    (replica,) = world.report["replicas"]
    assert (replica["reconnects"], world.report["pushes"]["duplicate"]) == (0, 0)
    assert replica["fallback"] == (transport == "post")
    assert (
        world.virtual_s > 3 * PARAMETERS * 4 / limits.DEFAULT.link_rate_min
    )  # two pushes and a fetch


def break_now_and_then(world: World, one: str, other: str) -> None:
    """Connections live for less than a push or a fetch takes, and for more than a fragment."""

    def again() -> None:
        break_all(world, one, other)
        world.loop.at(world.loop.now + BREAK_S, again)

    world.loop.at(BREAK_S, again)


def break_all(world: World, one: str, other: str) -> None:
    for connection in list(world.network.connections.values()):
        if {end.process.name for end in connection.ends} == {one, other}:
            world.network.reset_connection(connection)


def test_a_slow_coordinator_gives_shards_their_parameters_and_reads_them_at_the_end() -> None:
    world = slow_world(transport="stream", own_links=(("coordinator", SLOW),))
    break_now_and_then(world, "shard-0", "coordinator")
    assert world.run().checks.violations == []
    assert world.report["pushes"]["applied"] == 2
    assert world.virtual_s > 2 * PARAMETERS * 4 / limits.DEFAULT.link_rate_min


@pytest.mark.parametrize("transport", ["stream", "post"])
def test_progress_on_a_slow_link_outlives_its_connections(transport: str) -> None:
    world = slow_world(transport=transport)
    break_now_and_then(world, "replica-0", "shard-0")
    assert world.run().checks.violations == []
    (replica,) = world.report["replicas"]
    assert replica["reconnects"] >= 4
    assert world.report["pushes"]["applied"] == 2


def test_a_push_that_a_shard_has_no_room_for_waits_and_says_for_whom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit = Shard.admit
    world = slow_world(transport="stream", pushes=20, own_links=())
    said: set[str] = set()

    def is_full() -> bool:
        said.update(r._trainer.session.waiting_for() for r in world.replicas.values())
        return 2.0 <= world.loop.now <= 42.0

    def full(self: Shard, frame: Any) -> Admitted | Refused:
        return Refused(Code.FULL, "no block free") if is_full() else admit(self, frame)

    monkeypatch.setattr(Shard, "admit", full)
    assert world.run().checks.violations == []
    assert world.virtual_s > 42.0
    pushes, (replica,) = world.report["pushes"], world.report["replicas"]
    assert (pushes["applied"], pushes["refused"], replica["reconnects"]) == (20, 0, 0)
    assert any("(no block free)" in words for words in said)


@pytest.mark.parametrize("transport", ["stream", "post"])
def test_a_shard_without_memory_for_a_connection_is_waited_for(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inlet = Shard.inlet
    world = slow_world(transport=transport, pushes=20, own_links=())
    said: set[str] = set()

    def none_left(self: Shard) -> Any:
        if not 2.0 <= world.loop.now <= 3 * limits.DEFAULT.join_patience_s:
            return inlet(self)
        raise LimitExceeded("no memory left")

    def look() -> None:
        said.update(r._trainer.session.waiting_for() for r in world.replicas.values())

    for second in range(10, 100):
        world.loop.at(float(second), look)
    monkeypatch.setattr(Shard, "inlet", none_left)
    world.loop.at(2.0, break_all, world, "replica-0", "shard-0")  # who has memory keeps it
    assert world.run().checks.violations == []
    assert world.virtual_s > 3 * limits.DEFAULT.join_patience_s
    pushes = world.report["pushes"]
    assert (pushes["applied"], pushes["refused"], world.restarts) == (20, 0, 0)
    assert any("no memory left" in words for words in said)


def test_a_record_that_a_store_has_no_block_for_waits_and_its_push_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_twin(monkeypatch)
    settle = twin.Shard.settle
    world = slow_world(transport="stream", pushes=12, own_links=())
    turned_down: list[int] = []

    def sometimes(self: twin.Shard, header: Any, taken: twin.Taken) -> Any:
        if header.fragment == 1 and len(turned_down) % 3 < 2:
            turned_down.append(header.seq)
            return twin.Refusal(header.seq, header.fragment, Code.FULL)
        turned_down.append(0)
        return settle(self, header, taken)

    monkeypatch.setattr(twin.Shard, "settle", sometimes)
    assert world.run().checks.violations == []
    pushes, (replica,) = world.report["pushes"], world.report["replicas"]
    assert sum(map(bool, turned_down)) >= 12
    assert (pushes["applied"], pushes["refused"], replica["reconnects"]) == (12, 0, 0)
