"""Staleness-aware asynchronous SGD: each gradient counts the less the staler it is.

Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016. The
rounds are n-softsync's, c = max(1, floor(lambda / n)) gradients each; a gradient computed from
theta_j that is in update i has the staleness tau = i - j and a rate of its own (equations 4 to 6)::

    alpha_i = alpha0 / tau  if tau > 0,  else alpha0
    theta_{i+1} = theta_i - (1 / c) * sum of alpha_i * g

Asynchronous SGD with the synchronous rate diverges as replicas are added; this one converges for
every n. Where no staleness is above 1 it is plain asynchronous SGD.

Deviations:
    * 1 / max(1, tau), as above; others take 1 / (tau + 1), which slows a gradient of staleness 1.
    * tau is each fragment's own, known where it is applied, and counted in updates of it.
    * The factor is of the gradient. A rule that divides by the size of the gradients it sees (Adam;
      Adagrad, mostly) undoes it: with one of these, ``dp.StalenessDecay`` in its chain scales the
      rate itself, by the largest staleness of a round.
    * Other powers of tau than 1, and those of :class:`~pydownpour.Softsync`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping

POWER_MAX = 8.0
"""The core's own bound."""


@final
@dataclasses.dataclass(frozen=True)
class StalenessAware(Policy):
    """Staleness-aware asynchronous SGD (Zhang et al. 2016).

    Args:
        n: About the average staleness, >= 1, as of :class:`~pydownpour.Softsync`. None: as many as
            there are replicas, so that each gradient is an update.
        power: Of the staleness by which a gradient is divided, 0 to 8; 1 in the paper.
        replicas: How many there are, lambda in the paper, >= 1. None: those that are live.
        combine: "mean" of a round's gradients, or their "sum".
        overlap: Push and fetch in the background. False: wait for each answer, as in the paper.

    Raises:
        ConfigError: a setting is out of range.
    """

    n: int | None = None
    power: float = 1.0
    replicas: int | None = None
    combine: Literal["mean", "sum"] = "mean"
    overlap: bool = False
    name: ClassVar[str] = "staleness_aware"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"overlap": config.flag("overlap", self.overlap)}
        for field in ("n", "replicas"):
            if getattr(self, field) is not None:
                checked[field] = config.whole(field, getattr(self, field), least=1)
        checked["power"] = config.real(
            "power", self.power, lambda power: 0 <= power <= POWER_MAX, "it must be 0 to 8"
        )
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r}: choose mean or sum")
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    def replica(self) -> ReplicaRule:
        """Push and fetch after each step, and wait for nobody."""
        return Stepping(schedule.EVERY_STEP, payload.Accrued(), gate.RunFree(overlap=self.overlap))

    def shard(self) -> ShardRule:
        """Softsync's rounds, or each push by itself; divided by the staleness."""
        by_staleness = scale.by_staleness(self.power)
        if self.n is None:
            return combine.Each(by_staleness)
        return combine.Share(
            self.n,
            replicas=self.replicas or 0,
            mean=self.combine == "mean",
            scale=by_staleness,
        )
