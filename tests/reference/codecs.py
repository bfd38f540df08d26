"""The codecs, slowly: numpy float32, one operation at a time, rounded after each.

Layouts, rounding and sources are named in ``rust/downpour/src/codec``.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
f32 = np.float32
SMALLEST_NORMAL: Final = f32(2.0**-126)


class Codec(Protocol):
    """What each twin can do."""

    number: int

    def encode(self, x: Array) -> bytes:
        """Bytes of elements that are compensated already.

        Raises:
            ValueError: no bytes can say them.
        """

    def decode(self, data: bytes, len: int) -> Array:
        """Elements of bytes that anybody may have made.

        Raises:
            ValueError: they are not so many.
        """


class Int8:
    """A scale for each block, then a code for each element."""

    number = 1

    def __init__(self, block: int) -> None:
        self.block = block

    def encode(self, x: Array) -> bytes:
        """scale = max|x|/127, code = x * (1/scale) to the nearest whole number, ties to even."""
        scales, codes = [], []
        for start in range(0, len(x), self.block):
            some = x[start : start + self.block]
            with np.errstate(over="ignore"):
                scale = f32(np.abs(some).max() / f32(127))
                if not (np.isfinite(some).all() and np.isfinite(scale * f32(127))):
                    raise ValueError("not finite, or too large")
            scale = scale if scale >= SMALLEST_NORMAL else f32(0)
            inverse = f32(1) / scale if scale else f32(0)
            scales.append(scale)
            codes.append(np.rint(some * inverse).astype(np.int8))
        head = np.array(scales, "<f4").tobytes()
        return head + b"".join(some.tobytes() for some in codes)

    def decode(self, data: bytes, len: int) -> Array:
        """code * scale."""
        head = 4 * -(-len // self.block)
        if memoryview(data).nbytes != head + len:
            raise ValueError("length")
        scales = np.frombuffer(data, "<f4", head // 4).repeat(self.block)[:len]
        with np.errstate(all="ignore"):
            decoded: Array = np.frombuffer(data, np.int8, offset=head).astype("f4") * scales
        return decoded


def encode(codec: Codec, gradient: Array, residual: Array) -> tuple[bytes, Array]:
    """Error feedback: the bytes of gradient + residual, and what they lack of it.

    Seide et al. 2014, section 2: x = g + r; send x as bytes that decode to d; r = x - d.
    """
    x = gradient + residual
    data = codec.encode(x)
    return data, x - codec.decode(data, len(x))


def give_back(codec: Codec, data: bytes, gradient: Array, residual: Array) -> Array:
    """The residual without what encoding the gradient to data did to it."""
    return (residual + codec.decode(data, len(gradient))) - gradient


def of(name: str, numbers: dict[str, Any]) -> Codec:
    """The twin of a codec's description."""
    return {"int8": Int8}[name](int(numbers["block"]))
