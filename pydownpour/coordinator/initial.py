"""A job's initial parameters on their way to the shards.

They are kept once, as the arrays that the job declares: what a shard is sent is cut from them piece
by piece, as fast as the shard takes it. However many read, and however slowly, there is no second
copy.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour.errors import ConfigError
from pydownpour.layout import ArraySpec, Layout, raw
from pydownpour.net.server import FrameBody

PIECE_LEN: Final = 16 * 1024
"""Elements handed out at once: on the slowest link that is waited for a few seconds' worth, so that
a shard that loads is known to live."""


@final
class InitialParameters:
    """Reads a layout's elements from the arrays that were declared.

    Args:
        layout: Where each array lies.
        arrays: In any dtype and with any strides; what is float32 and contiguous is not copied.

    Raises:
        ConfigError: one of them is NaN or infinite (also: too large for float32).
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._layout, self._arrays = layout, arrays
        self._starts = [spec.start for spec in layout.arrays]
        self._readers: dict[int, object] = {}
        self._check()

    def _check(self) -> None:
        for spec in self._layout.arrays:
            for start in range(0, spec.len, PIECE_LEN):
                stop = min(start + PIECE_LEN, spec.len)
                if not np.isfinite(self._elements(spec, start, stop)).all():
                    raise ConfigError(
                        f"initial parameter {spec.describe()} holds NaN, infinite or too large "
                        "values"
                    )

    def body(self, shard: int, start: int, stop: int, moved: Callable[[], object]) -> FrameBody:
        """Elements [start, stop) as the body of an answer: little-endian float32.

        Args:
            shard: Who reads. It reads once at a time: a newer body ends the one before it.
            start: The first element.
            stop: One after the last.
            moved: Called for every piece that was taken.
        """
        pieces = self.pieces(start, stop)
        reader = self._readers[shard] = object()

        def produce() -> list[memoryview] | None:
            if self._readers.get(shard) is not reader:
                raise ConnectionResetError(f"shard {shard} reads by a newer connection")
            moved()
            piece = next(pieces, None)
            return None if piece is None else [piece]

        return FrameBody(produce)

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes of elements [start, stop), ``PIECE_LEN`` of them at a time."""
        for at in range(start, stop, PIECE_LEN):
            yield raw(self._piece(at, min(at + PIECE_LEN, stop)))

    def _piece(self, start: int, stop: int) -> NDArray[Any]:
        index = bisect.bisect_right(self._starts, start) - 1
        spec = self._layout.arrays[index]
        if stop <= spec.start + spec.len:
            return self._elements(spec, start - spec.start, stop - spec.start)
        piece = np.empty(stop - start, "<f4")
        at = start
        while at < stop:
            spec = self._layout.arrays[index]
            end = min(stop, spec.start + spec.len)
            piece[at - start : end - start] = self._elements(
                spec, at - spec.start, end - spec.start
            )
            at, index = end, index + 1
        return piece

    def _elements(self, spec: ArraySpec, start: int, stop: int) -> NDArray[Any]:
        """Elements [start, stop) of one array in C order: a view of it, if that can be."""
        array = self._arrays[spec.name]
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        with np.errstate(over="ignore"):
            return flat[start:stop].astype("<f4", copy=False)
