"""What can break: each fault strikes one host, waits, and mends what it broke.

A killed replica is not mended: its supervisor starts it again, as in a real job. A new fault is one
function here and its name in ``FAULTS``; a plan (``plans.py``) says how often it strikes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pydownpour import limits
from pydownpour.sim.faults import hostile as hostile_peer
from pydownpour.sim.machines.process import ProcessState

if TYPE_CHECKING:
    from pydownpour.sim.faults.storm import Storm
    from pydownpour.sim.machines.host import Host

Targets: TypeAlias = Literal["replicas", "coordinator", "shards", "guests", "all"]

JOIN_FACTOR: Final = 3
"""More replicas than that times those a world began with do not join it."""


def role(name: str) -> Targets:
    """What a host is for, by its name."""
    if name.startswith("replica"):
        return "replicas"
    if name == hostile_peer.NAME:
        return "guests"
    return "coordinator" if name == "coordinator" else "shards"


async def kill(storm: Storm, host: Host, seconds: float) -> None:
    """SIGKILL: the kernel resets the process's connections."""
    storm.struck("kill", host)
    storm.world.kill_replica(host.name)


async def power(storm: Storm, host: Host, seconds: float) -> None:
    """The host loses power: nobody is told."""
    storm.struck("power", host)
    storm.world.kill_replica(host.name, silently=True)


async def pause(storm: Storm, host: Host, seconds: float) -> None:
    """SIGSTOP and SIGCONT."""
    process = storm.process(host)
    if process is None or process.state is not ProcessState.RUNNING:
        return
    storm.struck("pause", host)
    storm.world.processes.pause(process)
    await asyncio.sleep(seconds)
    storm.world.processes.resume(process)


async def zombie(storm: Storm, host: Host, seconds: float) -> None:
    """A replica stands still, is given up for a successor under its id, and wakes again."""
    process = storm.process(host)
    if process is None:
        return
    storm.struck("zombie", host)
    storm.world.processes.pause(process)
    await asyncio.sleep(seconds / 4)
    storm.world.supersede(host.name)
    await asyncio.sleep(seconds * 3 / 4)
    storm.world.processes.resume(process)


async def slow(storm: Storm, host: Host, seconds: float) -> None:
    """It computes much slower, over a link that carries little."""
    storm.struck("slow", host)
    host.slow = storm.rng.uniform(2.0, 10.0)
    host.link = dataclasses.replace(
        host.link,
        bytes_per_s=limits.LINK_RATE_MIN * 100 ** storm.rng.random(),
        down_bytes_per_s=0.0,
        latency_s=host.link.latency_s * storm.rng.uniform(1, 40),
    )
    await asyncio.sleep(seconds)
    storm.restore(host)


async def partition(storm: Storm, host: Host, seconds: float) -> None:
    """It is cut off from some of the others, both ways."""
    await _cut(storm, host, seconds, ways=2)


async def oneway(storm: Storm, host: Host, seconds: float) -> None:
    """The same, one way only."""
    await _cut(storm, host, seconds, ways=1)


async def _cut(storm: Storm, host: Host, seconds: float, *, ways: int) -> None:
    others = [
        other
        for other in storm.world.network.hosts.values()
        if other is not host and "replicas" != role(other.name) != role(host.name)
    ]
    if role(host.name) != "replicas":  # the spine talks to replicas, too
        others += storm.targets("replicas")
    some = [other for other in others if storm.rng.random() < 0.5] or [storm.rng.choice(others)]
    storm.struck("partition" if ways == 2 else "oneway", host)
    paths = []
    for other in some:
        both = [(host.name, other.name), (other.name, host.name)]
        paths += both if ways == 2 else [storm.rng.choice(both)]
    for path in paths:
        storm.world.network.cut_path(*path)
    await asyncio.sleep(seconds)
    for path in paths:
        storm.world.network.heal_path(*path)


async def estrange(storm: Storm, host: Host, seconds: float) -> None:
    """The coordinator hears nothing of it any more; everybody else does."""
    path = (host.name, "coordinator")
    storm.struck("estrange", host)
    storm.world.network.cut_path(*path)
    await asyncio.sleep(seconds)
    storm.world.network.heal_path(*path)


