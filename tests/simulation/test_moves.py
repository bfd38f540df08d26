"""Shards move at chosen moments: between two heartbeats, in vain, at the end, with nobody there."""

from __future__ import annotations

import pytest

from pydownpour import limits
from pydownpour.sim.world.world import World
from tests.simulation.test_directed import run_alive, small_world


def lives(world: World) -> list[int]:
    """Which of its processes has each shard, from 1."""
    assert world.coordinator is not None
    return [place.incarnation for place in world.coordinator.job.places]


@pytest.mark.parametrize("at", [1.0 + 0.13 * i for i in range(12)])
def test_a_shard_moves_between_two_heartbeats_and_no_push_is_lost(at: float) -> None:
    world = small_world(latency_s=0.002)
    when: list[float] = []

    def look() -> None:
        assert world.coordinator is not None
        if world.coordinator.job.places.epoch == 1:
            world.loop.at(world.loop.now + 0.01, look)
        else:
            when.append(world.loop.now)

    world.loop.at(at, world.move_shard, 1)
    world.loop.at(at, look)
    run_alive(world)
    # It asks when the old one has heard of it; and it is told that it serves when it says that it
    # is prepared: two heartbeats at the longest, and what a few requests take.
    assert when[0] - at <= 2.2 * limits.DEFAULT.heartbeat_s
    assert lives(world) == [1, 2]


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("after", [0.4, 0.55, 0.7])
def test_who_dies_before_it_has_the_shard_is_given_up_and_the_old_process_goes_on(
    after: float, *, silently: bool
) -> None:
    world = small_world(latency_s=0.05, pushes=60)
    said: list[str] = []

    def move() -> None:
        name = world.move_shard(0)
        world.loop.at(world.loop.now + after, kill, name)
        world.loop.at(world.loop.now + after + 3.0, look)

    def kill(name: str) -> None:
        assert world.kill_successor(name, silently=silently)

    def look() -> None:
        assert world.coordinator is not None
        said.append(world.coordinator.job.reason(world.loop.time()))

    world.loop.at(1.5, move)
    run_alive(world)
    assert "shard 0" in said[0]
    assert "moves to" in said[0]
    assert world.coordinator is not None
    (place, _) = world.coordinator.job.places
    assert (place.incarnation, place.incarnations, place.successor) == (1, 2, None)
    assert world.coordinator.job.places.epoch == 1
    assert world.serving()[0].state == "serving"


def test_a_successor_that_is_cut_off_never_serves_though_it_has_everything() -> None:
    """Given up while it lives: the old process goes on, and the new one hears that it is fenced."""
    world = small_world(latency_s=0.002, pushes=60)

    def move() -> None:
        name = world.move_shard(0)
        world.loop.at(world.loop.now + 0.02, world.network.cut_path, name, "coordinator")
        world.loop.at(world.loop.now + 15.0, world.network.heal_path, name, "coordinator")

    world.loop.at(1.5, move)
    run_alive(world)
    assert world.coordinator is not None
    assert world.coordinator.job.places.epoch == 1
    first, second = (service.shard for service in world.shard_services[0])
    assert first is not None
    assert first.state == "serving"
    assert second is None or second.state in ("loading", "prepared")


def test_a_shard_moves_on_and_on_and_home_again() -> None:
    world = small_world(latency_s=0.002, pushes=60)
    for move in range(8):
        world.loop.at(1.5 + 1.3 * move, world.move_shard, move % 2)
    run_alive(world)
    assert world.coordinator is not None
    assert world.coordinator.job.places.epoch == 9
    assert lives(world) == [5, 5]


@pytest.mark.parametrize("at", [5.8 + 0.1 * i for i in range(8)])
def test_the_parameters_are_read_where_they_are_when_the_job_ends(at: float) -> None:
    world = small_world(latency_s=0.002)
    world.loop.at(at, world.move_shard, 0)
    run_alive(world)
    states = [service.shard and service.shard.state for service in world.shard_services[0]]
    assert states.count("serving") == 1
    assert states.index("serving") + 1 == lives(world)[0], "the one that the map names"
    assert world.report["pushes"]["applied"] == 24


@pytest.mark.parametrize("asleep_s", [0.5, 3.0, 8.0])
def test_the_old_process_stands_still_while_it_gives(asleep_s: float) -> None:
    world = small_world(latency_s=0.01)
    world.loop.at(1.5, world.move_shard, 0)

    def sleep() -> None:
        world.processes.pause(world.processes.live["shard-0"])
        world.loop.at(world.loop.now + asleep_s, wake, world.processes.live["shard-0"])

    def wake(process: object) -> None:
        world.processes.resume(process)  # type: ignore[arg-type]

    for after in (0.2, 0.4, 0.5):
        world.loop.at(1.5 + after, sleep)
    run_alive(world)
    assert world.coordinator is not None
    assert world.coordinator.job.places.epoch == 2, "late, but it moved"
    assert lives(world) == [2, 1]
