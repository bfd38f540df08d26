"""Taking turns, medians, and how much of the machine others used meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import final

from pydownpour.bench import children

FOREIGN_MAX = 0.10
"""Share of the machine's CPU time used by others above which a row says nothing."""
PATIENCE_S = 20.0
"""How long rounds are taken in the hope of enough quiet ones."""
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


Measure = Callable[[], Awaitable[float]]


async def take_turns(
    measures: Mapping[str, Measure], *, rounds: int, patience_s: float = PATIENCE_S
) -> Figures:
    """Run every measure once a round, until so many rounds were quiet.

    When patience ends the quietest rounds are taken, and their ``foreign`` tells. Rounds are
    chosen by what others used, never by what was measured.
    """
    for _ in range(WARM_ROUNDS):
        for measure in measures.values():
            await measure()
    taken: list[tuple[Share, dict[str, float]]] = []
    quiet = 0
    give_up_at = time.monotonic() + patience_s
    while len(taken) < rounds or (quiet < rounds and time.monotonic() < give_up_at):
        meter = ForeignMeter()
        values = {name: await measure() for name, measure in measures.items()}
        share = meter.read()
        taken.append((share, values))
        quiet += share.of_all <= FOREIGN_MAX
    taken.sort(key=lambda pair: pair[0].of_all)
    chosen = taken[:rounds]
    return Figures(
        {name: [values[name] for _, values in chosen] for name in measures},
        sum((share for share, _ in chosen), Share()).of_all,
    )


@final
@dataclasses.dataclass(frozen=True)
class Share:
    """Processor seconds of others, and of everybody, idle ones included."""

    foreign_s: float = 0.0
    all_s: float = 0.0

    @property
    def of_all(self) -> float:
        """The share, 0..1; 0 where the system does not say."""
        return max(0.0, self.foreign_s / self.all_s) if self.all_s else 0.0

    def __add__(self, other: Share) -> Share:
        return Share(self.foreign_s + other.foreign_s, self.all_s + other.all_s)


@final
class ForeignMeter:
    """Counts from when it is made. Interrupts are ours as far as anybody can tell."""

    def __init__(self) -> None:
        self._began = time.monotonic(), _busy_s(), _own_s()

    def read(self) -> Share:
        """What others used since."""
        began, busy_s, own_s = self._began
        all_s = (time.monotonic() - began) * (os.cpu_count() or 1)
        return Share((_busy_s() - busy_s) - (_own_s() - own_s), all_s)


def _busy_s() -> float:
    """Seconds all processors were busy since boot, without interrupts."""
    try:
        with open("/proc/stat") as stat:
            fields = [int(word) for word in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = fields
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds that this process and its children ran, those that were reaped included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living_s = sum(_ran_s(pid) for pid in (os.getpid(), *children.pids()))
    return living_s + ended.ru_utime + ended.ru_stime


def _ran_s(pid: int) -> float:
    nanoseconds = 0
    for thread in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(thread) as stat:
            nanoseconds += int(stat.read().split()[0])
    return nanoseconds / 1e9
