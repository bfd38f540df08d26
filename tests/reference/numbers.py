"""Elements as their dtype codes say, and the scan of a gradient, in numpy: the core's twin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMPY = {1: "<f4", 2: "<f8", 3: "<f2"}
BF16 = 4
LANES = 16


def elements(data: Any, dtype: int) -> NDArray[np.float64]:
    """Raw elements of a dtype code, exactly."""
    raw = bytes(data)
    if dtype == BF16:
        return (np.frombuffer(raw, "<u2").astype("u4") << 16).view("f4").astype("f8")
    return np.frombuffer(raw, NUMPY[dtype]).astype("f8")


def check(data: Any, dtype: int) -> tuple[int, float]:
    """(count of elements that are not finite, sum of the squares of the others).

    Element ``i`` is added to partial sum ``i % 16``, the partial sums in pairs: the core's bits.
    """
    values = elements(data, dtype)
    finite = np.isfinite(values)
    rows = np.zeros((-(-len(values) // LANES), LANES))
    with np.errstate(over="ignore"):
        rows.flat[: len(values)] = np.where(finite, values, 0.0) ** 2
        sums = np.zeros(LANES)
        for row in rows:
            sums += row
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return int(np.sum(~finite)), float(sums[0])
