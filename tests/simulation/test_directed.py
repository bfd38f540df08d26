"""Single faults at chosen moments, where a random one would come too rarely."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from pydownpour.errors import PeerLost
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.client import Client
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.network.transport import SimTransport
from pydownpour.sim.world import swarm
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from pydownpour.wire.messages import Heartbeat

STUCK_S = 10.0


def small_world(
    *,
    latency_s: float = 0.03,
    storm_s: float = 100.0,
    pushes: int = 24,
    virtual_s_max: float = 120.0,
    limits: Limits = DEFAULT,
) -> World:
    """Two replicas at work for some six virtual seconds, or as long as so many pushes take."""
    oracle = Oracle(pushes=pushes)
    settings = Settings(
        seed=1,
        replicas=2,
        shards=2,
        link=LinkModel(latency_s=latency_s),
        compute=ComputeModel(base_s=0.5),
        faults=FaultPlan(storm_s=storm_s),  # then everything is healed
        virtual_s_max=virtual_s_max,
        limits=limits,
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


def run_alive(world: World) -> None:
    """Run it to its end: nothing was lost, nobody was called dead, and the job is done."""
    world.run()
    assert world.checks.violations == []
    assert world.report["state"] == "done"
    assert world.coordinator is not None
    assert all(place.state == "ready" for place in world.coordinator.job.places)
    assert world.restarts == 0, "replicas wait as long as the coordinator does"


@pytest.mark.parametrize("asleep_s", [4.0, 30.0, 90.0])
@pytest.mark.parametrize("at", [1.5, 3.0, 5.5])
def test_a_shard_that_stands_still_wakes_and_the_run_goes_on(at: float, asleep_s: float) -> None:
    world = small_world(latency_s=0.002)
    words: list[str] = []

    def sleep() -> None:
        world.processes.pause(world.processes.live["shard-0"])

    def look() -> None:
        assert world.coordinator is not None
        words.append(world.coordinator.job.reason(world.loop.time()))

    def wake() -> None:
        world.processes.resume(world.processes.live["shard-0"])

    world.loop.at(at, sleep)
    world.loop.at(at + asleep_s - 0.1, look)
    world.loop.at(at + asleep_s, wake)
    run_alive(world)
    assert world.virtual_s > at + asleep_s
    assert "shard 0" in words[0]
    assert "silent for" in words[0]
    assert "is waited for" in words[0]


@pytest.mark.parametrize("at", [0.5, 1.5, 3.0, 5.5])
def test_a_shard_that_only_the_coordinator_does_not_hear_costs_nothing(at: float) -> None:
    undisturbed = small_world(latency_s=0.002)
    run_alive(undisturbed)
    world = small_world(latency_s=0.002)
    cut = ("shard-0", "coordinator")
    world.loop.at(at, world.network.cut_path, *cut)
    world.loop.at(at + 20.0, world.network.heal_path, *cut)
    run_alive(world)
    pushes = (world.report["pushes"]["applied"], undisturbed.report["pushes"]["applied"])
    assert pushes[0] == pushes[1]
    assert world.report["seconds"] < undisturbed.report["seconds"] + 2.0, "training went on"


def test_a_shard_that_answers_when_asked_is_waited_for_beyond_all_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = small_world(latency_s=0.002, pushes=60, limits=Limits(shard_patience_s=8.0))
    said: list[str] = []
    send = Client.post

    async def blocked(self: Client, path: str, message: Any, *rest: Any, **options: Any) -> Any:
        """A proxy lets shards' heartbeats pass no more."""
        is_shard = isinstance(message, Heartbeat) and message.role == "shard"
        if is_shard and 1.0 < world.loop.now < 20.0:
            raise PeerLost("a proxy is in the way")
        return await send(self, path, message, *rest, **options)

    def look() -> None:
        assert world.coordinator is not None
        said.append(world.coordinator.job.reason(world.loop.time()))

    monkeypatch.setattr(Client, "post", blocked)
    world.loop.at(15.0, look)
    world.run()
    assert world.checks.violations == []
    assert world.report["state"] == "done"
    assert said[0].count("is silent for") == 2
    assert said[0].count("but it answers when asked") == 2


def test_replicas_whose_streams_are_stuck_send_again_elsewhere_and_lose_nothing() -> None:
    world = small_world()

    def stick() -> None:
        for shard in range(2):
            for replica in range(2):
                for end in connections(world, f"shard-{shard}>replica-{replica}"):
                    end.arrives_at = world.loop.now + 2 * DEFAULT.ack_timeout_s

    world.loop.at(2.0, stick)
    assert world.run().checks.violations == []
    assert world.virtual_s < 2.0 + 2 * DEFAULT.ack_timeout_s
    assert all(replica["reconnects"] >= 2 for replica in world.report["replicas"])


@pytest.mark.parametrize(
    ("here", "there", "whom"),
    [
        ("replica-0", "coordinator", "the coordinator at .* to let this replica join"),
        ("shard-1", "coordinator", "the coordinator at .* to take this shard"),
        ("shard-1", "coordinator", "shard 1 to start"),
        ("replica-0", "shard-1", "shard 1 at "),
    ],
)
def test_nobody_waits_in_silence(
    here: str, there: str, whom: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is cut off from the first moment on says for whom it waits, and why."""
    world = small_world(storm_s=9.0)
    world.loop.at(0.0, world.network.cut_path, here, there)
    assert world.run().checks.violations == []
    lines = [line for line in caplog.messages if re.match(f"waiting for {whom}", line)]
    assert 1 <= len(lines) <= 4, "after 2 s, and then ever less often"


def test_a_coordinator_that_falls_silent_is_named_by_those_who_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = small_world(storm_s=8.0)
    for host in ("replica-0", "shard-0"):
        world.loop.at(2.0, world.network.cut_path, "coordinator", host)
    world.run()
    lines = [line for line in caplog.messages if "waiting for the coordinator at http" in line]
    assert len(lines) >= 2, "the replica and the shard"


def test_a_run_in_which_nothing_is_late_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert small_world().run().checks.violations == []
    assert [line for line in caplog.messages if line.startswith("waiting")] == []


@pytest.mark.parametrize("at", [1.0 + 0.13 * i for i in range(4)])
def test_a_job_that_is_stopped_as_a_whole_goes_on_when_it_is_continued(at: float) -> None:
    """Ctrl-Z, a walk, fg: longer than anybody's patience, and nobody is blamed."""
    world = small_world(storm_s=500.0, virtual_s_max=1000.0)
    processes: list[SimProcess] = []

    def stop() -> None:
        processes.extend(world.processes.alive)
        for process in processes:
            world.processes.pause(process)

    def resume() -> None:
        for process in processes:
            world.processes.resume(process)

    world.loop.at(at, stop)
    world.loop.at(at + 5 * DEFAULT.join_patience_s, resume)
    assert world.run().checks.violations == []
    assert (len(processes), world.restarts, world.ends) == (5, 0, [])


@pytest.mark.parametrize("plan", ["reset", "slow", "swarm"])
def test_one_push_s_memory_is_enough(plan: str) -> None:
    """The next push is encoded where the last one has its answers; what has none stays as it is."""
    for seed in range(3):
        world = swarm.world(seed, plan)
        own = dataclasses.replace(world.settings.limits, push_spare_size_max=0)
        world.settings = dataclasses.replace(world.settings, limits=own)
        assert world.run().checks.violations == []
