"""How arrays become the frames of a push, slowly: gather all, look at all, cast all, then cut.

``encode`` follows rust/downpour/src/push without codecs. Sums of squares are taken as the core's
kernel takes them: element i of a fragment is added to partial sum i % 16, the partial sums are
added in pairs, and the fragments' sums in their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.frames import Frame

FRAGMENT, LANES = 2, 16
WIRE = {1: np.float32, 2: np.float64, 3: np.float16}


@dataclasses.dataclass(frozen=True)
class Found:
    """What is wrong with a gradient, and how long it is."""

    bad: int
    first_bad: int
    overflowed: int
    first_overflowed: int
    underflowed: int
    squares: float


def gather(arrays: Sequence[NDArray[Any] | None], lens: Sequence[int]) -> NDArray[np.float32]:
    """The arrays end to end, as float32; None is zeros."""
    parts = [
        np.zeros(length, np.float32) if array is None else array.astype(np.float32).reshape(-1)
        for array, length in zip(arrays, lens, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def squares(values: NDArray[Any]) -> float:
    """Of the finite elements of one fragment."""
    exact = values.astype(np.float64)
    exact = np.where(np.isfinite(exact), exact, 0.0)
    exact = np.concatenate([exact, np.zeros(-len(exact) % LANES)]).reshape(-1, LANES)
    sums = np.zeros(LANES)
    for row in exact:
        sums = sums + row * row
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return float(sums[0])


def first(wrong: NDArray[np.bool_]) -> int:
    """Index of the first, or -1."""
    return int(np.argmax(wrong)) if wrong.any() else -1


def encode(
    values: NDArray[np.float32],
    *,
    dtype: int,
    fragment_len: int,
    replica: int,
    incarnation: int,
    push: int,
    versions: Sequence[int],
) -> tuple[bytes, Found]:
    """All frames one behind the other, and what there is to say of the gradient."""
    with np.errstate(over="ignore"):
        sent = values.astype(WIRE[dtype])
    pieces = [sent[i : i + fragment_len] for i in range(0, len(sent), fragment_len)]
    frames = [
        Frame(
            kind=FRAGMENT,
            dtype=dtype,
            replica=replica,
            incarnation=incarnation,
            fragment=index,
            seq=push,
            version=version,
            payload=piece.tobytes(),
        ).encode()
        for index, (piece, version) in enumerate(zip(pieces, versions, strict=True))
    ]
    bad, wrong = ~np.isfinite(values), ~np.isfinite(sent)
    total = 0.0
    for piece in pieces:
        total += squares(piece)
    return b"".join(frames), Found(
        bad=int(bad.sum()),
        first_bad=first(bad),
        overflowed=int(wrong.sum() - bad.sum()),
        first_overflowed=first(wrong) if dtype != 1 else -1,
        underflowed=int((sent == 0).sum() - (values == 0).sum()),
        squares=total,
    )
