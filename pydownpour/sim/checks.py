"""What must hold: a table of checks, and who calls them when.

Everything that happens at one virtual moment is let happen; then, before time goes on, it is the
checks' turn (``SimLoop.on_instant``). Looking after every single moment would cost more than the
run, so the cheap rows look at every ``GLANCE_EVERY``-th, in worlds of many replicas at fewer, and
the dear ones at every ``GLANCES_PER_STARE``-th glance. What they compare only ever grows, or is a
sum that stays wrong, so a look less misses nothing for good. All of them look when a replica ends,
and at the end.

A new feature adds a class here or in a file of its own, and a row to CHECKS.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from pydownpour.sim.checks_base import Check
from pydownpour.sim.checks_files import RunFolderIsTrue
from pydownpour.sim.checks_roles import (
    BuffersWithinBounds,
    FetchesNeverGoBack,
    MemoryWithinBounds,
    ReplicasWithinWindows,
    ShardsNeverGoBack,
)
from pydownpour.sim.checks_work import (
    EndInWords,
    LedgerBalances,
    NothingEscapes,
    ParametersCountPushes,
    UnitsCountOnce,
)
from pydownpour.sim.oracle import Life
from pydownpour.sim.samples import SamplesCount

if TYPE_CHECKING:
    from pydownpour.coordinator.service import CoordinatorService
    from pydownpour.replica.pushes import Push
    from pydownpour.replica.replica import Replica
    from pydownpour.sim.actor import Actor
    from pydownpour.sim.world import World

CHECKS: Final[tuple[type[Check], ...]] = (
    ShardsNeverGoBack,
    FetchesNeverGoBack,
    ReplicasWithinWindows,
    BuffersWithinBounds,
    MemoryWithinBounds,
    ParametersCountPushes,
    UnitsCountOnce,
    SamplesCount,
    LedgerBalances,
    RunFolderIsTrue,
    NothingEscapes,
    EndInWords,
)

LOGGERS: Final = ("pydownpour", "aiohttp", "asyncio")
"""Where an error that was caught is written to."""
GLANCE_EVERY: Final = 8
"""Moments; times the number of replicas over four, since a glance looks at each of them."""
GLANCES_PER_STARE: Final = 8
"""How much more rarely the dear rows look."""
VIOLATIONS_MAX: Final = 20
"""One fault shows in many places; the first ones tell."""
SMALL_WORLD: Final = 64
"""Replicas up to which every death is looked at closely."""
ACKED_MIN: Final = 10
"""Fewer acknowledged pushes prove little."""


@final
class Checks(logging.Handler):
    """All checks of one run, those of the table and ``more``; a context manager around it.

    Attributes:
        violations: In words, in the order they were found.
        lives: Replica processes that live or ended, by process.
    """

    def __init__(self, world: World, more: Sequence[type[Check]] = ()) -> None:
        super().__init__(logging.ERROR)
        self.world = world
        self.violations: list[str] = []
        self.lives: dict[Actor, Life] = {}
        self.logged: list[str] = []
        self.acked = 0
        """Pushes acknowledged to replicas that ended."""
        self._checks = [check(self) for check in (*CHECKS, *more)]
        replicas = world.settings.replicas
        self._is_small = replicas <= SMALL_WORLD
        """A look costs as much as there are replicas; large worlds are run for their figures."""
        self._every = GLANCE_EVERY * (max(1, replicas // 4) if self._is_small else replicas)
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
        self.logged.append(record.getMessage() + (f": {error!r}" if error else ""))

    # -- who is there ------------------------------------------------------------------------------

    def watch_coordinator(self, service: CoordinatorService) -> None:
        """The coordinator is about to serve."""
        for check in self._checks:
            check.watch_coordinator(service)

    def watch_replica(self, actor: Actor, replica: Replica) -> None:
        """A replica has joined; from now on its pushes are recorded."""
        trainer = replica._trainer
        session = trainer.session
        life = Life(actor, replica.id, replica.incarnation, trainer)
        self.lives[actor] = life
        send = session.push

        def recorded(push: Push) -> None:
            send(push)
            for check in self._checks:
                check.pushed(life, push)

        session.push = recorded  # type: ignore[method-assign]
        for check in self._checks:
            check.joined(life)

    def replica_gone(self, actor: Actor) -> None:
        """A replica ended or was killed."""
        life = self.lives.get(actor)
        if life is not None:
            if self._is_small:
                self._look(all_of_them=True)
            del self.lives[actor]
            self.acked += life.trainer.session.acked
            for check in self._checks:
                check.gone(life)

    # -- looking -----------------------------------------------------------------------------------

    def _moment(self) -> None:
        self._moments += 1
        if self._moments % self._every == 0:
            self._look(all_of_them=self._moments % (GLANCES_PER_STARE * self._every) == 0)

    def _look(self, *, all_of_them: bool) -> None:
        for check in self._checks:
            if all_of_them or check.is_cheap:
                self._book(check, check.look())

    def at_end(self) -> None:
        """The run is over."""
        self._look(all_of_them=True)
        for life in self.lives.values():
            self.acked += life.trainer.session.acked
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
