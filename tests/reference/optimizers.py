"""The optimizers, slowly: numpy float32, one operation at a time, rounded after each.

Each function takes parameters, gradient, state planes and its numbers, and returns new arrays.
``t`` counts the updates of the fragment, this one included; factors of the learning rate see the
whole ``Context``. Sources are named in ``pydownpour.optimizers``.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Context:
    """What is known of an update of a fragment beside its elements."""

    count: int
    """Updates, this one included."""
    staleness: int = 0
    round_count: int = 1
    """Records that are combined."""
    samples_before: int = 0
    """Samples behind the updates before this one."""
    samples: int = 0
    """Samples behind this one."""
    last: Array | None = None
    """The parameters one version ago; None: as they are."""
    base: Array | None = None
    """In the version that the gradient was computed from, or the oldest kept; None: as they are."""


def clip(w: Array, g: Array, state: State, at: Context, *, max: float) -> tuple[Array, State]:
    """Each element of g into [-max, max]."""
    return np.minimum(np.maximum(g, -f32(max)), f32(max)), []


def weight_decay(
    w: Array, g: Array, state: State, at: Context, *, rate: float
) -> tuple[Array, State]:
    """g + rate * w."""
    return g + f32(rate) * w, []


def trace(w: Array, g: Array, state: State, at: Context, *, decay: float) -> tuple[Array, State]:
    """b = decay * b + g; b is the gradient from here on."""
    b: Array = f32(decay) * state[0] + g
    return b, [b]


def fasgd(
    w: Array,
    g: Array,
    state: State,
    at: Context,
    *,
    gamma: float,
    beta: float,
    eps: float,
    initial: float,
) -> tuple[Array, State]:
    """Odena 2016, section 2: moments, the average of the deviation, and g divided by it."""
    n, b, v = state
    n = f32(gamma) * n + f32(1 - gamma) * (g * g)
    b = f32(gamma) * b + f32(1 - gamma) * g
    deviation: Array = np.sqrt(np.maximum(f32(0), n - b * b) + f32(eps))
    v = f32(beta) * v + f32(1 - beta) * deviation
    return g / (v * f32(max(1, at.staleness))), [n, b, v]


def delay_compensation(
    w: Array, g: Array, state: State, at: Context, *, strength: float, history: float
) -> tuple[Array, State]:
    """Zheng et al. 2017, equation 10: g + strength * g * g * (w - w_base), as a product."""
    moved = w - (w if at.base is None else at.base)
    by: Array = (f32(strength) * g) * moved + f32(1)
    return g * by, []


def adaptive_delay_compensation(
    w: Array,
    g: Array,
    state: State,
    at: Context,
    *,
    strength: float,
    decay: float,
    eps: float,
    history: float,
) -> tuple[Array, State]:
    """The same with a strength that the mean square of g divides."""
    m: Array = f32(decay) * state[0] + f32(1 - decay) * (g * g)
    moved = w - (w if at.base is None else at.base)
    own: Array = f32(strength) / np.sqrt(m + f32(eps))
    by: Array = (own * g) * moved + f32(1)
    return g * by, [m]


def gap_aware(
    w: Array, g: Array, state: State, at: Context, *, decay: float, eps: float, history: float
) -> tuple[Array, State]:
    """Barkai et al. 2020: g divided by the distance moved, in steps, plus 1."""
    c: Array = f32(decay) * state[0] + f32(1 - decay) * np.abs(
        w - (w if at.last is None else at.last)
    )
    by = f32(1 / (1 - _power(decay, at.count - 1))) if at.count > 1 else f32(1)
    moved: Array = np.abs(w - (w if at.base is None else at.base))
    gap: Array = moved / (c * by + f32(eps)) + f32(1)
    return g / gap, [c]


def raised(base: float, exponent: float) -> float:
    """base >= 1 to a power: whole part by squaring, binary digits of the rest by square roots."""
    result = _power(base, int(exponent))
    root, rest = base, exponent - int(exponent)
    while rest > 0 and root > 1:
        root, rest = math.sqrt(root), 2 * rest
        if rest >= 1:
            result, rest = result * root, rest - 1
    return result


def factor(scale: float, *, weight: float = 1.0, staleness: int = 0, power: float = 0.0) -> f32:
    """What a record's gradient is multiplied with: scale * weight / max(1, staleness)^power."""
    return f32(float(f32(scale)) * weight / raised(max(1, staleness), power))


def _progress(at: Context, by_samples: float) -> tuple[int, int]:
    """Before this update and after it."""
    if by_samples:
        return at.samples_before, at.samples_before + at.samples
    return at.count - 1, at.count


def warm_up(at: Context, *, over: float, start: float, by_samples: float) -> float:
    """Goyal et al. 2017, section 2.2."""
    _, after = _progress(at, by_samples)
    return start + (1 - start) * min(1.0, after / over)


