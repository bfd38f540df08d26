"""Rounds of deltas, slowly: each replica's copy, its optimizer, and the outer one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.reference import optimizers
from tests.reference.optimizers import Array, Context, Parts

Gradient = Callable[[Array, int, int], Array]
"""Of parameters, by replica (from 1) and step (from 0)."""


def trained(
    w: Array,
    gradient: Gradient,
    *,
    local: Parts,
    outer: Parts,
    members: int,
    steps: int,
    every: int,
    mean: bool = True,
    samples: Sequence[int] = (),
    keeps_state: bool = True,
) -> Array:
    """The parameters when each of the members has made so many steps; the last block may be short.

    A round adds up base - local in the order of ids, and its mean (or sum) is the outer optimizer's
    gradient. ``samples``: of each member's step, if a delta weighs as many as its own.
    """
    states = [optimizers.initial(local, len(w)) for _ in range(members)]
    since = [0] * members
    outer_state = optimizers.initial(outer, len(w))
    for round, start in enumerate(range(0, steps, every)):
        stop = min(start + every, steps)
        weights = [float(count * (stop - start)) for count in samples] or [1.0] * members
        total = np.zeros_like(w)
        for i in range(members):
            mine = w
            for step in range(start, stop):
                since[i] += 1
                g = gradient(mine, i + 1, step)
                at = Context(step + 1)
                mine, states[i] = optimizers.update(local, mine, g, states[i], at, since=since[i])
            total = total + np.float32(weights[i]) * (w - mine)
            if not keeps_state:
                states[i], since[i] = optimizers.initial(local, len(w)), 0
        scale = 1.0 / sum(weights) if mean else 1.0
        w, outer_state = optimizers.update(
            outer, w, total, outer_state, Context(round + 1), scale=np.float32(scale)
        )
    return w


def alone(w: Array, gradient: Gradient, *, local: Parts, steps: int) -> NDArray[np.float32]:
    """One optimizer and its parameters, and nothing else."""
    state = optimizers.initial(local, len(w))
    for step in range(steps):
        w, state = optimizers.update(local, w, gradient(w, 1, step), state, Context(step + 1))
    return w
