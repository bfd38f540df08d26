"""A push as it travels: encoded and checksummed once, kept until settled, sent again as it is.

An :class:`EncodedPush` is a run of whole FRAGMENT frames, header and payload of each fragment of
the layout one behind the other. The :class:`Encoder` makes it from the user's arrays in one pass of
the core, in the user's thread; whoever sends it, once or again, only writes slices of it.

A codec plugs in at the encoder and nowhere else: the core's ``Arrays.encode`` takes a compiled
``_core.Codec`` and its residual beside the dtype, for a gradient that ``Arrays.check`` has found
finite. Its frames have any length, and of fragments of which it has nothing to say there are none:
a push leaves them out. A residual is the encoder's own memory: it moves when a push is encoded, and
what a refusal gives back is given back there.

Memory of an encoded push is used again as its records are acknowledged, fragment by fragment: what
a shard has acknowledged it has read. So one buffer is enough to encode the next push into while the
end of the last one is still on its way. A push that was refused may have been refused before it was
read: its memory is left to the connections that still hold it.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.codecs import compiled, described
from pydownpour.errors import UnsupportedArray
from pydownpour.layout import DTYPE_CODES, DTYPE_SIZES, Flat, Layout, as_array, raw, supported_dtype
from pydownpour.wire.messages import Joined

NATIVE: Final = {np.dtype(name): DTYPE_CODES[name] for name in ("float32", "float64", "float16")}
"""numpy's own float types, as the core knows them."""


@final
class EncodedPush:
    """The frames of one push.

    Args:
        size: Bytes of all of them, at most.
        stride: Without a codec, bytes from one frame to the next.
        fragments: How many the layout has.
        gradient: With a codec, the gradient itself: what is refused gives back by it.

    Attributes:
        left_out: The fragments that have no frame, ascending.
    """

    __slots__ = ("_ends", "_memory", "_view", "fragments", "gradient", "left_out", "stride")

    def __init__(
        self, size: int, stride: int, fragments: int, gradient: Flat | None = None
    ) -> None:
        self.gradient = gradient
        self._memory: NDArray[np.uint8] = np.empty(size, np.uint8)
        self._view = self._memory.data
        self.stride, self.fragments = stride, fragments
        self._ends: list[int] | None = None
        """With a codec, where each fragment's frame ends, and the next one begins."""
        self.left_out: list[int] = []

    def encoded(self, ends: list[int]) -> None:
        """A codec has encoded all of it: where each fragment's frame ends."""
        self._ends = ends
        begins = (0, *ends)
        self.left_out = [one for one, end in enumerate(ends) if end == begins[one]]

    @property
    def memory(self) -> NDArray[np.uint8]:
        """All bytes, to write into."""
        return self._memory

    def frames(self, first: int, count: int) -> memoryview:
        """The frames of fragments first .. first + count - 1, ready to be written."""
        ends = self._ends
        if ends is None:
            return self._view[first * self.stride : (first + count) * self.stride]
        return self._view[ends[first - 1] if first else 0 : ends[first + count - 1]]

    def sent(self) -> memoryview | bytes:
        """The frames of all fragments that are not left out, one behind the other."""
        if not self.left_out:
            return self.frames(0, self.fragments)
        left_out = set(self.left_out)
        has_frame = (one for one in range(self.fragments) if one not in left_out)
        return b"".join(self.frames(one, 1) for one in has_frame)

    @property
    def payload_size(self) -> int:
        """Bytes of all frames without their headers."""
        size = len(self._view) if self._ends is None else self._ends[-1]
        if self._ends is None:
            size -= sum(len(self.frames(one, 1)) for one in self.left_out)
        return size - limits.HEADER_SIZE * (self.fragments - len(self.left_out))


@final
@dataclasses.dataclass(slots=True)
class Found:
    """What encoding a whole push has found, piece by piece.

    Attributes:
        bad: Elements of the gradient that are NaN or infinite.
        overflowed: Elements that were finite and are not as they travel.
        underflowed: Elements that are zero as they travel and were not.
        squares: Sum of the squares of the finite ones as they travel.
        first_bad: The first of those, an element of the layout, or -1.
        first_overflowed: The first that is not finite as it travels, or -1.
    """

    bad: int = 0
    overflowed: int = 0
    underflowed: int = 0
    squares: float = 0.0
    first_bad: int = -1
    first_overflowed: int = -1

    def add(self, piece: _core.Encoded) -> None:
        """Some more fragments, in any order."""
        self.bad += piece.bad
        self.overflowed += piece.overflowed
        self.underflowed += piece.underflowed
        self.squares += piece.squares
        self.first_bad = _first(self.first_bad, piece.first_bad)
        self.first_overflowed = _first(self.first_overflowed, piece.first_overflowed)

    @property
    def norm(self) -> float:
        """L2 norm of what travels."""
        return math.sqrt(self.squares)


def _first(one: int, other: int) -> int:
    return max(one, other) if min(one, other) < 0 else min(one, other)


