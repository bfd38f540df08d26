"""The small values the work ledger is made of and answers with."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from typing import Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from pydownpour.limits import DEFAULT, Limits
from pydownpour.states import Table
from pydownpour.wire.messages import UnitEntry


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Lending:
    """What a replica that asked for work gets: units, or why it waits, or that all is done."""

    units: tuple[UnitEntry, ...] = ()
    backups: tuple[Lease, ...] = ()
    """Which of them are backup copies."""
    done: bool = False
    reason: str = ""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a completion.

    Attributes:
        counted: It is the one that is recorded.
        repeated: The same completion was answered before; nothing changed.
        finished: The pass that it completed, if it did.
        reason: In words.
    """

    counted: bool
    repeated: bool = False
    finished: int | None = None
    reason: str = ""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """One lending of one unit."""

    lease: int
    replica: int
    incarnation: int
    pass_index: int
    unit: int
    attempt: int
    """1 for the first lending of the unit, +1 each time it was lent again."""
    since: float
    is_backup: bool = False
    """Another replica holds the unit, too, and for so long that it may never finish it."""


@final
@dataclasses.dataclass(slots=True)
class Account:
    """What one replica did, over all its incarnations."""

    units: int = 0
    samples: int = 0
    refused: int = 0
    """Units it completed after another had."""
    returned: int = 0
    """Its leases that ended without a completion."""

    def add(self, other: Account) -> None:
        """Add another's counts to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """What became of a unit at which the user's code raised.

    Attributes:
        times: It has failed so often now.
        aside: It is set aside: nobody gets it again.
        finished: The pass that this completed, if it did.
    """

    times: int
    aside: bool = False
    finished: int | None = None


UnitState: TypeAlias = Literal["fresh", "leased", "returned", "done", "aside"]

UNIT: Final[Table[UnitState]] = Table(
    "a unit of a pass",
    "fresh",
    {
        "fresh": {"leased": "it is lent for the first time"},
        "leased": {
            "returned": "its last lease ended: it ran out, its holder left, died, failed at it or "
            "cannot say what was applied",
            "done": "a holder completed it",
            "aside": "the user's code failed at it unit_failures_max times",
        },
        "returned": {
            "leased": "it is lent again, or its holder goes on under the lease it had",
            "done": "who held it completed it after all, before anybody else got it",
            "aside": "the user's code failed at it unit_failures_max times",
        },
        "done": {},
        "aside": {},
    },
)
"""What a unit may become. Nothing is kept for a unit but what :class:`OpenPass` tells apart: fresh
ones lie from the cursor on, done ones have a bit, and leased is what is none of the others."""


@final
class OpenPass:
    """One begun and unfinished pass: its cursor, bitmap, and what was returned."""

    __slots__ = ("aside", "cursor", "done", "done_count", "failures", "pass_index", "returned")

    def __init__(self, pass_index: int, units: int) -> None:
        self.pass_index = pass_index
        self.cursor = 0
        """Units from here on are fresh."""
        self.done = bytearray(-(-units // 8))
        self.done_count = 0
        self.returned: dict[int, Lease] = {}
        """Unit -> its last lease, which has ended; first returned first."""
        self.failures: dict[int, int] = {}
        """Unit that is not done -> how often the user's code raised at it."""
        self.aside: set[int] = set()
        """Units nobody gets any more. Their bits are set, too."""

    def is_done(self, unit: int) -> bool:
        """Whether a unit is recorded."""
        return bool(self.done[unit >> 3] >> (unit & 7) & 1)

    def state_of(self, unit: int) -> UnitState:
        if unit >= self.cursor:
            return "fresh"
        if self.is_done(unit):
            return "aside" if unit in self.aside else "done"
        return "returned" if unit in self.returned else "leased"

    def become(self, unit: int, state: UnitState, *, ended: Lease | None = None) -> None:
        """Change a unit as :data:`UNIT` allows; fresh ones are lent in their order.

        Args:
            unit: Its index in the pass.
            state: What it is from now on.
            ended: Of one that is returned, its last lease.

        Raises:
            InternalError: it cannot become that.
        """
        old = self.state_of(unit)
        UNIT.check(old, state, f"unit {unit} of pass {self.pass_index + 1}")
        if old == "fresh":
            assert unit == self.cursor
            self.cursor += 1
        elif old == "returned":
            del self.returned[unit]
        if state == "returned":
            assert ended is not None
            self.returned[unit] = ended
        elif state in ("done", "aside"):
            self.failures.pop(unit, None)
            self.done[unit >> 3] |= 1 << (unit & 7)
            self.done_count += 1
            if state == "aside":
                self.aside.add(unit)

    def all_done(self, units: int) -> NDArray[np.bool_]:
        """For each unit whether it is recorded."""
        bits = np.frombuffer(self.done, np.uint8)
        return np.unpackbits(bits, count=units, bitorder="little").view(np.bool_)


@final
class HoldTimes:
    """How long units are usually held, from their lease to their completion.

    Args:
        limits: How many measurements count (a job's pace changes), and the least patience.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._times: deque[float] = deque(maxlen=limits.hold_times_kept)
        self._typical: float | None = None

    def note(self, seconds: float) -> None:
        """A unit was completed after so long."""
        self._times.append(max(seconds, 0.0))
        self._typical = None

    @property
    def typical(self) -> float | None:
        """The median; None before there is enough to tell."""
        if self._typical is None and len(self._times) >= self._limits.hold_times_min:
            self._typical = statistics.median(self._times)
        return self._typical

    def patience_s(self, factor: float, blind_s: float) -> float:
        """How long a unit may be held: so many times the usual; ``blind_s`` if that is unknown."""
        typical = self.typical
        return blind_s if typical is None else max(factor * typical, self._limits.backup_min_s)


def audit_pass(open_pass: OpenPass, leased: set[int], units: int) -> list[str]:
    """What is wrong with the places of a pass's units, in words.

    Millions of units are looked at as one array; only those that are lent or returned are objects.
    """
    where = f"pass {open_pass.pass_index + 1}"
    wrong = []
    done = open_pass.all_done(units)
    returned = set(open_pass.returned)
    held = sorted(leased | returned)
    if leased & returned or (held and done[held].any()):
        wrong.append(f"{where}: a unit is in two places")
    lent = int(done.sum()) + int(np.count_nonzero(~done[held]) if held else 0)
    beyond = done[open_pass.cursor :].any() or (held and held[-1] >= open_pass.cursor)
    if lent != open_pass.cursor or beyond:
        wrong.append(f"{where}: a lent unit is in no place")
    if int(done.sum()) != open_pass.done_count:
        wrong.append(f"{where}: {int(done.sum())} bits, {open_pass.done_count} counted")
    return wrong
