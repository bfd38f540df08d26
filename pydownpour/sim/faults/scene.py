"""What a fault acts on: one world, its chance, and whom it may strike."""

from __future__ import annotations

from typing import final

from pydownpour.sim.faults import hostile
from pydownpour.sim.faults.plans import Targets
from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.world.cluster import Cluster


def role(name: str) -> Targets:
    """What a host is for, by its name."""
    if name.startswith("replica"):
        return "replicas"
    if name == hostile.NAME:
        return "guests"
    return "coordinator" if name == "coordinator" else "shards"


@final
class Scene:
    """One world under faults.

    Args:
        chance: The name of the stream of random numbers.

    Attributes:
        rng: Of everything that is random about faults.
    """

    def __init__(self, world: Cluster, chance: str = "faults") -> None:
        self.world = world
        self.rng = world.stream(chance)

    # -- whom ------------------------------------------------------------------------------------

    def targets(self, which: Targets) -> list[Host]:
        """Hosts of processes that run, in the order they were added."""
        live = self.world.processes.live
        return [
            host
            for name, host in self.world.network.hosts.items()
            if name in live and role(name) != "guests" and which in ("all", role(name))
        ]

    def process(self, host: Host) -> SimProcess | None:
        """The process that runs on a host."""
        return self.world.processes.live.get(host.name)

    def struck(self, fault: str, host: Host) -> None:
        """Count a fault that took place."""
        self.world.note_fault(fault, host.name)

    # -- and back --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Mend everything; start nothing."""
        world = self.world
        world.network.heal_all()
        world.network.fuse = 0
        for host in world.network.hosts.values():
            world.network.unclog(host)
            if host.disk is not None:
                host.disk.heal()
            self.restore(host)
        for process in list(world.processes.alive):
            world.processes.resume(process)
        world.trace.note(world.loop.now, "healed", "everything")

    def restore(self, host: Host) -> None:
        host.slow = 1.0
        host.link = self.world.settings.link_of(host.name)
