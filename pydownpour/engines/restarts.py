"""What the end of a replica means: it is finished, it starts again, or the job has failed.

Pure: told what ended, how, and what it had done; answers with a decision and its reason.

    exit 0, with a goodbye                   finished
    wrong settings (exit 2)                  fail: the next one would say the same
    the same own failure three times in a    fail: a deterministic mistake is shown, not repeated.
    row, each within restart_stable_s of     Not where the job skips units: then the coordinator
    its start                                counts, and sets the unit aside
    at one place more than restarts_max      fail: starting it again does not cure it
    crashes within restart_window_s that
    nothing was done between
    anything else                            again, after a back-off that doubles while the
                                             replica dies young

A crash that work was done before counts for nothing but the back-off: a replica that is killed
once a minute for a week is one that was started again ten thousand times, each time with success.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TypeAlias, final

from pydownpour.engines.base import EXIT_CONFIG, EXIT_OK, Exit
from pydownpour.limits import DEFAULT, Limits


@final
@dataclasses.dataclass(frozen=True)
class Finished:
    """The replica did its work; nothing starts in its place."""

    reason: str


@final
@dataclasses.dataclass(frozen=True)
class Again:
    """Start it again after ``after_s`` seconds."""

    after_s: float
    reason: str


@final
@dataclasses.dataclass(frozen=True)
class GiveUp:
    """The job has failed: why, in words."""

    reason: str


Decision: TypeAlias = Finished | Again | GiveUp


@final
@dataclasses.dataclass(frozen=True)
class End:
    """The end of one replica process.

    Attributes:
        exit: How it ended.
        lived_s: Seconds from its start.
        goodbye: It said that it had finished.
        worked: It had done work that the coordinator knows of.
        failure: What it said of its failure; equal words are the same failure, whichever replica
            says them.
        unit: At which unit, in words; "" if at none.
        cured_by_skipping: The job sets a unit aside that fails again and again.
    """

    exit: Exit
    lived_s: float
    goodbye: bool = True
    worked: bool = False
    failure: str = ""
    unit: str = ""
    cured_by_skipping: bool = False

    @property
    def own_fault(self) -> bool:
        """True for a failure that the same code would probably repeat."""
        return self.exit.own_fault or self.is_silent

    @property
    def is_silent(self) -> bool:
        """The process ended itself without a word: ``os._exit``, or a library that calls exit."""
        return (
            self.exit.code >= 0 and not self.failure and not (self.goodbye and self.exit.code == 0)
        )

    def describe(self) -> str:
        """How it ended, why, and where: one line."""
        words = self.exit.describe()
        if self.is_silent:
            words += " without a word, as os._exit does"
        where = f" {self.unit}" if self.unit else ""
        return f"{words}{where}: {self.failure}" if self.failure else words


@final
class Restarts:
    """Remembers the crashes of one run. Pure: told the time.

    Args:
        limits: How many crashes are too many, and how long the next start waits.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._young: dict[int, int] = {}
        self._failures: dict[str, int] = {}
        self._idle: dict[int, deque[float]] = {}
        """Place -> when it crashed without having done anything, the newest."""

    def decide(self, replica: int, end: End, now: float) -> Decision:
        """What to do about the end of the replica at place ``replica``, 0-based."""
        who = f"replica {replica} {end.describe()}"
        if end.exit.code == EXIT_OK and end.goodbye:
            return Finished(who)
        if end.exit.code == EXIT_CONFIG and end.failure:
            return GiveUp(who)
        old = end.lived_s >= self._limits.restart_stable_s
        if end.own_fault and not end.cured_by_skipping:
            same = end.failure or end.exit.describe()
            count = self._failures[same] = 1 if old else self._failures.get(same, 0) + 1
            if count >= self._limits.restart_same_failure_max:
                return GiveUp(
                    f"{who}. That is the {_ordinal(count)} time in a row that one ends so"
                )
        if (idle := self._idle_crashes(replica, end, now)) > self._limits.restarts_max:
            return GiveUp(
                f"{who}. That is its crash number {idle} within "
                f"{self._limits.restart_window_s:g} s and nothing was done between them; the "
                f"limit is {self._limits.restarts_max} (restarts_max)"
            )
        young = self._young[replica] = 0 if old else self._young.get(replica, 0) + 1
        after_s = min(
            self._limits.restart_backoff_s * 2.0 ** max(0, young - 1),
            self._limits.restart_backoff_max_s,
        )
        return Again(after_s, who)

    def _idle_crashes(self, replica: int, end: End, now: float) -> int:
        """Crashes of the place in the window, back to the last one that work was done before."""
        crashes = self._idle.setdefault(replica, deque(maxlen=self._limits.restarts_max + 1))
        if end.worked or end.cured_by_skipping:
            crashes.clear()
            return 0
        crashes.append(now)
        while now - crashes[0] > self._limits.restart_window_s:
            crashes.popleft()
        return len(crashes)


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