@final
class Encoder:
    """How one replica's gradients travel; of the user's thread.

    Args:
        layout: The job's.
        joined: Who we are, how long a fragment is, and what gradients travel as.
        leaves_out: Fragments of which a codec has nothing to say are not sent.

    Attributes:
        fragments: Of the layout.
        size: Bytes of an encoded push, at most.
        words: What gradients travel as, for people.
        wider: What else the job could choose, where something is too large for that.
        residual: What earlier pushes lacked, (elements of the layout,) float32; None without codec.
    """

    def __init__(self, layout: Layout, joined: Joined, *, leaves_out: bool = False) -> None:
        self._layout, self._joined = layout, joined
        self.leaves_out = leaves_out
        self._names = [spec.name for spec in layout.arrays]
        self._starts = [spec.start for spec in layout.arrays]
        self._gather = _core.Gather([spec.shape for spec in layout.arrays])
        self._whole = _core.Gather([(layout.len,)])
        self._dtype = DTYPE_CODES[joined.wire_dtype]
        self._item_size = DTYPE_SIZES[joined.wire_dtype]
        self.fragment_len = min(joined.fragment_len, layout.len)
        self.fragments = math.ceil(layout.len / self.fragment_len)
        self._codec = compiled(joined.codec)
        self.words = joined.wire_dtype if joined.codec is None else described(joined.codec)
        self.wider = {"float32": ""}.get(
            joined.wire_dtype, "wire_dtype='float32' or 'bfloat16' for the job, or "
        )
        self.residual: Flat | None = None
        if self._codec is not None:
            self.wider, self.residual = "no codec for the job, or ", layout.zeros()
        whole, rest = divmod(layout.len, self.fragment_len)
        self._stride = limits.HEADER_SIZE + self._payload_size(self.fragment_len)
        last = limits.HEADER_SIZE + self._payload_size(rest) if rest else 0
        self.size = whole * self._stride + last

    def room(self) -> EncodedPush:
        gradient = None if self._codec is None else self._layout.zeros()
        return EncodedPush(self.size, self._stride, self.fragments, gradient)

    def _payload_size(self, length: int) -> int:
        codec = self._codec
        return length * self._item_size if codec is None else codec.size_max(length)

    def encode(
        self,
        arrays: _core.Arrays,
        room: EncodedPush,
        *,
        push: int,
        base: NDArray[np.uint64],
        first: int,
        count: int,
    ) -> _core.Encoded:
        """Make the frames of fragments first .. first + count - 1.

        Args:
            arrays: The gradient.
            room: Where they go.
            push: Its number.
            base: Of each fragment, the version that the gradient was computed from.
            first: The first of them,
            count: and how many. With a codec all of them, of a finite gradient.
        """
        if room.gradient is not None:
            arrays.accumulate(room.gradient, overwrite=True)
        found = arrays.encode(
            room.memory,
            dtype=self._dtype,
            fragment_len=self.fragment_len,
            first=first,
            count=count,
            replica=self._joined.replica,
            incarnation=self._joined.incarnation,
            push=push,
            versions=base,
            codec=self._codec,
            residual=self.residual,
            leaves_out=self.leaves_out,
        )
        if self._codec is not None:
            room.encoded(found.ends)
        return found

    def not_applied(self, encoded: EncodedPush, fragments: Iterable[int]) -> None:
        """Give back what some fragments of a push took of the residual: they were refused."""
        gradient, residual = encoded.gradient, self.residual
        if self._codec is None or gradient is None or residual is None:
            return
        for fragment in fragments:
            start = fragment * self.fragment_len
            values = gradient[start : start + self.fragment_len]
            payload = encoded.frames(fragment, 1)[limits.HEADER_SIZE :]
            self._codec.give_back(payload, values, residual[start : start + len(values)])

    def place(self, element: int) -> tuple[str, int]:
        """An element of the layout as (array, flat index in it)."""
        spec = self._layout.arrays[bisect.bisect_right(self._starts, element) - 1]
        return spec.name, element - spec.start

    def take(self, gradients: Mapping[str, Any]) -> _core.Arrays:
        """A user's gradients, one for each array of the layout; None stands for zeros.

        Raises:
            GradientMismatch: names or shapes are not the layout's.
            UnsupportedArray: what is no array of floating-point numbers.
        """
        if type(gradients) is not dict and not isinstance(gradients, Mapping):
            raise UnsupportedArray(
                f"step() takes a mapping from names to gradients, not a {type(gradients).__name__}"
            )
        if len(gradients) != len(self._names):
            self._layout.check_names(gradients)
        try:
            values = [gradients[name] for name in self._names]
        except KeyError:
            self._layout.check_names(gradients)
            raise
        # Others have a buffer of plain floats, too: a masked array's mask would be lost.
        plain = set(map(type, values)) == {np.ndarray}
        return (self._gather.plain(values) if plain else None) or self._mixed(values)

    def whole(self, values: NDArray[np.float32]) -> _core.Arrays:
        """One run of all elements of the layout."""
        arrays = self._whole.plain([values])
        assert arrays is not None
        return arrays

    def _mixed(self, values: list[Any]) -> _core.Arrays:
        """As the core takes them: whatever it does not read is converted."""
        buffers: list[Any] = []
        codes: list[int] = []
        for spec, value in zip(self._layout.arrays, values, strict=True):
            if value is None:
                buffers.append(None)
                codes.append(DTYPE_CODES["float32"])
                continue
            array = as_array(spec.name, value, "gradient")
            if array.dtype.kind != "f":
                supported_dtype(spec.name, array, "gradient")
            if array.shape != spec.shape:
                raise self._layout.shape_error(spec, array.shape)
            code = NATIVE.get(array.dtype) or (
                DTYPE_CODES["bfloat16"] if array.dtype.name == "bfloat16" else 0
            )
            if not code:
                array, code = array.astype(np.float32), DTYPE_CODES["float32"]
            buffers.append(raw(np.ascontiguousarray(array)))
            codes.append(code)
        return self._gather.mixed(buffers, codes)
