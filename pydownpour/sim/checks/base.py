"""What a check is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydownpour.coordinator.service import CoordinatorService
    from pydownpour.replica.pushes import Push
    from pydownpour.shard.state import Shard
    from pydownpour.sim.checks.oracle import Life
    from pydownpour.sim.checks.table import Checks


class Check:
    """One thing that must hold. ``look`` may be called at any moment between two events.

    Attributes:
        name: Short, for messages.
        is_cheap: It looks at cheap looks, too, and not only at full ones.
    """

    name: ClassVar[str]
    is_cheap: ClassVar[bool] = True

    def __init__(self, checks: Checks) -> None:
        self.checks, self.world = checks, checks.world

    def watch_coordinator(self, service: CoordinatorService) -> None:
        """The coordinator is about to serve."""

    def joined(self, life: Life) -> None:
        """A replica process has joined."""

    def pushed(self, life: Life, push: Push) -> None:
        """It has handed a push to its session."""

    def gone(self, life: Life) -> None:
        """It ended or was killed."""

    def look(self) -> Iterator[str]:
        """What is wrong now, in words."""
        yield from ()

    def end(self) -> Iterator[str]:
        """What is wrong at the end of the run, in words. ``look`` was called just before."""
        yield from ()

    def shards(self) -> list[Shard]:
        """The shards that have loaded."""
        services = self.world.shard_services.values()
        return [service.shard for service in services if service.shard is not None]
