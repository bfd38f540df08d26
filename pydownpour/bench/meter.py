"""Taking turns, medians, and how much of the machine others used meanwhile."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Awaitable, Callable, Mapping
from typing import final

from pydownpour.bench import children

FOREIGN_MAX = 0.10
"""Share of the machine's CPU time used by others above which a row says nothing."""
ATTEMPTS = 3
"""A disturbed measurement is taken again this often; the quietest counts."""
WARM_ROUNDS = 1
"""Rounds that are not counted: first touch of buffers, caches, congestion windows."""


@final
@dataclasses.dataclass(frozen=True)
class Figures:
    """Some figures that were taken in turn.

    Attributes:
        values: Per name, one figure a round.
        foreign: Share of all CPU time that was not ours meanwhile, 0..1; 0 if unknown.
    """

    values: Mapping[str, list[float]]
    foreign: float

    def ratio(self, ours: str, reference: str) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.values[ours], self.values[reference], strict=True)
        return statistics.median(a / b for a, b in pairs)


async def take_turns(
    measures: Mapping[str, Callable[[], Awaitable[float]]], *, rounds: int, attempts: int = ATTEMPTS
) -> Figures:
    """Run every measure once a round, for some rounds; again if others disturbed it."""
    best: Figures | None = None
    for attempt in range(attempts):
        for _ in range(WARM_ROUNDS if attempt == 0 else 0):
            for measure in measures.values():
                await measure()
        share = ForeignShare()
        values: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, measure in measures.items():
                values[name].append(await measure())
        found = Figures(values, share())
        if best is None or found.foreign < best.foreign:
            best = found
        if best.foreign <= FOREIGN_MAX:
            break
    assert best is not None
    return best


@final
class ForeignShare:
    """Call it: the share of all CPU time since it was made that other processes used.

    Interrupts and the network's share of them are ours as far as anybody can tell.
    """

    def __init__(self) -> None:
        self._began = _machine_ticks(), _own_ticks()

    def __call__(self) -> float:
        (all_before, busy_before), own_before = self._began
        (all_now, busy_now), own = _machine_ticks(), _own_ticks()
        if all_now <= all_before:
            return 0.0
        foreign = (busy_now - busy_before) - (own - own_before)
        return max(0.0, foreign / (all_now - all_before))


def _machine_ticks() -> tuple[int, int]:
    """(all, busy without interrupts) clock ticks of all processors since boot."""
    try:
        with open("/proc/stat") as stat:
            fields = [int(word) for word in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    user, nice, system, idle, iowait, _, _, steal = fields
    return sum(fields), user + nice + system + steal


def _own_ticks() -> int:
    return sum(_ticks_of(pid) for pid in (os.getpid(), *children.pids()))


def _ticks_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(word) for word in fields[11:15])
