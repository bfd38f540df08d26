"""Optimizers: frozen descriptions of what a shard does with a combined gradient.

Nothing here computes. A shard compiles a description once (``pydownpour._core.Optimizer``); the
numpy twins that say slowly what each does are in ``tests/reference``. A chain is any number of
parts in any order, followed by one rule::

    dp.chain(dp.WarmUp(over=500), dp.Clip(1.0), dp.WeightDecay(1e-4), dp.Adagrad(lr=0.05))

In all equations, per element: w parameter, g decoded gradient, t the number of updates applied to
the element's fragment, counting this one (so t starts at 1). All arithmetic is float32 without
fused multiply-add; the same bits on every instruction set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias, final, get_args

from pydownpour import config, limits
from pydownpour.config import fraction, not_negative, positive
from pydownpour.errors import ConfigError

Parts: TypeAlias = list[tuple[str, dict[str, float]]]
"""The wire form: (name, numbers) in order, the rule last."""


class Part:
    """Base of the pieces of a chain. Subclasses are frozen dataclasses of floats."""

    name: ClassVar[str]
    is_rule: ClassVar[bool] = False

    def parts(self) -> Parts:
        """This piece in wire form."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return [(self.name, {f.name: float(getattr(self, f.name)) for f in fields})]

    def describe(self) -> str:
        """One line for people, e.g. ``adagrad(lr=0.05, eps=1e-10, initial=0)``."""
        return " -> ".join(
            f"{name}({', '.join(f'{k}={v:g}' for k, v in numbers.items())})"
            for name, numbers in self.parts()
        )


def _require(part: Part, **bounds: Callable[[float], bool]) -> None:
    """Check every field, and make it a float whatever number it was."""
    for field, holds in bounds.items():
        value = getattr(part, field)
        number = config.real(f"{part.name}: {field}", value, holds, part.__doc__ or "")
        object.__setattr__(part, field, number)


def _is_count(value: float) -> bool:
    return value >= 1 and value.is_integer()


@final
@dataclasses.dataclass(frozen=True)
class Clip(Part):
    """Clamp each element of g to [-max, max], max > 0."""

    max: float
    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        _require(self, max=positive)


@final
@dataclasses.dataclass(frozen=True)
class WeightDecay(Part):
    """Add rate * w to g before the rule (L2 regularisation), rate >= 0."""

    rate: float
    name: ClassVar[str] = "weight_decay"

    def __post_init__(self) -> None:
        _require(self, rate=not_negative)


@final
@dataclasses.dataclass(frozen=True)
class Trace(Part):
    """Momentum before any rule: b <- decay * b + g; the rule sees b. 0 <= decay < 1.

    Before :class:`SGD` it is :class:`Momentum`, to the bit (Polyak 1964).
    """

    decay: float = 0.9
    name: ClassVar[str] = "trace"

    def __post_init__(self) -> None:
        _require(self, decay=fraction)


@final
@dataclasses.dataclass(frozen=True)
class FASGD(Part):
    """Divide each element of g by its own deviation and by its staleness; before :class:`SGD`.

    n <- gamma*n + (1-gamma)*g*g;  b <- gamma*b + (1-gamma)*g;
    v <- beta*v + (1-beta)*sqrt(max(0, n - b*b) + eps);  g <- g / (v * max(1, staleness)).
    0 <= gamma, beta < 1; eps > 0; initial > 0 (the first v). Odena 2016, section 2, with v as its
    text has it: its equation averages the inverse of the deviation. It prints no such numbers.
    """

    gamma: float = 0.9
    beta: float = 0.9
    eps: float = 1e-6
    initial: float = 1.0
    name: ClassVar[str] = "fasgd"

    def __post_init__(self) -> None:
        _require(self, gamma=fraction, beta=fraction, eps=positive, initial=positive)


def _is_history(value: float) -> bool:
    return _is_count(value) and value <= limits.HISTORY_MAX


