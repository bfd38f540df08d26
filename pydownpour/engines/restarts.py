"""What the end of a replica means: it is finished, it starts again, or the job has failed.

Pure: told what ended, how, and how long it had lived; answers with a decision and its reason.

    exit 0                                   finished
    wrong settings (exit 2)                  fail: the next one would say the same
    the same own failure three times, each   fail: a deterministic mistake is shown, not repeated
    within RESTART_STABLE_S of its start
    more than RESTARTS_MAX crashes in all    fail
    anything else                            again, after a back-off that doubles while the
                                             replica dies young
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias, final

from pydownpour import limits
from pydownpour.engines.base import EXIT_CONFIG, EXIT_OK, Exit


@final
@dataclasses.dataclass(frozen=True)
class Finished:
    """It did its work."""

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
    """The job has failed."""

    reason: str


Decision: TypeAlias = Finished | Again | GiveUp


@final
class Restarts:
    """Remembers the crashes of one run."""

    def __init__(self) -> None:
        self.crashes = 0
        """Over all replicas."""
        self._young: dict[int, int] = {}
        self._failures: dict[str, int] = {}

    def decide(self, replica: int, end: Exit, *, lived_s: float, failure: str = "") -> Decision:
        """What to do about the end of replica number ``replica``.

        Args:
            replica: Its place among the replicas, 0-based.
            end: How it ended.
            lived_s: Seconds from its start.
            failure: What it said of its failure; equal words are the same failure, whichever
                replica says them.
        """
        who = f"replica {replica} {end.describe()}"
        if end.code == EXIT_OK:
            return Finished(who)
        if end.code == EXIT_CONFIG:
            return GiveUp(f"{who}: {failure or 'its settings are wrong'}")
        self.crashes += 1
        old = lived_s >= limits.RESTART_STABLE_S
        if end.own_fault:
            same = failure or end.describe()
            count = self._failures[same] = 1 if old else self._failures.get(same, 0) + 1
            if count >= limits.RESTART_SAME_FAILURE_MAX:
                return GiveUp(
                    f"replica {replica} failed, the {_ordinal(count)} time in a row that one "
                    f"fails like this: {same}"
                )
        if self.crashes > limits.RESTARTS_MAX:
            return GiveUp(
                f"{who}; that is crash {self.crashes} of this run, the limit is "
                f"{limits.RESTARTS_MAX} (RESTARTS_MAX)"
            )
        young = self._young[replica] = 0 if old else self._young.get(replica, 0) + 1
        after_s = min(
            limits.RESTART_BACKOFF_S * 2.0 ** max(0, young - 1), limits.RESTART_BACKOFF_MAX_S
        )
        return Again(after_s, f"{who}{f' ({failure})' if failure else ''}")


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
