"""A row of the table: two figures, their ratio, the goal, and whether it was met."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Any, final

from pydownpour.bench.meter import FOREIGN_MAX, Figures


@final
@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on a row's ratio."""

    bound: float
    at_least: bool = True

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio keeps the bound."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:.2f}"


@final
@dataclasses.dataclass(frozen=True)
class Within:
    """A row's ratio shall be 1, more or less."""

    bound: float

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio is near enough."""
        return abs(ratio - 1.0) <= self.bound

    def __str__(self) -> str:
        return f"1 +- {self.bound:.2f}"


@final
@dataclasses.dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        name: What was measured.
        ours, reference: Medians over the rounds, in ``unit``.
        ratio: The median of the rounds' ratios, ours by reference.
        ours_range, reference_range: Smallest and largest figure.
        foreign: Share of the CPU that others used meanwhile.
        note: What the reference is.
    """

    name: str
    ours: float
    reference: float
    unit: str
    ratio: float
    goal: Goal | Within
    ours_range: tuple[float, float]
    reference_range: tuple[float, float]
    foreign: float
    note: str

    @property
    def inconclusive(self) -> bool:
        """Others used so much of the machine that the figures say nothing."""
        return self.foreign > FOREIGN_MAX

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {
            "name": self.name,
            "ours": self.ours,
            "reference": self.reference,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal": str(self.goal),
            "met": self.goal.is_met(self.ratio),
            "inconclusive": self.inconclusive,
            "ours_range": self.ours_range,
            "reference_range": self.reference_range,
            "foreign": self.foreign,
            "note": self.note,
        }


def row(
    name: str, figures: Figures, ours: str, reference: str, *, unit: str, goal: Goal, note: str
) -> Row:
    """A row from two figures that were taken in turn."""
    a, b = figures.values[ours], figures.values[reference]
    return Row(
        name=name,
        ours=statistics.median(a),
        reference=statistics.median(b),
        unit=unit,
        ratio=figures.ratio(ours, reference),
        goal=goal,
        ours_range=(min(a), max(a)),
        reference_range=(min(b), max(b)),
        foreign=figures.foreign,
        note=note,
    )


def constant_row(
    name: str, values: Sequence[float], bound: float, *, unit: str, note: str, foreign: float = 0.0
) -> Row:
    """A row whose reference is a number: the ratio's goal is at most 1."""
    ours = statistics.median(values)
    return Row(
        name=name,
        ours=ours,
        reference=bound,
        unit=unit,
        ratio=ours / bound,
        goal=Goal(1.0, at_least=False),
        ours_range=(min(values), max(values)),
        reference_range=(bound, bound),
        foreign=foreign,
        note=note,
    )


HEADINGS = ("row", "ours", "reference", "unit", "ratio", "goal", "", "others' CPU")


def table(rows: Sequence[Row]) -> str:
    """The rows for people: medians with (smallest..largest)."""
    cells = [HEADINGS, *(_cells(r) for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADINGS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


def _cells(r: Row) -> tuple[str, ...]:
    verdict = "met" if r.goal.is_met(r.ratio) else "MISSED"
    return (
        r.name,
        _figure(r.ours, r.ours_range),
        _figure(r.reference, r.reference_range),
        r.unit,
        f"{r.ratio:.3f}",
        str(r.goal),
        "inconclusive" if r.inconclusive else verdict,
        f"{r.foreign:.0%}",
    )


def _figure(value: float, extent: tuple[float, float]) -> str:
    low, high = extent
    return f"{value:.4g}" if low == high else f"{value:.4g} ({low:.3g}..{high:.3g})"


def dump(rows: Sequence[Row], machine: dict[str, str]) -> str:
    """Rows and machine as one JSON object, for ``--json``."""
    return json.dumps({"rows": [r.to_json() for r in rows], "machine": machine})
