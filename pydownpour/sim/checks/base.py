"""What a check is, and what it sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, final

from pydownpour.coordinator.service import CoordinatorService
from pydownpour.policy import Policy
from pydownpour.replica.pushes import Push
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.oracle import Life, Oracle
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.world.cluster import Cluster
from pydownpour.wire.messages import Complete, CompleteAnswer, LeaseAnswer, LeaseRequest


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Watched:
    """A world, and what was noted of it.

    Attributes:
        oracle: Whose job it is, where every push is counted.
        samples: Whose job it is, where every sample is counted.
        lives: Replica processes that live, by process.
        logged: Errors that services caught and lived through, in words.
    """

    world: Cluster
    oracle: Oracle | None = None
    samples: SampleOracle | None = None
    lives: dict[SimProcess, Life] = dataclasses.field(default_factory=dict)
    logged: list[str] = dataclasses.field(default_factory=list)


def one_policy(world: Cluster) -> Policy | None:
    """The job's policy, if it has the same one from its begin to its end."""
    changes = any(dose.fault == "switch" for dose in world.settings.faults.doses)
    declared = world.job.policy
    return declared if isinstance(declared, Policy) and not changes else None


class Check:
    """One thing that must hold. ``look`` may be called at any moment between two events.

    Attributes:
        name: Short, for messages.
        is_cheap: It looks at cheap looks, too, and not only at full ones.
    """

    name: ClassVar[str]
    is_cheap: ClassVar[bool] = True

    def __init__(self, watched: Watched) -> None:
        self.watched, self.world = watched, watched.world

    def coordinator_made(self, service: CoordinatorService) -> None:
        """The coordinator is about to serve."""

    def shard_loaded(self, shard: Shard) -> None:
        """A shard has its place, and is about to load."""

    def leased(self, message: LeaseRequest, answer: LeaseAnswer) -> None:
        """The coordinator has answered a request for units."""

    def completed(self, message: Complete, answer: CompleteAnswer) -> None:
        """It has answered a report of finished units."""

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
        """The shards that have loaded, each at the process that has it."""
        return self.world.serving()
