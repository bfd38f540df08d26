"""What can break: each fault strikes one host, waits, and mends what it broke.

A killed replica is not mended: its supervisor starts it again, as in a real job. A new fault is a
name in ``plans.py``, where a plan says how often it strikes, and a function here.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

from pydownpour.sim.faults.plans import FaultName
from pydownpour.sim.faults.scene import Scene, role
from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import ProcessState

MOVES_KILLED: Final = 0.3
"""How often somebody tries to kill who takes a shard over."""
JOIN_FACTOR: Final = 3
"""More replicas than that times those a world began with do not join it."""


async def kill(scene: Scene, host: Host, seconds: float) -> None:
    """SIGKILL: the kernel resets the process's connections."""
    scene.struck("kill", host)
    scene.world.kill_replica(host.name)


async def power(scene: Scene, host: Host, seconds: float) -> None:
    """The host loses power: nobody is told."""
    scene.struck("power", host)
    scene.world.kill_replica(host.name, silently=True)


async def pause(scene: Scene, host: Host, seconds: float) -> None:
    """SIGSTOP now, SIGCONT when the dose ends."""
    process = scene.process(host)
    if process is None or process.state is not ProcessState.RUNNING:
        return
    scene.struck("pause", host)
    scene.world.processes.pause(process)
    await asyncio.sleep(seconds)
    scene.world.processes.resume(process)


async def zombie(scene: Scene, host: Host, seconds: float) -> None:
    """A replica stands still, is given up for a successor under its id, and wakes again."""
    process = scene.process(host)
    if process is None:
        return
    scene.struck("zombie", host)
    scene.world.processes.pause(process)
    await asyncio.sleep(seconds / 4)
    scene.world.supersede(host.name)
    await asyncio.sleep(seconds * 3 / 4)
    scene.world.processes.resume(process)


async def slow(scene: Scene, host: Host, seconds: float) -> None:
    """It computes much slower, over a link that carries little."""
    scene.struck("slow", host)
    host.slow = scene.rng.uniform(2.0, 10.0)
    host.link = dataclasses.replace(
        host.link,
        bytes_per_s=scene.world.settings.limits.link_rate_min * 100 ** scene.rng.random(),
        down_bytes_per_s=0.0,
        latency_s=host.link.latency_s * scene.rng.uniform(1, 40),
    )
    await asyncio.sleep(seconds)
    scene.restore(host)


async def partition(scene: Scene, host: Host, seconds: float) -> None:
    """It is cut off from some of the others, both ways."""
    await _cut(scene, host, seconds, ways=2)


async def oneway(scene: Scene, host: Host, seconds: float) -> None:
    """The same, one way only."""
    await _cut(scene, host, seconds, ways=1)


async def _cut(scene: Scene, host: Host, seconds: float, *, ways: int) -> None:
    others = [
        other
        for other in scene.world.network.hosts.values()
        if other is not host and "replicas" != role(other.name) != role(host.name)
    ]
    if role(host.name) != "replicas":  # the spine talks to replicas, too
        others += scene.targets("replicas")
    some = [other for other in others if scene.rng.random() < 0.5] or [scene.rng.choice(others)]
    scene.struck("partition" if ways == 2 else "oneway", host)
    paths = []
    for other in some:
        both = [(host.name, other.name), (other.name, host.name)]
        paths += both if ways == 2 else [scene.rng.choice(both)]
    for path in paths:
        scene.world.network.cut_path(*path)
    await asyncio.sleep(seconds)
    for path in paths:
        scene.world.network.heal_path(*path)


async def estrange(scene: Scene, host: Host, seconds: float) -> None:
    """The coordinator hears nothing of it any more; everybody else does."""
    path = (host.name, "coordinator")
    scene.struck("estrange", host)
    scene.world.network.cut_path(*path)
    await asyncio.sleep(seconds)
    scene.world.network.heal_path(*path)


async def reset(scene: Scene, host: Host, seconds: float) -> None:
    """Connections of the host break: one of them, or all."""
    process = scene.process(host)
    mine = scene.world.network.ends_of(process) if process is not None else []
    if not mine:
        return
    scene.struck("reset", host)
    for transport in mine if scene.rng.random() < 0.3 else [scene.rng.choice(mine)]:
        scene.world.network.reset_connection(transport.connection)


async def forget(scene: Scene, host: Host, seconds: float) -> None:
    """A router forgets connections of the host, one or all: nothing passes, and nobody is told."""
    process = scene.process(host)
    mine = scene.world.network.ends_of(process) if process is not None else []
    if not mine:
        return
    scene.struck("forget", host)
    for transport in mine if scene.rng.random() < 0.3 else [scene.rng.choice(mine)]:
        scene.world.network.forget_connection(transport.connection)