def step_decay(at: Context, *, every: float, factor: float, by_samples: float) -> float:
    """factor, once more after every so many."""
    before, _ = _progress(at, by_samples)
    return _power(factor, before // int(every))


def cosine(at: Context, *, over: float, floor: float, by_samples: float) -> float:
    """Loshchilov and Hutter 2017, equation 5; the cosine by the series of the sine at its root."""
    before, _ = _progress(at, by_samples)
    y = math.pi * (min(1.0, before / over) - 0.5)
    series = 0.0
    for n in range(11, 0, -1):
        series = (1 - series) * (y * y) / ((2 * n) * (2 * n + 1))
    return floor + (1 - floor) * (1 + -(y * (1 - series))) / 2


def staleness_decay(at: Context, *, power: float) -> float:
    """Zhang et al. 2016, equation 6, to any power."""
    return 1 / raised(max(1, at.staleness), power)


def linear_scaling(at: Context, *, records: float) -> float:
    """Goyal et al. 2017, section 2.1."""
    return at.round_count / records


def sqrt_scaling(at: Context, *, batch: float) -> float:
    """Gupta et al. 2015, hardsync."""
    return math.sqrt(max(at.samples, at.round_count) / batch)


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
    "fasgd": fasgd,
    "delay_compensation": delay_compensation,
    "adaptive_delay_compensation": adaptive_delay_compensation,
    "gap_aware": gap_aware,
}
SCHEDULES: dict[str, Callable[..., float]] = {
    "warm_up": warm_up,
    "step_decay": step_decay,
    "cosine": cosine,
    "staleness_decay": staleness_decay,
    "linear_scaling": linear_scaling,
    "sqrt_scaling": sqrt_scaling,
}
RULES: dict[str, Callable[..., tuple[Array, State]]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
}
PLANES = {
    "trace": 1, "fasgd": 3, "adaptive_delay_compensation": 1, "gap_aware": 1,
    "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2,
}  # fmt: skip
"""State arrays of each part that has some, in the order of the chain."""

Parts = Sequence[tuple[str, dict[str, float]]]


def initial(parts: Parts, len: int) -> State:
    """The state before the first update: zeros, but for a rule's or part's last plane."""
    return [
        np.full(len, f32(numbers.get("initial", 0.0) if i == PLANES[name] - 1 else 0.0), f32)
        for name, numbers in parts
        for i in range(PLANES.get(name, 0))
    ]


def update(
    parts: Parts,
    w: Array,
    g: Array,
    state: State,
    at: Context,
    scale: float | f32 = 1.0,
    since: int | None = None,
) -> tuple[Array, State]:
    """One update through the whole chain: lr times every factor of it, then part by part.

    ``since``: updates of the state, if it is younger than what schedules count.
    """
    rate = math.prod([SCHEDULES[name](at, **n) for name, n in parts if name in SCHEDULES])
    at = at if since is None else dataclasses.replace(at, count=since)
    g = g * f32(scale)
    rest, changed = list(state), []
    for name, numbers in parts[:-1]:
        if name in CHANGES:
            own, rest = rest[: PLANES.get(name, 0)], rest[PLANES.get(name, 0) :]
            g, own = CHANGES[name](w, g, own, at, **numbers)
            changed += own
    name, numbers = parts[-1]
    w, own = RULES[name](w, g, rest, at.count, **{**numbers, "lr": numbers["lr"] * rate})
    return w, changed + own


class Fragment:
    """One fragment of a shard: parameters, state, counters, and the round that is open."""

    def __init__(self, parts: Parts, w: Array) -> None:
        self.parts, self.w, self.state = parts, w, initial(parts, len(w))
        self.version = self.samples = self.round = 0
        self.sum: Array | None = None
        self.records: list[tuple[float, int, int]] = []
        """Weight, samples, staleness of each in the open round."""
        self.past: list[Array] = []
        """The versions that are remembered, the newest first."""
        self.history = max(int(numbers.get("history", 0)) for _, numbers in parts)
        self.bases_gone = 0

    def ago(self, back: int) -> Array:
        return [self.w, *self.past][min(back, len(self.past))]

    def _update(self, g: Array, scale: f32, at: Context) -> None:
        at = dataclasses.replace(at, last=self.ago(1), base=self.ago(at.staleness))
        w, state = update(self.parts, self.w, g, self.state, at, scale)
        self.bases_gone += self.history > 0 and at.staleness > len(self.past)
        self.past = [self.w, *self.past][: self.history]
        self.w, self.state = w, state
        self.version, self.samples = at.count, at.samples_before + at.samples

    def take(
        self,
        g: Array,
        *,
        base_version: int | None = None,
        scale: float = 1.0,
        staleness_power: float = 0.0,
        round: int | None = None,
        weight: float = 1.0,
        samples: int = 0,
    ) -> bool:
        """Apply a record, or add it to its round; False if that round is not open."""
        staleness = 0 if base_version is None else max(0, self.version - base_version)
        if round is None:
            by = factor(scale, staleness=staleness, power=staleness_power)
            self._update(g, by, Context(self.version + 1, staleness, 1, self.samples, samples))
            return True
        if round != self.round if self.records else round < self.round:
            return False
        by = factor(scale, weight=weight, staleness=staleness, power=staleness_power)
        self.sum = by * g if self.sum is None else self.sum + by * g
        self.round = round
        self.records.append((weight, samples, staleness))
        return True

    def close(self, round: int, by: float | None = None) -> bool:
        """Apply the round's sum, times ``by`` or as the weighted mean; False if it is not open."""
        if round != self.round if self.records else round < self.round:
            return False
        if self.sum is not None:
            weights, samples, stalenesses = zip(*self.records, strict=True)
            at = Context(
                self.version + 1, max(stalenesses), len(weights), self.samples, sum(samples)
            )
            self._update(self.sum, f32(1 / sum(weights)) if by is None else f32(by), at)
        self.sum, self.records, self.round = None, [], round + 1
        return True
