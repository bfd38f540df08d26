"""How a replica's gradients become the bytes that are sent, and what a codec leaves of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.codecs import compiled, described
from pydownpour.errors import NonFiniteGradient
from pydownpour.layout import DTYPE_CODES, DTYPE_SIZES, Flat, raw
from pydownpour.replica.pushes import Push
from pydownpour.wire.messages import Joined

F32 = DTYPE_CODES["float32"]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """A gradient as it is sent, and what the scan of just those bytes found.

    Attributes:
        data: The bytes of all fragments, one behind the other.
        bad: Values that are NaN or infinite in it, or that a codec has no bytes for.
        first: Index of the first of them, or -1.
        norm: L2 norm of the others, as they are received.
        underflowed: Values that are zero in it and were not before.
        cuts: With a codec, where each fragment begins in ``data``, and the end.
    """

    data: memoryview
    bad: int
    first: int
    norm: float
    underflowed: int = 0
    cuts: NDArray[np.int64] | None = None


@final
class Encoder:
    """One replica's; of the user's thread.

    With a codec the residual is here: it moves when a gradient is encoded, and gets back what that
    took when the push is not applied.

    Args:
        joined: What gradients travel as, and how long a fragment is.
        length: Elements of the layout.

    Attributes:
        words: What gradients travel as, for people.
        wider: What else the job could choose, where something is too large for that.
        residual: What earlier pushes lacked, (elements of the layout,) float32; None without codec.
    """

    def __init__(self, joined: Joined, length: int) -> None:
        self._wire_dtype = joined.wire_dtype
        self._codec = compiled(joined.codec)
        self.words = joined.wire_dtype if joined.codec is None else described(joined.codec)
        self.wider = {"float32": ""}.get(
            joined.wire_dtype, "wire_dtype='float32' or 'bfloat16' for the job, or "
        )
        self.residual: Flat | None = None
        self._bounds: list[tuple[int, int]] = []
        if self._codec is not None:
            self.wider = "no codec for the job, or "
            self.residual = np.zeros(length, np.float32)
            cuts = range(0, length, joined.fragment_len)
            self._bounds += itertools.pairwise((*cuts, length))
            self._decoded = np.empty(min(joined.fragment_len, length), np.float32)

    def encode(self, values: Flat, norm: float | None) -> Encoded:
        """Put a gradient into what it travels as, and look at the result, not at what it was.

        Args:
            values: Finite unless ``norm`` is None; unchanged until the push is settled.
            norm: Of the values, if they were looked at.
        """
        if self._codec is not None:
            return self._encode(self._codec, values)
        code = DTYPE_CODES[self._wire_dtype]
        if code == F32:
            if norm is not None:
                return Encoded(raw(values), 0, -1, norm)
            bad, first, squares = _core.check(raw(values), F32)
            return Encoded(raw(values), bad, first, math.sqrt(squares))
        data = memoryview(bytearray(len(values) * DTYPE_SIZES[self._wire_dtype]))
        _core.cast(values, F32, data, code)
        bad, first, squares = _core.check(data, code)
        underflowed = _core.zeros(data, code) - _core.zeros(values, F32)
        return Encoded(data, bad, first, math.sqrt(squares), underflowed)

    def _encode(self, codec: _core.Codec, values: Flat) -> Encoded:
        assert self.residual is not None
        data = memoryview(bytearray(sum(codec.size_max(b - a) for a, b in self._bounds)))
        cuts = np.zeros(len(self._bounds) + 1, np.int64)
        squares, at = 0.0, 0
        for index, (start, stop) in enumerate(self._bounds):
            left = self.residual[start:stop]
            try:
                size = codec.encode(values[start:stop], left, data[at:])
            except NonFiniteGradient as error:
                self._give_back(data, cuts, values, range(index))
                bad, first = error.details["count"], start + error.details["first_index"]
                return Encoded(data, bad, first, math.inf)
            decoded = self._decoded[: stop - start]
            codec.decode(data[at : at + size], decoded)
            squares += _core.check(raw(decoded), F32)[2]
            at += size
            cuts[index + 1] = at
        return Encoded(data[:at], 0, -1, math.sqrt(squares), cuts=cuts)

    def not_applied(self, push: Push) -> None:
        """Give back what the fragments of a push took that were refused, or never sent."""
        if push.cuts is not None:
            self._give_back(push.data, push.cuts, push.values, push.refused_fragments)

    def _give_back(
        self,
        data: memoryview,
        cuts: NDArray[np.int64],
        values: Flat,
        fragments: range | list[int],
    ) -> None:
        assert self._codec is not None
        assert self.residual is not None
        for index in fragments:
            start, stop = self._bounds[index]
            some = data[cuts[index] : cuts[index + 1]]
            self._codec.give_back(some, values[start:stop], self.residual[start:stop])
