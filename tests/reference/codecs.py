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


class Threshold:
    """An index and a sign for each element that is sent, or two bits for every one."""

    number = 2

    def __init__(self, tau: float) -> None:
        bits = int(f32(tau).view(np.uint32))
        whole, rest = divmod(bits, 1 << 16)
        self.tau = np.uint32((whole + (rest + whole % 2 > 1 << 15)) << 16).view(f32)
        self.limit = 2.0 ** (np.floor(np.log2(float(self.tau))) + 17)

    def encode(self, x: Array) -> bytes:
        """What exceeds tau is sent as tau, in the shorter of the two forms."""
        if not (np.abs(x.astype("f8")) < self.limit).all():
            raise ValueError("not finite, or too large")
        codes: NDArray[np.int64] = np.where(x > self.tau, 1, np.where(x < -self.tau, 2, 0))
        indices = np.flatnonzero(codes)
        dense = -(-len(x) // 4)
        if 4 * len(indices) < dense:
            return bytes((indices + (codes[indices] == 2) * 2**31).astype("<u4").data)
        fours = np.pad(codes, (0, 4 * dense - len(x))).reshape(dense, 4)
        return bytes((fours @ [1, 4, 16, 64]).astype(np.uint8).data)

    def decode(self, data: bytes, len: int) -> Array:
        """The quanta, each at its place."""
        size, dense = memoryview(data).nbytes, -(-len // 4)
        quanta: Array = np.array([0, self.tau, -self.tau], "f4")
        if size == dense:
            codes = (np.frombuffer(data, np.uint8)[:, None] >> [0, 2, 4, 6] & 3).ravel()
            if (codes == 3).any() or codes[len:].any():
                raise ValueError("codes")
            dense_ones: Array = quanta[codes[:len]]
            return dense_ones
        if size > dense or size % 4:
            raise ValueError("length")
        words = np.frombuffer(data, "<u4").astype("i8")
        indices = words % 2**31
        if (np.diff(indices, prepend=-1, append=len) < 1).any():
            raise ValueError("indices")
        decoded = np.zeros(len, "f4")
        decoded[indices] = quanta[1 + words // 2**31]
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
    return Int8(int(numbers["block"])) if name == "int8" else Threshold(**numbers)