@final
@dataclasses.dataclass(frozen=True)
class DelayCompensated(Part):
    """Correct a stale g to where the parameters are now: g <- g + strength * g * g * (w - w_base).

    w_base is w in the version that g was computed from (the fragment's; of which the shard keeps
    the last ``history``), or in the oldest that is kept: ``bases_gone`` in the report counts how
    often. adaptive: the strength of an element is strength / sqrt(m + eps), where
    m <- decay*m + (1-decay)*g*g, which makes it independent of the size of the gradients.
    strength >= 0; 0 <= decay < 1; eps > 0; 1 <= history <= 256 (``limits.HISTORY_MAX``), whole.

    Memory: the shard keeps the blocks it published, so each version costs as much as parameters
    and state together; choose a history above the staleness that is usual, not the largest.

    Zheng et al. 2017 (DC-ASGD), equation 10 and the adaptive strength of its section 6, which calls
    the strength lambda. Deviations: the sum is computed as g * (1 + (strength * g) * (w - w_base)),
    so that a strength of 0 is g to the bit; its backup is a copy a replica, ours a version that all
    replicas share. A round is compared with the base of its most stale record.
    """

    strength: float
    adaptive: bool = True
    decay: float = 0.95
    eps: float = 1e-7
    history: float = 16
    name: ClassVar[str] = "delay_compensation"

    def __post_init__(self) -> None:
        _require(self, strength=not_negative, decay=fraction, eps=positive, history=_is_history)
        object.__setattr__(self, "adaptive", config.flag(f"{self.name}: adaptive", self.adaptive))

    def parts(self) -> Parts:
        """This piece in wire form: adaptive or not are two parts of the core's."""
        numbers = {"strength": self.strength, "history": self.history}
        if not self.adaptive:
            return [(self.name, numbers)]
        return [(f"adaptive_{self.name}", {**numbers, "decay": self.decay, "eps": self.eps})]


@final
@dataclasses.dataclass(frozen=True)
class GapAware(Part):
    """Divide each element of a stale g by how many steps its parameter has moved since, plus 1.

    c <- decay*c + (1-decay)*|w - w_last|;  g <- g / (|w - w_base| / (c' + eps) + 1).
    w_last is w before the fragment's last update, so c' = c / (1 - decay^(t-1)) is the mean size of
    one update of this element; w_base is w in the version that g was computed from, or in the
    oldest of the ``history`` that are kept, as in :class:`DelayCompensated` (which says what they
    cost). 0 <= decay < 1; eps > 0; 1 <= history <= 256 (``limits.HISTORY_MAX``), whole.

    Barkai et al. 2020. Deviations: the mean step is each element's own, as it was made by whatever
    rule; eps guards an element that has not moved yet. Where nothing moved, g is the same to the
    bit. Unlike a division by staleness, it hardly slows a replica whose parameters stand still.
    """

    decay: float = 0.9
    eps: float = 1e-12
    history: float = 16
    name: ClassVar[str] = "gap_aware"

    def __post_init__(self) -> None:
        _require(self, decay=fraction, eps=positive, history=_is_history)


CountedIn: TypeAlias = Literal["updates", "samples"]
"""What a schedule counts: updates of a fragment, or the training samples behind them.

A shard counts what it has applied, from all replicas together.
"""