async def fuse(scene: Scene, host: Host, seconds: float) -> None:
    """The connection that carries one of the next messages breaks right behind it."""
    scene.struck("fuse", host)
    scene.world.network.fuse = scene.rng.randrange(1, 8)


async def clog(scene: Scene, host: Host, seconds: float) -> None:
    """Nothing leaves or reaches the host for a while."""
    scene.struck("clog", host)
    scene.world.network.clog(host, scene.world.loop.now + seconds)


async def swizzle(scene: Scene, host: Host, seconds: float) -> None:
    """Hosts are cut off from everybody one by one, and come back in another order."""
    hosts = scene.targets("replicas")
    some = [h for h in hosts if scene.rng.random() < 0.6] or [host]
    network = scene.world.network
    spine = [other for other in network.hosts if role(other) != "replicas"]
    for h in some:
        scene.struck("swizzle", h)
        for other in spine:
            network.cut_path(h.name, other)
            network.cut_path(other, h.name)
        await asyncio.sleep(scene.rng.uniform(0, seconds / len(some)))
    scene.rng.shuffle(some)
    for h in some:
        for other in spine:
            network.heal_path(h.name, other)
            network.heal_path(other, h.name)
        await asyncio.sleep(scene.rng.uniform(0, seconds / len(some)))


async def join(scene: Scene, host: Host, seconds: float) -> None:
    """One more replica, until there are three times as many as there were."""
    if len(scene.targets("replicas")) >= JOIN_FACTOR * scene.world.settings.replicas:
        return
    scene.struck("join", host)
    scene.world.add_replica()


async def leave(scene: Scene, host: Host, seconds: float) -> None:
    """A replica is asked to stop, says goodbye and is not started again."""
    staying = [h for h in scene.targets("replicas") if h.name not in scene.world.leaving]
    if host in staying and len(staying) > 1:
        scene.struck("leave", host)
        scene.world.stop_replica(host.name)


async def hostile(scene: Scene, host: Host, seconds: float) -> None:
    """A peer that has the token plays one of the others."""
    if scene.world.add_hostile():
        scene.struck("hostile", host)


async def disk(scene: Scene, host: Host, seconds: float) -> None:
    """A disk is full, or what is written or synced fails at some rate, or it is slow."""
    if host.disk is None:
        return
    scene.struck("disk", host)
    ailment = scene.rng.choice(("full", "write", "sync", "slow"))
    if ailment == "full":
        host.disk.fill(scene.rng.randrange(2000))
    elif ailment == "slow":
        host.disk.slow(scene.rng.uniform(0.01, 1.0))
    else:
        host.disk.fail("write" if ailment == "write" else "sync", scene.rng.uniform(0.2, 1.0))
    await asyncio.sleep(seconds)
    host.disk.heal()


async def move(scene: Scene, host: Host, seconds: float) -> None:
    """A shard moves to another host. Now and then who takes it over dies before it has it."""
    name = scene.world.move_shard(int(host.name.split("-")[1]))
    if not name:
        return
    scene.struck("move", host)
    if scene.rng.random() < MOVES_KILLED:
        await asyncio.sleep(seconds)
        if scene.world.kill_successor(name, silently=scene.rng.random() < 0.5):
            scene.struck("kill", scene.world.network.hosts[name])


async def switch(scene: Scene, host: Host, seconds: float) -> None:
    """Somebody wants another policy, or the one that there is."""
    if scene.world.switch_policy(scene.rng.choice(scene.world.settings.policies)):
        scene.struck("switch", host)


async def doom(scene: Scene, host: Host, seconds: float) -> None:
    """A shard or the coordinator dies for good: once is enough.

    Not before the job runs: a shard that is lost by then took no update with it, and the
    coordinator waits for another for as long as its operator likes.
    """
    coordinator = scene.world.coordinator
    if scene.world.faults or coordinator is None or coordinator.job.state == "waiting":
        return
    scene.struck("doom", host)
    process = scene.process(host)
    if process is not None:
        scene.world.processes.kill(process, silently=scene.rng.random() < 0.5)


FAULTS: Final[dict[FaultName, Callable[[Scene, Host, float], Awaitable[None]]]] = {
    "kill": kill,
    "power": power,
    "pause": pause,
    "zombie": zombie,
    "slow": slow,
    "partition": partition,
    "oneway": oneway,
    "estrange": estrange,
    "reset": reset,
    "forget": forget,
    "fuse": fuse,
    "clog": clog,
    "swizzle": swizzle,
    "join": join,
    "leave": leave,
    "disk": disk,
    "hostile": hostile,
    "move": move,
    "switch": switch,
    "doom": doom,
}
