"""n-softsync: every few gradients are one update, whoever they are of; nobody waits.

Gupta, Zhang, Wang, "Model Accuracy and Runtime Tradeoff in Distributed Deep Learning" (Rudra),
2015. With lambda replicas and n from 1 to lambda::

    each replica, for ever:  pull theta_j;  g = gradient(theta_j, next minibatch);  push g, j
    the server, whenever c = max(1, floor(lambda / n)) gradients have come:
        theta_{i+1} = theta_i - (1 / c) * sum of alpha * g

A gradient that was computed from theta_j and is in update i has the staleness i - j, which is n on
the average and hardly ever above 2 n (all replicas together give about lambda gradients while one
of them computes, that is n updates). n = 1 takes about one gradient of each; n = lambda applies
each when it comes, and with a constant rate is Downpour with n_fetch = n_push = 1.

The rate, with ``divide_rate``: alpha = alpha0 / n, one factor for the whole run.

Deviations:
    * lambda is how many are live now, or ``replicas``.
    * Each shard counts for itself, and each fragment's mean is over the gradients it has.
    * The factor 1 / n is of the gradient. A rule that divides by the size of the gradients it sees
      (Adam; Adagrad, mostly) undoes it: choose its lr smaller instead.
    * ``overlap=True`` pushes and fetches in the background; the paper's learners wait for each,
      which keeps the staleness down.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping


@final
@dataclasses.dataclass(frozen=True)
class Softsync(Policy):
    """n-softsync (Rudra): an update is the mean of one n-th of the replicas' gradients.

    Args:
        n: About the average staleness, >= 1. 1: a round is as many gradients as there are
            replicas; as many as there are: each gradient is an update.
        divide_rate: Divide the rate by n, by multiplying each gradient by 1 / n.
        replicas: How many there are, lambda in the paper, >= 1. None: those that are live.
        combine: "mean" of a round's gradients, or their "sum".
        overlap: Push and fetch in the background. False: wait for each answer, as in the paper;
            nobody waits for others either way.

    Raises:
        ConfigError: a setting is out of range.
    """

    n: int = 1
    divide_rate: bool = False
    replicas: int | None = None
    combine: Literal["mean", "sum"] = "mean"
    overlap: bool = False
    name: ClassVar[str] = "softsync"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"n": config.whole("n", self.n, least=1)}
        if self.replicas is not None:
            checked["replicas"] = config.whole("replicas", self.replicas, least=1)
        for field in ("divide_rate", "overlap"):
            checked[field] = config.flag(field, getattr(self, field))
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r}: choose mean or sum")
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    def replica(self) -> ReplicaRule:
        """Push and fetch after each step, and wait for nobody."""
        return Stepping(schedule.EVERY_STEP, payload.Accrued(), gate.RunFree(overlap=self.overlap))

    def shard(self) -> ShardRule:
        """Rounds of one n-th of the replicas, at the same rate or at an n-th of it."""
        return combine.Share(
            self.n,
            replicas=self.replicas or 0,
            mean=self.combine == "mean",
            scale=scale.divided_by(self.n) if self.divide_rate else scale.AS_IT_IS,
        )