class Schedule(Part):
    """Base of the parts that multiply lr by a factor of how far training has come.

    In their equations b is what came before this update, and t the same with this update.
    """

    by: CountedIn

    def parts(self) -> Parts:
        """This piece in wire form: what it counts as a flag."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        numbers = {f.name: float(getattr(self, f.name)) for f in fields if f.name != "by"}
        return [(self.name, {**numbers, "by_samples": float(self.by == "samples")})]

    def _require_count(self) -> None:
        if self.by not in get_args(CountedIn):
            raise ConfigError(f"{self.name}: by={self.by!r} must be 'updates' or 'samples'")


@final
@dataclasses.dataclass(frozen=True)
class WarmUp(Schedule):
    """lr rises from (nearly) start * lr to lr: lr * (start + (1 - start) * min(1, t / over)).

    over >= 1, whole; 0 <= start < 1; by "updates" or "samples" (:data:`CountedIn`).
    Goyal et al. 2017, section 2.2.
    """

    over: float
    start: float = 0.0
    by: CountedIn = "updates"
    name: ClassVar[str] = "warm_up"

    def __post_init__(self) -> None:
        _require(self, over=_is_count, start=fraction)
        self._require_count()


@final
@dataclasses.dataclass(frozen=True)
class StepDecay(Schedule):
    """lr is multiplied by factor after every so many: lr * factor^floor(b / every).

    every >= 1, whole; 0 <= factor < 1; by "updates" or "samples" (:data:`CountedIn`).
    """

    every: float
    factor: float = 0.1
    by: CountedIn = "updates"
    name: ClassVar[str] = "step_decay"

    def __post_init__(self) -> None:
        _require(self, every=_is_count, factor=fraction)
        self._require_count()


@final
@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """lr falls to floor * lr along half a cosine, and stays there.

    lr * (floor + (1 - floor) * (1 + cos(pi * min(1, b / over))) / 2), over >= 1, whole;
    0 <= floor < 1; by "updates" or "samples" (:data:`CountedIn`). Loshchilov and Hutter 2017,
    equation 5, without restarts.
    """

    over: float
    floor: float = 0.0
    by: CountedIn = "updates"
    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        _require(self, over=_is_count, floor=fraction)
        self._require_count()


@final
@dataclasses.dataclass(frozen=True)
class StalenessDecay(Part):
    """lr is divided by max(1, staleness)^power, power >= 0; where a round is applied, its largest.

    Staleness is the number of updates the fragment had between fetch and apply. A policy may scale
    the gradient by staleness instead, which is the same before SGD; a rule that divides by the size
    of the gradients it sees, such as Adam, undoes that. Zhang et al. 2016, equation 6 (power 1).
    """

    power: float = 1.0
    name: ClassVar[str] = "staleness_decay"

    def __post_init__(self) -> None:
        _require(self, power=not_negative)


@final
@dataclasses.dataclass(frozen=True)
class LinearScaling(Part):
    """lr * n / records, where n records are combined in the update; records > 0.

    For rounds whose size varies: lr is then right for a round of so many records, and a mean over
    more of them takes a longer step. Goyal et al. 2017, section 2.1 (the linear scaling rule).
    """

    records: float
    name: ClassVar[str] = "linear_scaling"

    def __post_init__(self) -> None:
        _require(self, records=positive)


@final
@dataclasses.dataclass(frozen=True)
class SqrtScaling(Part):
    """lr * sqrt(s / batch), where s training samples are behind the update; batch > 0.

    For rounds whose mean is applied: lr is right for a minibatch of ``batch`` samples (B), and a
    round of lambda replicas with minibatches of mu has s = lambda * mu. Each record counts for one
    sample at least, so a job that tells none has lr * sqrt(n / batch), of n records.

    Gupta, Zhang, Wang 2015 (Rudra), hardsync: alpha0 * sqrt(lambda * mu / B), as others restate it.
    Deviation: s is counted anew in each update, so it follows who joins, leaves and dies.
    """

    batch: float
    name: ClassVar[str] = "sqrt_scaling"

    def __post_init__(self) -> None:
        _require(self, batch=positive)


@final
@dataclasses.dataclass(frozen=True)
class SGD(Part):
    """Plain gradient descent, w <- w - lr * g, lr > 0 (Dean et al. 2012, section 4.1)."""

    lr: float
    name: ClassVar[str] = "sgd"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(self, lr=positive)


@final
@dataclasses.dataclass(frozen=True)
class Momentum(Part):
    """Heavy-ball momentum, b <- momentum * b + g; w <- w - lr * b, lr > 0, 0 <= momentum < 1.

    Polyak 1964, in the form most frameworks use (b is not scaled by lr).
    """

    lr: float
    momentum: float = 0.9
    name: ClassVar[str] = "momentum"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(self, lr=positive, momentum=fraction)

    def parts(self) -> Parts:
        """This piece in wire form."""
        return [("momentum", {"lr": self.lr, "momentum": self.momentum, "nesterov": 0.0})]


@final
@dataclasses.dataclass(frozen=True)
class Nesterov(Part):
    """Nesterov momentum, b <- momentum * b + g; w <- w - lr * (g + momentum * b).

    lr > 0, 0 <= momentum < 1. Sutskever et al. 2013, section 3, rearranged to be evaluated at
    the look-ahead point.
    """

    lr: float
    momentum: float = 0.9
    name: ClassVar[str] = "nesterov"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(self, lr=positive, momentum=fraction)

    def parts(self) -> Parts:
        """This piece in wire form: momentum with its look-ahead switched on."""
        return [("momentum", {"lr": self.lr, "momentum": self.momentum, "nesterov": 1.0})]


@final
@dataclasses.dataclass(frozen=True)
class Adagrad(Part):
    """Adagrad, s <- s + g*g; w <- w - lr * g / (sqrt(s) + eps).

    lr > 0, eps >= 0, initial >= 0 (the first s). Dean et al. 2012, section 4.1: the sum lives on
    the shard, so no extra traffic. The paper prints no eps; ours only guards a zero gradient.
    """

    lr: float
    eps: float = 1e-10
    initial: float = 0.0
    name: ClassVar[str] = "adagrad"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(self, lr=positive, eps=not_negative, initial=not_negative)
        if self.eps == 0 and self.initial == 0:
            raise ConfigError("adagrad: eps and initial are both 0; a zero gradient would give NaN")


@final
@dataclasses.dataclass(frozen=True)
class Adam(Part):
    """Adam (Kingma and Ba 2015, algorithm 1), bias-corrected by the fragment's update count t.

    m <- b1*m + (1-b1)*g;  v <- b2*v + (1-b2)*g*g;
    w <- w - lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps). lr > 0, 0 <= b1, b2 < 1, eps > 0.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    name: ClassVar[str] = "adam"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(
            self,
            lr=positive,
            beta1=fraction,
            beta2=fraction,
            eps=positive,
        )


