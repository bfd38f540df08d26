"""The replica's own copy of the parameters: what the user reads."""

from __future__ import annotations

from typing import final

import numpy as np

from pydownpour import _core
from pydownpour.layout import Flat, Layout, numpy_dtype
from pydownpour.replica.parameters import Parameters
from pydownpour.replica.pushes import Base


@final
class LocalCopy:
    """Named arrays over one flat run; of the user's thread.

    Arrays that are float32 are views of ``flat``. The others are arrays of their own, rounded from
    it after each change: what the user writes into them lasts until then.

    Shapes:
        flat: (elements of the layout,) float32.

    Args:
        layout: The job's.

    Attributes:
        parameters: The arrays, by name.
        base: What was fetched last.
    """

    def __init__(self, layout: Layout) -> None:
        self.flat: Flat = layout.zeros()
        self._keeps = False
        self._anchor: Flat | None = None
        """What the last fetch brought, where the copy's own progress since then is kept; of deltas,
        the copy as it was when the last fetch or push had ended."""
        self._since: Flat | None = None
        """Own steps since the fetch that comes next was asked for."""
        self._is_pushed = False
        """Pushes carry deltas of it."""
        self._is_moved = False
        """It has gained something that no push carries."""
        self._views = layout.views(self.flat)
        self._foreign = {
            spec.name: np.zeros(spec.shape, numpy_dtype(spec.dtype))
            for spec in layout.arrays
            if spec.dtype != "float32"
        }
        self.parameters = Parameters({**self._views, **self._foreign})
        self.base = Base()

    def begin(self, landing: str, *, is_pushed: bool = False) -> None:
        """From now on fetches land so.

        ``replace`` the copy, ``keep`` its own progress since the last, or ``redo`` its own steps
        since it was asked for. The next one replaces it, whatever it had gained by itself.
        ``is_pushed``: pushes carry what it gains.
        """
        self._is_pushed, self._is_moved = is_pushed, False
        self._keeps, self._anchor = landing == "keep", None
        self._since = np.zeros_like(self.flat) if landing == "redo" else None

    def land(self, values: Flat, base: Base) -> None:
        """Take what was fetched: replace the copy, keep what it gained by itself, or redo that."""
        if self._since is not None:
            np.add(values, self._since, out=self.flat)
        elif self._anchor is None or (self._is_pushed and not self._is_moved):
            # Nothing is kept, so nothing is rounded either.
            np.copyto(self.flat, values)
            if self._anchor is not None:
                np.copyto(self._anchor, values)
            elif self._keeps:
                self._anchor = values.copy()
        else:
            np.subtract(values, self._anchor, out=self._anchor)
            np.add(self.flat, self._anchor, out=self.flat)
            np.copyto(self._anchor, values)
        self._round_foreign()
        self.base = base

    def step(self, gradient: _core.Arrays, rate: float) -> None:
        """Move it by one gradient: the local step between fetches."""
        gradient.step(self.flat, rate)
        if self._since is not None:
            gradient.step(self._since, rate)
        self._round_foreign()

    def train(self, gradient: _core.Arrays, optimizer: _core.LocalOptimizer, samples: int) -> bool:
        """One step of the replica's own optimizer; False if something did not stay finite."""
        self._is_moved = True
        is_finite = optimizer.step(self.flat, gradient, samples=samples)
        self._round_foreign()
        return is_finite

    def trained(self) -> None:
        """The user's loop has written another step into the arrays."""
        self._is_moved = True
        for name, array in self._foreign.items():
            # Where it wrote nothing, the view is more exact than its rounding.
            view = self._views[name]
            np.copyto(view, array, where=array != view.astype(array.dtype), casting="unsafe")

    def delta(self) -> Flat:
        """How far it went since the last push or fetch, (elements,) float32, as a gradient has it.

        In the place of what it went from, which nobody can take again; :meth:`carried` ends that.
        """
        assert self._anchor is not None
        return np.subtract(self._anchor, self.flat, out=self._anchor)

    def carried(self) -> None:
        """A push has the delta, or it is given up: the next one begins here."""
        assert self._anchor is not None
        np.copyto(self._anchor, self.flat)
        self._is_moved = False

    def asked(self) -> None:
        """A fetch is about to be asked for: what was stepped until now, it will bring."""
        if self._since is not None:
            self._since.fill(0.0)

    def _round_foreign(self) -> None:
        for name, array in self._foreign.items():
            array[...] = self._views[name]
