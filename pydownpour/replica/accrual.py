"""What no push carries yet: gradients, added up; or what is behind a replica's own steps."""

from __future__ import annotations

import dataclasses
from typing import final

from pydownpour import _core
from pydownpour.layout import Flat, Layout
from pydownpour.replica.pushes import Base


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Accrued:
    """What one push will carry, beside the gradient itself.

    Attributes:
        base: The parameters that the oldest was computed from.
        samples, steps: In it.
        leases: The units they belong to.
    """

    base: Base
    samples: int
    steps: int
    leases: tuple[int, ...]


@final
class Accrual:
    """Adds gradients up until a push takes them; of the user's thread.

    Its memory is made when the first gradient has to wait for a push: a replica that pushes after
    each step has none.

    Args:
        layout: The job's.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sum: Flat | None = None
        self._base = Base()
        self._samples = self._steps = 0
        self._leases: dict[int, None] = {}

    @property
    def is_empty(self) -> bool:
        """Every gradient that was given is in a push."""
        return self._steps == 0

    @property
    def sum(self) -> Flat:
        """(elements of the layout,) float32: of what was added since the last ``take``."""
        if self._sum is None:
            self._sum = self._layout.zeros()
        return self._sum

    def add(self, arrays: _core.Arrays, base: Base, samples: int, lease: int | None) -> None:
        """Add one gradient, all of whose elements are finite."""
        arrays.accumulate(self.sum, overwrite=self.is_empty)
        self.note(base, samples, lease)

    def note(self, base: Base, samples: int, lease: int | None) -> None:
        """The same of one that the replica has made a step of: the copy has it."""
        if self.is_empty:
            self._base = base
        self._steps += 1
        self._samples += samples
        if lease is not None:
            self._leases[lease] = None

    def take(self) -> Accrued:
        """What was added, for a push; until the next ``add``, which begins anew, ``sum`` stays."""
        accrued = Accrued(self._base, self._samples, self._steps, tuple(self._leases))
        self._samples = self._steps = 0
        self._leases.clear()
        return accrued