@final
@dataclasses.dataclass(frozen=True)
class AdamW(Part):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): also w <- w - lr*decay*w.

    lr > 0, 0 <= beta1, beta2 < 1, eps > 0, decay >= 0.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01
    name: ClassVar[str] = "adamw"
    is_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require(
            self,
            lr=positive,
            beta1=fraction,
            beta2=fraction,
            eps=positive,
            decay=not_negative,
        )


@final
@dataclasses.dataclass(frozen=True)
class Chain(Part):
    """Parts in order, the rule last. Made by :func:`chain`."""

    pieces: tuple[Part, ...]
    name: ClassVar[str] = "chain"
    is_rule: ClassVar[bool] = True

    def parts(self) -> Parts:
        """The wire form of every piece, in order."""
        return [entry for piece in self.pieces for entry in piece.parts()]


def chain(*pieces: Part) -> Chain:
    """Put parts before a rule.

    Args:
        pieces: Any number of parts in any order (:class:`Clip`, :class:`WeightDecay`,
            :class:`Trace`, and the factors of the learning rate, which multiply), then
            exactly one rule.

    Raises:
        ConfigError: no rule, a rule that is not last, or something that is not a part.
    """
    for piece in pieces:
        if not isinstance(piece, Part):
            raise ConfigError(f"chain: {piece!r} is not an optimizer part")
    if not pieces or not pieces[-1].is_rule:
        raise ConfigError("chain: the last piece must be a rule, such as SGD or Adagrad")
    for piece in pieces[:-1]:
        if piece.is_rule:
            raise ConfigError(f"chain: {piece.name} is a rule and must come last")
    whole = Chain(pieces)
    if len(whole.parts()) > limits.SETTINGS_MAX:
        raise ConfigError(
            f"chain: {len(whole.parts())} parts, the limit is {limits.SETTINGS_MAX} (SETTINGS_MAX)"
        )
    return whole


RULES: tuple[type[Part], ...] = (SGD, Momentum, Nesterov, Adagrad, Adam, AdamW)
"""Every rule, for tables and for the shared contract tests."""
PARTS: tuple[type[Part], ...] = (
    Clip,
    WeightDecay,
    Trace,
    FASGD,
    DelayCompensated,
    GapAware,
    WarmUp,
    StepDecay,
    Cosine,
    StalenessDecay,
    LinearScaling,
    SqrtScaling,
)
"""Every part that may stand before a rule."""


def local_rate(parts: Sequence[tuple[str, dict[str, float]]]) -> float:
    """The rate of a replica's own step between fetches (Dean et al. 2012, appendix).

    The paper moves the local copy by its fixed rate. That is right where the shard does the same:
    for plain SGD it is lr. Adaptive rules scale each element by state the replica does not have,
    so there the default is 0, and ``Downpour(local_rate=...)`` sets it on purpose.
    """
    return parts[-1][1]["lr"] if len(parts) == 1 and parts[0][0] == "sgd" else 0.0
