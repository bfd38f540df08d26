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


def clip(w: Array, g: Array, state: State, *, max: float) -> tuple[Array, State]:
    """Each element of g into [-max, max]."""
    return np.minimum(np.maximum(g, -f32(max)), f32(max)), []


def weight_decay(w: Array, g: Array, state: State, *, rate: float) -> tuple[Array, State]:
    """g + rate * w."""
    return g + f32(rate) * w, []


def trace(w: Array, g: Array, state: State, *, decay: float) -> tuple[Array, State]:
    """b = decay * b + g; b is the gradient from here on."""
    b: Array = f32(decay) * state[0] + g
    return b, [b]


def _way(count: int, updates: float) -> float:
    return min(1.0, count / updates)


def warm_up(t: int, *, updates: float, start: float) -> float:
    """Goyal et al. 2017, section 2.2."""
    return start + (1 - start) * _way(t, updates)


def step_decay(t: int, *, every: float, factor: float) -> float:
    """factor, once more after every so many updates."""
    return _power(factor, (t - 1) // int(every))


def cosine(t: int, *, updates: float, floor: float) -> float:
    """Loshchilov and Hutter 2017, equation 5; the cosine by the series of the sine at its root."""
    y = math.pi * (_way(t - 1, updates) - 0.5)
    series = 0.0
    for n in range(11, 0, -1):
        series = (1 - series) * (y * y) / ((2 * n) * (2 * n + 1))
    return floor + (1 - floor) * (1 + -(y * (1 - series))) / 2


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


CHANGES: dict[str, Callable[..., tuple[Array, State]]] = {
    "clip": clip,
    "weight_decay": weight_decay,
    "trace": trace,
}
SCHEDULES: dict[str, Callable[..., float]] = {
    "warm_up": warm_up,
    "step_decay": step_decay,
    "cosine": cosine,
}
RULES: dict[str, Callable[..., tuple[Array, State]]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
}
PLANES = {"trace": 1, "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2}
"""State arrays of each part that has some, in the order of the chain."""

Parts = Sequence[tuple[str, dict[str, float]]]


def initial(parts: Parts, len: int) -> State:
    """The state before the first update."""
    return [
        np.full(len, f32(numbers.get("initial", 0.0)), f32)
        for name, numbers in parts
        for _ in range(PLANES.get(name, 0))
    ]


def update(
    parts: Parts, w: Array, g: Array, state: State, t: int, scale: float = 1.0
) -> tuple[Array, State]:
    """One record through the whole chain: lr times every schedule, then part by part."""
    rate = math.prod([SCHEDULES[name](t, **n) for name, n in parts if name in SCHEDULES])
    g = g * f32(scale)
    rest, changed = list(state), []
    for name, numbers in parts[:-1]:
        if name in CHANGES:
            own, rest = rest[: PLANES.get(name, 0)], rest[PLANES.get(name, 0) :]
            g, own = CHANGES[name](w, g, own, **numbers)
            changed += own
    name, numbers = parts[-1]
    w, own = RULES[name](w, g, rest, t, **{**numbers, "lr": numbers["lr"] * rate})
    return w, changed + own
