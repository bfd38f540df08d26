"""The optimizers, slowly: numpy float32, one operation at a time, rounded after each.

Each function takes parameters, gradient, state planes and its numbers, and returns new arrays.
``t`` counts the updates of the fragment, this one included. Sources are named in
``pydownpour.optimizers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
State = list[Array]
f32 = np.float32


def _power(base: float, exponent: int) -> float:
    """By squaring: the C library's pow is not the same on every machine."""
    power = 1.0
    while exponent:
        if exponent & 1:
            power *= base
        base *= base
        exponent >>= 1
    return power


def clip(w: Array, g: Array, *, max: float) -> Array:
    """Each element of g into [-max, max]."""
    return np.minimum(np.maximum(g, -f32(max)), f32(max))


def weight_decay(w: Array, g: Array, *, rate: float) -> Array:
    """g + rate * w."""
    return g + f32(rate) * w


def sgd(w: Array, g: Array, state: State, t: int, *, lr: float) -> tuple[Array, State]:
    """w - lr * g."""
    return w - f32(lr) * g, []


def momentum(
    w: Array, g: Array, state: State, t: int, *, lr: float, momentum: float, nesterov: float
) -> tuple[Array, State]:
    """b = momentum * b + g; w - lr * b, or w - lr * (g + momentum * b)."""
    mu = f32(momentum)
    b: Array = mu * state[0] + g
    direction: Array = g + mu * b if nesterov else b
    return w - f32(lr) * direction, [b]


def adagrad(
    w: Array, g: Array, state: State, t: int, *, lr: float, eps: float, initial: float
) -> tuple[Array, State]:
    """s = s + g * g; w - lr * g / (sqrt(s) + eps)."""
    s: Array = state[0] + g * g
    root: Array = np.sqrt(s)
    return w - (f32(lr) * g) / (root + f32(eps)), [s]


def adam(
    w: Array, g: Array, state: State, t: int, *, lr: float, beta1: float, beta2: float, eps: float
) -> tuple[Array, State]:
    """Kingma and Ba, algorithm 1; both corrections are computed once, in float64."""
    m = f32(beta1) * state[0] + f32(1 - beta1) * g
    v = f32(beta2) * state[1] + f32(1 - beta2) * (g * g)
    step = f32(lr / (1 - _power(beta1, t)))
    root = f32(1 / math.sqrt(1 - _power(beta2, t)))
    return w - (step * m) / (np.sqrt(v) * root + f32(eps)), [m, v]


def adamw(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> tuple[Array, State]:
    """Decoupled decay first, w - lr * decay * w, then adam."""
    return adam(w - f32(lr * decay) * w, g, state, t, lr=lr, beta1=beta1, beta2=beta2, eps=eps)


CHANGES: dict[str, Callable[..., Array]] = {"clip": clip, "weight_decay": weight_decay}
RULES: dict[str, Callable[..., tuple[Array, State]]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
}
PLANES = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2}

Parts = Sequence[tuple[str, dict[str, float]]]


def initial(parts: Parts, len: int) -> State:
    """The state before the first update."""
    name, numbers = parts[-1]
    fill = f32(numbers.get("initial", 0.0))
    return [np.full(len, fill, f32) for _ in range(PLANES[name])]


def update(
    parts: Parts, w: Array, g: Array, state: State, t: int, scale: float = 1.0
) -> tuple[Array, State]:
    """One record through the whole chain."""
    g = g * f32(scale)
    for name, numbers in parts[:-1]:
        g = CHANGES[name](w, g, **numbers)
    name, numbers = parts[-1]
    return RULES[name](w, g, state, t, **numbers)
