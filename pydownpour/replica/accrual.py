"""Gradients that no push carries yet: gathered from the user's arrays, added up, made a push of."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from pydownpour import _core
from pydownpour.errors import UnsupportedArray
from pydownpour.layout import Flat, Layout, as_array, raw, supported_dtype
from pydownpour.replica.encoder import Encoded, Encoder
from pydownpour.replica.pushes import Base

PLAIN_DTYPES: Final = {np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)}
"""What numpy converts to float32 by itself."""


@final
class _Slot:
    """A gradient buffer over the whole layout, and a view of it for each array."""

    __slots__ = ("flat", "views")

    def __init__(self, layout: Layout) -> None:
        self.flat = layout.zeros()
        self.views = list(layout.views(self.flat).values())


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """One step's gradient, and what the scan of it found.

    Attributes:
        values: (elements of the layout,) float32; until the next gradient is gathered.
        bad: Values that are NaN or infinite.
        first: The first of them, an element of the layout; -1 if there is none.
        norm: L2 norm of the others.
    """

    values: Flat
    bad: int
    first: int
    norm: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Accrued:
    """What one push will carry.

    Attributes:
        values: The sum of the steps' gradients, (elements of the layout,) float32.
        encoded: The same, as it is sent.
        base: The parameters that the oldest was computed from.
        samples, steps: In it.
        leases: The units they belong to.
    """

    values: Flat
    encoded: Encoded
    base: Base
    samples: int
    steps: int
    leases: tuple[int, ...]


@final
class Accrual:
    """Adds gradients up until they are taken for a push; of the user's thread.

    Args:
        layout: The job's.
        encoder: Makes of a gradient what is sent.
        released: Buffers of settled pushes: they are used again.
    """

    def __init__(self, layout: Layout, encoder: Encoder, released: list[Flat]) -> None:
        self._layout, self._encoder, self._released = layout, encoder, released
        self._names = [spec.name for spec in layout.arrays]
        self._shapes = [spec.shape for spec in layout.arrays]
        self._starts = [spec.start for spec in layout.arrays]
        self._slots: dict[int, _Slot] = {}
        self._slot = self._new_slot()
        self._sum: _Slot | None = None
        self._norm = 0.0
        self._base = Base()
        self._samples = self._steps = 0
        self._leases: dict[int, None] = {}

    @property
    def is_empty(self) -> bool:
        """Every gradient that was given is in a push."""
        return self._sum is None

    def gather(self, gradients: Mapping[str, Any]) -> Gathered:
        """Lay one gradient's arrays end to end, and look at it; None stands for zeros."""
        self._fill(gradients, self._slot)
        bad, first, squares = _core.check(raw(self._slot.flat), 1)
        return Gathered(self._slot.flat, bad, first, math.sqrt(squares))

    def add(
        self,
        gathered: Gathered,
        base: Base,
        samples: int,
        lease: int | None,
    ) -> None:
        """Add what was just gathered."""
        if self._sum is None:
            self._sum, self._slot = self._slot, self._free_slot()
            self._norm, self._base = gathered.norm, base
        else:
            _core.accumulate(self._sum.flat, gathered.values, 1, overwrite=False)
        self._steps += 1
        self._samples += samples
        if lease is not None:
            self._leases[lease] = None

    def take(self) -> Accrued | None:
        """Everything since the last time, encoded; None if there is nothing."""
        slot, self._sum = self._sum, None
        if slot is None:
            return None
        # A single gradient was looked at when it was gathered.
        encoded = self._encoder.encode(slot.flat, self._norm if self._steps == 1 else None)
        accrued = Accrued(
            values=slot.flat,
            encoded=encoded,
            base=self._base,
            samples=self._samples,
            steps=self._steps,
            leases=tuple(self._leases),
        )
        self._samples = self._steps = 0
        self._leases.clear()
        return accrued

    def place(self, element: int) -> tuple[str, int]:
        """An element of the layout as (array, flat index in it)."""
        spec = self._layout.arrays[bisect.bisect_right(self._starts, element) - 1]
        return spec.name, element - spec.start

    def _fill(self, gradients: Mapping[str, Any], slot: _Slot) -> None:
        if type(gradients) is not dict and not isinstance(gradients, Mapping):
            raise UnsupportedArray(
                f"step() takes a mapping from names to gradients, not a {type(gradients).__name__}"
            )
        if len(gradients) != len(self._names):
            self._layout.check_names(gradients)
        try:
            arrays = [gradients[name] for name in self._names]
        except KeyError:
            self._layout.check_names(gradients)
            raise
        kinds = set(map(type, arrays))
        if kinds != {np.ndarray}:
            arrays = [
                None if value is None else as_array(name, value, "gradient")
                for name, value in zip(self._names, arrays, strict=True)
            ]
            kinds = set(map(type, arrays))
        if (
            kinds == {np.ndarray}
            and {array.dtype for array in arrays} <= PLAIN_DTYPES
            and [array.shape for array in arrays] == self._shapes
        ):
            # One call for all of them: with thousands of arrays, a statement each costs more than
            # copying their elements.
            np.concatenate(arrays, axis=None, out=slot.flat, casting="same_kind")
            return
        for spec, array, view in zip(self._layout.arrays, arrays, slot.views, strict=True):
            if array is None:
                view[...] = 0
                continue
            if array.dtype.kind != "f":
                supported_dtype(spec.name, array, "gradient")
            if array.shape != view.shape:
                raise self._layout.shape_error(spec, array.shape)
            view[...] = array

    # -- buffers ---------------------------------------------------------------------------------

    def _new_slot(self) -> _Slot:
        slot = _Slot(self._layout)
        self._slots[id(slot.flat)] = slot
        return slot

    def _free_slot(self) -> _Slot:
        """A buffer of a settled push, or a new one."""
        return self._slots[id(self._released.pop())] if self._released else self._new_slot()
