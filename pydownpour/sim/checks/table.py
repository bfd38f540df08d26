"""What must hold: a table of checks, and who calls them when.

Everything that happens at one virtual moment is let happen; then, before time goes on, it is the
checks' turn (``SimLoop.on_instant``). Looking after every single moment would cost more than the
run: a cheap look asks the cheap rows, every ``CHEAP_EVERY``-th moment (in worlds of many replicas
more rarely), and each ``FULL_EVERY``-th look is full and asks all of them. What they compare only
ever grows, or is a sum that stays wrong, so a look less misses nothing for good. The look when a
replica ends, and the one at the end, are full.

A new feature adds a class here or in a file of its own, and a row to CHECKS.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, final

from pydownpour.coordinator.service import CoordinatorService
from pydownpour.replica.pushes import Push
from pydownpour.replica.replica import Replica
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check, Watched
from pydownpour.sim.checks.clocks import ReadsAreWithinSlack
from pydownpour.sim.checks.files import RunFolderIsTrue
from pydownpour.sim.checks.oracle import Life, Oracle
from pydownpour.sim.checks.policies import EverybodyGoesOver
from pydownpour.sim.checks.roles import (
    BuffersWithinBounds,
    FetchesAreAsNewAsTheySay,
    FetchesNeverGoBack,
    MemoryWithinBounds,
    OneServes,
    ReplicasWithinWindows,
    ShardsNeverGoBack,
)
from pydownpour.sim.checks.rounds import RoundsAreWhole, SharesAreFull
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.checks.waits import (
    EachSecondCountsOnce,
    NobodyWaitsForTheDead,
    WhoWaitsIsHeld,
)
from pydownpour.sim.checks.work import (
    EndInWords,
    LedgerBalances,
    NothingEscapes,
    ParametersCountPushes,
    SamplesCount,
    UnitsCountOnce,
)
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.world.cluster import Cluster
from pydownpour.wire.messages import Complete, CompleteAnswer, LeaseAnswer, LeaseRequest

CHECKS: Final[tuple[type[Check], ...]] = (
    ShardsNeverGoBack,
    OneServes,
    FetchesNeverGoBack,
    FetchesAreAsNewAsTheySay,
    ReplicasWithinWindows,
    BuffersWithinBounds,
    MemoryWithinBounds,
    ParametersCountPushes,
    RoundsAreWhole,
    SharesAreFull,
    EverybodyGoesOver,
    ReadsAreWithinSlack,
    NobodyWaitsForTheDead,
    WhoWaitsIsHeld,
    EachSecondCountsOnce,
    UnitsCountOnce,
    SamplesCount,
    LedgerBalances,
    RunFolderIsTrue,
    NothingEscapes,
    EndInWords,
)

LOGGERS: Final = ("pydownpour", "aiohttp", "asyncio")
"""Where an error that was caught is written to."""
CHEAP_EVERY: Final = 8
"""Moments between two looks; times the number of replicas over four, since a look is at each."""
FULL_EVERY: Final = 8
"""Looks between two full ones."""
VIOLATIONS_MAX: Final = 20
"""One fault shows in many places; the first ones tell."""
SMALL_WORLD: Final = 64
"""Replicas up to which every death is looked at closely."""
ACKED_MIN: Final = 10
"""Fewer acknowledged pushes prove little."""


@final
class Checks(logging.Handler):
    """All checks of one run, those of the table and ``more``; a context manager around it.

    Args:
        world: What is looked at.
        more: Checks beyond the table.
        oracle, samples: Whose job it is, if it is theirs.

    Attributes:
        violations: In words, in the order they were found.
    """

    def __init__(
        self,
        world: Cluster,
        more: Sequence[type[Check]] = (),
        *,
        oracle: Oracle | None = None,
        samples: SampleOracle | None = None,
    ) -> None:
        super().__init__(logging.ERROR)
        self.world = world
        self.watched = Watched(world, oracle, samples)
        self.violations: list[str] = []
        self.acked = 0
        """Pushes acknowledged to replicas that ended."""
        self._checks = [check(self.watched) for check in (*CHECKS, *more)]
        replicas = world.settings.replicas
        self._is_small = replicas <= SMALL_WORLD
        """A look costs as much as there are replicas; large worlds are run for their figures."""
        self._every = CHEAP_EVERY * (max(1, replicas // 4) if self._is_small else replicas)
        self._moments = 0

    def __enter__(self) -> Checks:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        self.world.loop.on_instant = self._moment
        return self

    def __exit__(self, *exc: object) -> None:
        self.world.loop.on_instant = None
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """An error that a service caught, logged and lived through."""
        error = record.exc_info[1] if record.exc_info else None
        self.watched.logged.append(record.getMessage() + (f": {error!r}" if error else ""))

    # -- who is there ------------------------------------------------------------------------------

    def coordinator_made(self, service: CoordinatorService) -> None:
        """The coordinator is about to serve; from now on leases and completions are recorded."""

        def leased(message: LeaseRequest, answer: LeaseAnswer) -> None:
            for check in self._checks:
                check.leased(message, answer)

        def completed(message: Complete, answer: CompleteAnswer) -> None:
            for check in self._checks:
                check.completed(message, answer)

        service.job.on_lease, service.job.on_complete = leased, completed
        for check in self._checks:
            check.coordinator_made(service)

    def shard_loaded(self, shard: Shard) -> None:
        """A shard has its place, and is about to load."""
        for check in self._checks:
            check.shard_loaded(shard)

    def replica_joined(self, process: SimProcess, replica: Replica) -> None:
        """A replica has joined; from now on its pushes are recorded."""
        trainer = replica._trainer
        life = Life(process, replica.id, replica.incarnation, trainer)
        self.watched.lives[process] = life

        def pushed(push: Push) -> None:
            for check in self._checks:
                check.pushed(life, push)

        trainer.outbox.on_push = pushed
        for check in self._checks:
            check.joined(life)

    def replica_gone(self, process: SimProcess) -> None:
        """A replica ended or was killed."""
        life = self.watched.lives.get(process)
        if life is not None:
            if self._is_small:
                self._look(full=True)
            del self.watched.lives[process]
            self.acked += life.trainer.outbox.acked
            for check in self._checks:
                check.gone(life)

    # -- looking -----------------------------------------------------------------------------------

    def _moment(self) -> None:
        self._moments += 1
        if self._moments % self._every == 0:
            self._look(full=self._moments % (FULL_EVERY * self._every) == 0)

    def _look(self, *, full: bool) -> None:
        for check in self._checks:
            if full or check.is_cheap:
                self._book(check, check.look())

    def at_end(self) -> None:
        self._look(full=True)
        for life in self.watched.lives.values():
            self.acked += life.trainer.outbox.acked
        for check in self._checks:
            self._book(check, check.end())

    def _book(self, check: Check, found: object) -> None:
        for words in found:  # type: ignore[attr-defined]
            line = f"{check.name}: {words}"
            if line not in self.violations and len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(line)

    @property
    def is_evidence(self) -> bool:
        """Sobriety: a run in which nothing happened proves nothing."""
        calm = not self.world.settings.faults.doses
        return self.acked >= ACKED_MIN and (calm or self.world.faults > 0)
