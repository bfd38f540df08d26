"""A push as it travels: encoded and checksummed once, kept until settled, sent again as it is.

An :class:`EncodedPush` is a run of whole FRAGMENT frames, header and payload of each fragment of
the layout one behind the other. The :class:`Encoder` makes it from the user's arrays in one pass of
the core, in the user's thread; whoever sends it, once or again, only writes slices of it.

A codec plugs in at the encoder and nowhere else: the core's ``Arrays.encode`` takes a compiled
``_core.Codec`` and its residual beside the dtype, for a gradient that ``Arrays.check`` has found
finite. The frames' places follow from the codec's ``size_max``: every fragment has as many bytes as
it may have at most. A residual is the encoder's own memory: it moves when a push is encoded, and
what a refusal gives back is given back there.

Memory of an encoded push is used again as its records are acknowledged, fragment by fragment: what
a shard has acknowledged it has read. So one buffer is enough to encode the next push into while the
end of the last one is still on its way. A push that was refused may have been refused before it was
read: its memory is left to the connections that still hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.errors import UnsupportedArray
from pydownpour.layout import DTYPE_CODES, DTYPE_SIZES, Layout, as_array, raw, supported_dtype
from pydownpour.wire.messages import Joined

NATIVE: Final = {np.dtype(name): DTYPE_CODES[name] for name in ("float32", "float64", "float16")}
"""numpy's own float types, as the core knows them."""


@final
class EncodedPush:
    """The frames of one push.

    Args:
        size: Bytes of all of them.
        stride: Bytes from one frame to the next.
        fragments: How many there are.
    """

    __slots__ = ("_memory", "_view", "fragments", "stride")

    def __init__(self, size: int, stride: int, fragments: int) -> None:
        self._memory: NDArray[np.uint8] = np.empty(size, np.uint8)
        self._view = self._memory.data
        self.stride, self.fragments = stride, fragments

    @property
    def memory(self) -> NDArray[np.uint8]:
        """All bytes, to write into."""
        return self._memory

    def frames(self, first: int, count: int) -> memoryview:
        """The frames of fragments first .. first + count - 1, ready to be written."""
        return self._view[first * self.stride : (first + count) * self.stride]


@final
class Encoder:
    """How one replica's gradients travel; of the user's thread.

    Args:
        layout: The job's.
        joined: Who we are, how long a fragment is, and what gradients travel as.

    Attributes:
        fragments: Of the layout.
        size: Bytes of an encoded push.
    """

    def __init__(self, layout: Layout, joined: Joined) -> None:
        self._layout, self._joined = layout, joined
        self._names = [spec.name for spec in layout.arrays]
        self._gather = _core.Gather([spec.shape for spec in layout.arrays])
        self._whole = _core.Gather([(layout.len,)])
        self._dtype = DTYPE_CODES[joined.wire_dtype]
        self._item_size = DTYPE_SIZES[joined.wire_dtype]
        self.fragment_len = min(joined.fragment_len, layout.len)
        self.fragments = math.ceil(layout.len / self.fragment_len)
        self.size = layout.len * self._item_size + self.fragments * limits.HEADER_SIZE

    def room(self) -> EncodedPush:
        """Memory for one push."""
        stride = limits.HEADER_SIZE + self.fragment_len * self._item_size
        return EncodedPush(self.size, stride, self.fragments)

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
            count: and how many.
        """
        return arrays.encode(
            room.memory,
            dtype=self._dtype,
            fragment_len=self.fragment_len,
            first=first,
            count=count,
            replica=self._joined.replica,
            incarnation=self._joined.incarnation,
            push=push,
            versions=base,
        )

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
