"""What must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pydownpour.replica.replica import Replica
    from pydownpour.sim.world import World


@final
class Checks:
    """All invariants of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []

    def watch(self, name: str, replica: Replica) -> None:
        """A replica joined."""

    def replica_gone(self, name: str) -> None:
        """A replica ended or was killed."""

    def at_end(self) -> None:
        """The run is over."""
        for error in self._world.loop.errors:
            self.violations.append(f"a live process let an error escape: {error}")
