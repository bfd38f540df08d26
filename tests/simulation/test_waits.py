"""Who waited for whom, in worlds where it is known beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from pydownpour.limits import DEFAULT
from pydownpour.policy import Policy
from pydownpour.policy.hard_sync import HardSync
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from tests.fakes.policies import EveryFew
from tests.simulation.test_directed import run_alive

STEP_S, SLOWER = 0.5, 4.0
"""Of a step, and how many times as long it takes the replica that is slow."""


def uneven(policy: Policy, *, proxied: float = 0.0, pushes: int = 30) -> World:
    """Three replicas, and the third one's host is slow."""
    oracle = Oracle(pushes=pushes, policy=policy)
    settings = Settings(
        seed=1,
        replicas=3,
        shards=2,
        link=LinkModel(latency_s=0.002),
        compute=ComputeModel(base_s=STEP_S, jitter=0.0),
        faults=FaultPlan(storm_s=100.0),
        proxied=proxied,
        virtual_s_max=300.0,
    )
    world = World(oracle.job, settings, oracle=oracle)

    def slow_down() -> None:
        world.processes.live["replica-2"].host.slow = SLOWER

    world.loop.at(0.0, slow_down)
    return world


def by_name(world: World) -> dict[tuple[str, str], float]:
    """Who waited for whom, for how long, by the report."""
    names = {one["id"]: one["name"] for one in world.report["replicas"]}
    pairs = world.report["waits"]["pairs"]
    return {(names[one["replica"]], names[one["on"]]): one["seconds"] for one in pairs}


@pytest.mark.parametrize("proxied", [0.0, 1.0], ids=["streams", "POST and GET"])
def test_a_slow_replica_is_who_the_others_waited_for_and_how_long(proxied: float) -> None:
    world = uneven(HardSync(combine="sum"), proxied=proxied)
    run_alive(world)
    rounds = world.serving()[0].rounds.closed
    each = (SLOWER - 1) * STEP_S
    waits = by_name(world)
    for waiter in ("replica-0", "replica-1"):
        longest = waits[waiter, "replica-2"]
        assert 0.9 * each * (rounds - 3) < longest < 1.1 * each * rounds
    assert sum(waits.values()) < 1.1 * 2 * each * rounds, "and nobody waited for anybody else"
    for replica in world.report["replicas"]:
        waited = replica["waited_s"]
        pairs = waits.get((replica["name"], "replica-2"), 0.0)
        assert waited["round"] >= pairs
        assert sum(waited.values()) - waited["round"] < STEP_S, "and for little else"


def test_a_clock_gate_says_who_is_behind_and_how_far_apart_they_were() -> None:
    world = uneven(EveryFew(count=1, slack=2, staleness_power=0.0))
    run_alive(world)
    waits = by_name(world)
    assert waits["replica-0", "replica-2"] > 5 * STEP_S
    assert not any(waiter == "replica-2" for waiter, _ in waits)
    waited = {one["name"]: one["waited_s"] for one in world.report["replicas"]}
    assert waited["replica-0"]["clock"] >= waits["replica-0", "replica-2"]
    assert waited["replica-0"]["work"] > STEP_S, "for the last units of the slow one"
    clocks = world.report["clocks"]
    assert clocks["spread_max"] == 3, "a step is announced before its gate is asked"
    assert clocks["least"] < clocks["most"]
    steps = {one["name"]: one["steps"] for one in world.report["replicas"]}
    assert steps["replica-2"] == clocks["least"]


def test_who_waits_for_nobody_is_in_no_table() -> None:
    oracle = Oracle(pushes=20)
    world = World(oracle.job, Settings(seed=1), oracle=oracle)
    run_alive(world)
    assert world.report["waits"]["count"] == 0
    assert world.report["waits"]["pairs"] == []


def test_a_wait_goes_on_where_its_shard_moves() -> None:
    """What the first process has counted and what the second does are one sum."""
    alone, moved = uneven(HardSync(combine="sum")), uneven(HardSync(combine="sum"))
    run_alive(alone)
    moved.loop.at(6.0, moved.move_shard, 1)
    run_alive(moved)
    assert moved.coordinator is not None
    assert [place.incarnation for place in moved.coordinator.job.places] == [1, 2]
    here, there = ({tuple(one) for one in _pairs(world, 1)} for world in (alone, moved))
    assert {(waiter, on) for waiter, on, _ in here} <= {(waiter, on) for waiter, on, _ in there}
    longest = [max(seconds for *_, seconds in pairs) for pairs in (here, there)]
    assert longest[1] > 0.8 * longest[0]


def _pairs(world: World, shard: int) -> list[tuple[int, int, float]]:
    assert world.coordinator is not None
    return world.coordinator.job.places.get(shard).stats.waits.pairs


def test_who_is_dead_is_waited_for_until_that_is_known_and_no_longer() -> None:
    world = uneven(HardSync(combine="sum"))
    seen: dict[str, Any] = {}

    def kill() -> None:
        world.leaving["replica-2"] = None  # nobody starts it again
        world.processes.pause(world.processes.live["replica-2"])

    def look() -> None:
        seen["open"] = [
            shard.rounds.waits.on(waiter)
            for shard in world.serving()
            for waiter in shard.rounds.waits.open
        ]
        seen["live"] = [shard.rounds.view.live for shard in world.serving()]
        assert world.coordinator is not None
        (seen["dead"],) = (m.id for m in world.coordinator.job.members if m.name == "replica-2")

    world.loop.at(5.0, kill)
    world.loop.at(12.0, look)
    world.loop.at(60.0, lambda: world.processes.resume(world.processes.live["replica-2"]))
    world.run()
    assert world.checks.violations == []
    assert all(len(live) == 2 and seen["dead"] not in live for live in seen["live"])
    assert not any(seen["dead"] in on for on in seen["open"])
    waits = by_name(world)
    assert DEFAULT.dead_s - STEP_S < waits["replica-0", "replica-2"]