async def reset(storm: Storm, host: Host, seconds: float) -> None:
    """Connections of the host break: one of them, or all."""
    process = storm.process(host)
    mine = list(process.transports) if process is not None else []
    if not mine:
        return
    storm.struck("reset", host)
    for transport in mine if storm.rng.random() < 0.3 else [storm.rng.choice(mine)]:
        storm.world.network.reset_connection(transport.connection)


async def forget(storm: Storm, host: Host, seconds: float) -> None:
    """A router forgets connections of the host, one or all: nothing passes, and nobody is told."""
    process = storm.process(host)
    mine = list(process.transports) if process is not None else []
    if not mine:
        return
    storm.struck("forget", host)
    for transport in mine if storm.rng.random() < 0.3 else [storm.rng.choice(mine)]:
        storm.world.network.forget_connection(transport.connection)


async def fuse(storm: Storm, host: Host, seconds: float) -> None:
    """The connection that carries one of the next messages breaks right behind it."""
    storm.struck("fuse", host)
    storm.world.network.fuse = storm.rng.randrange(1, 8)


async def clog(storm: Storm, host: Host, seconds: float) -> None:
    """Nothing leaves or reaches the host for a while."""
    storm.struck("clog", host)
    storm.world.network.clog(host, storm.world.loop.now + seconds)


async def swizzle(storm: Storm, host: Host, seconds: float) -> None:
    """Hosts are cut off from everybody one by one, and come back in another order."""
    hosts = storm.targets("replicas")
    some = [h for h in hosts if storm.rng.random() < 0.6] or [host]
    network = storm.world.network
    spine = [other for other in network.hosts if role(other) != "replicas"]
    for h in some:
        storm.struck("swizzle", h)
        for other in spine:
            network.cut_path(h.name, other)
            network.cut_path(other, h.name)
        await asyncio.sleep(storm.rng.uniform(0, seconds / len(some)))
    storm.rng.shuffle(some)
    for h in some:
        for other in spine:
            network.heal_path(h.name, other)
            network.heal_path(other, h.name)
        await asyncio.sleep(storm.rng.uniform(0, seconds / len(some)))


async def join(storm: Storm, host: Host, seconds: float) -> None:
    """One more replica, until there are three times as many as there were."""
    if len(storm.targets("replicas")) >= JOIN_FACTOR * storm.world.settings.replicas:
        return
    storm.struck("join", host)
    storm.world.add_replica()


async def leave(storm: Storm, host: Host, seconds: float) -> None:
    """A replica is asked to stop, says goodbye and is not started again."""
    staying = [h for h in storm.targets("replicas") if h.name not in storm.world.leaving]
    if host in staying and len(staying) > 1:
        storm.struck("leave", host)
        storm.world.stop_replica(host.name)


async def hostile(storm: Storm, host: Host, seconds: float) -> None:
    """A peer that has the token plays one of the others."""
    if storm.world.add_hostile():
        storm.struck("hostile", host)


async def disk(storm: Storm, host: Host, seconds: float) -> None:
    """A disk is full, or what is written or synced fails at some rate, or it is slow."""
    if host.disk is None:
        return
    storm.struck("disk", host)
    ailment = storm.rng.choice(("full", "write", "sync", "slow"))
    if ailment == "full":
        host.disk.fill(storm.rng.randrange(2000))
    elif ailment == "slow":
        host.disk.slow(storm.rng.uniform(0.01, 1.0))
    else:
        host.disk.fail("write" if ailment == "write" else "sync", storm.rng.uniform(0.2, 1.0))
    await asyncio.sleep(seconds)
    host.disk.heal()


async def doom(storm: Storm, host: Host, seconds: float) -> None:
    """A shard or the coordinator dies for good: once is enough.

    Not before the job runs: a shard that is lost by then took no update with it, and the
    coordinator waits for another for as long as its operator likes.
    """
    coordinator = storm.world.coordinator
    if storm.world.faults or coordinator is None or coordinator.job.state == "waiting":
        return
    storm.struck("doom", host)
    process = storm.process(host)
    if process is not None:
        storm.world.processes.kill(process, silently=storm.rng.random() < 0.5)


FAULTS: Final[dict[str, Callable[[Storm, Host, float], Awaitable[None]]]] = {
    fault.__name__: fault
    for fault in (
        kill, power, pause, zombie, slow, partition, oneway, estrange, reset, forget, fuse, clog,
        swizzle, join, leave, disk, hostile, doom,
    )
}  # fmt: skip
