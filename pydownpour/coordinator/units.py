"""The small values the work ledger is made of and answers with."""

from __future__ import annotations

import dataclasses
from typing import final

from pydownpour.wire.messages import UnitEntry


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Lending:
    """What a replica that asked for work gets: units, or why it waits, or that all is done."""

    units: tuple[UnitEntry, ...] = ()
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
    number: int
    unit: int
    attempt: int
    """1 for the first lending of the unit, +1 each time it was returned."""
    since: float


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


@final
class OpenPass:
    """One begun and unfinished pass: its cursor, bitmap, and what was returned."""

    __slots__ = ("cursor", "done", "done_count", "number", "returned")

    def __init__(self, number: int, units: int) -> None:
        self.number = number
        self.cursor = 0
        self.done = bytearray(-(-units // 8))
        self.done_count = 0
        self.returned: dict[int, int] = {}
        """Unit -> attempts so far, first returned first."""

    def is_done(self, unit: int) -> bool:
        """Whether a unit is recorded."""
        return bool(self.done[unit >> 3] >> (unit & 7) & 1)

    def set_done(self, unit: int) -> None:
        """Record a unit."""
        self.done[unit >> 3] |= 1 << (unit & 7)
        self.done_count += 1


def audit_pass(open_pass: OpenPass, leased: set[int], done: set[int]) -> list[str]:
    """What is wrong with the places of a pass's units, in words."""
    where = f"pass {open_pass.number + 1}"
    wrong = []
    returned = set(open_pass.returned)
    if leased & done or leased & returned or done & returned:
        wrong.append(f"{where}: a unit is in two places")
    if leased | done | returned != set(range(open_pass.cursor)):
        wrong.append(f"{where}: a lent unit is in no place")
    if len(done) != open_pass.done_count:
        wrong.append(f"{where}: {len(done)} bits, {open_pass.done_count} counted")
    return wrong
