"""Which samples a work unit holds: a pure function of the job's seed, so nobody sends index lists.

Every replica computes the same order for the same pass; any machine can audit any unit.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray


@functools.lru_cache(maxsize=2)  # the pass that runs and the one whose stragglers still do
def pass_order(length: int, shuffle: bool, seed: int, number: int) -> NDArray[np.int64]:
    """The order in which pass ``number`` visits samples 0 .. length-1.

    Args:
        length: Samples, >= 1.
        shuffle: False gives 0, 1, 2, ...
        seed: The job's seed.
        number: The pass, from 0; each has its own order.

    Shapes:
        returns: (length,) int64, read-only.
    """
    if shuffle:
        order = np.random.default_rng([seed, number]).permutation(length).astype(np.int64)
    else:
        order = np.arange(length, dtype=np.int64)
    order.flags.writeable = False
    return order


def units_in_pass(length: int, unit: int) -> int:
    """Work units a pass of ``length`` samples is cut into."""
    return -(-length // unit)
