"""Hard-synchronous rounds: every live replica gives one gradient, their mean is one update.

Gupta, Zhang, Wang, "Model Accuracy and Runtime Tradeoff in Distributed Deep Learning" (Rudra),
2015, protocol *hardsync*, and synchronous SGD since. With lambda replicas and learning rate lr::

    round i:  g_i = (1 / lambda) * sum over replicas l of gradient_l(theta_i)
              theta_{i+1} = theta_i - lr * g_i
              every replica fetches theta_{i+1} and goes on

which is SGD with the minibatches of all replicas as one; the staleness is 0.

Who takes part is decided when a round is about to be closed: it waits for every replica that is
live then and has work. So whoever comes during a round is waited for, and whoever dies, leaves or
finds no more work is not, from the moment the shard hears of it (with its next heartbeat; a death
is noticed after ``Limits.dead_s``). A gradient counts in the round that is open when it arrives,
once, whatever happens: one that was made for an earlier round (its replica was believed dead and
came back) is added to it with its staleness, but is not its replica's contribution to it.

Deviations:
    * The number of replicas is not fixed, as above; ``replicas`` fixes it for the first round.
    * The mean is over the gradients a round has, each shard and fragment for itself: a replica that
      died in the middle of its push contributes to the fragments it had sent.
    * The rate, alpha0 * sqrt(lambda * mu / B), is a part of the optimizer: ``dp.SqrtScaling(B)``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, Reduction, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping
from pydownpour.policy.reductions import TOPOLOGIES


@final
@dataclasses.dataclass(frozen=True)
class HardSync(Policy):
    """Synchronous rounds (Rudra's hardsync).

    Args:
        combine: "mean" of a round's gradients, or their "sum".
        by_samples: Weigh each by its samples: then minibatches of unequal length make exactly the
            mean over all samples. False: each counts the same.
        ordered: Add in the order of the replicas' ids, so that the result has the same bits
            whoever is first. A gradient that comes before its turn is turned down and sent again,
            so this is for measurements and small models.
        replicas: The first round waits until so many replicas gave a gradient to it, >= 1.
        reduce: Where gradients are added up. "shards": each shard adds up its own fragments.
            "tree": replicas do among themselves, and one of them pushes the sum (FireCaffe).
            "ring": they do, and each of them pushes a share of the sum.

    Raises:
        ConfigError: a setting is out of range.
    """

    combine: Literal["mean", "sum"] = "mean"
    by_samples: bool = False
    ordered: bool = False
    replicas: int = 1
    reduce: Literal["shards", "tree", "ring"] = "shards"
    name: ClassVar[str] = "hardsync"

    def __post_init__(self) -> None:
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r}: choose mean or sum")
        if self.reduce != "shards" and self.reduce not in TOPOLOGIES:
            names = " or ".join(TOPOLOGIES)
            raise ConfigError(f"reduce={self.reduce!r}: choose shards, {names}")
        if self.ordered and self.reduce != "shards":
            raise ConfigError(
                f"ordered=True is for shards: a {self.reduce} always adds in the same order"
            )
        for field in ("by_samples", "ordered"):
            object.__setattr__(self, field, config.flag(field, getattr(self, field)))
        object.__setattr__(self, "replicas", config.whole("replicas", self.replicas, least=1))

    def replica(self) -> ReplicaRule:
        """Step by step, push and fetch after each, and wait for the round."""
        wait = gate.Barrier() if self.reduce == "shards" else gate.RunFree(overlap=False)
        return Stepping(schedule.EVERY_STEP, payload.Accrued(), wait)

    def shard(self) -> ShardRule:
        """One gradient of every live replica, one round after the other."""
        if self.reduce != "shards":
            return combine.Reduced()
        return combine.EveryLive(
            mean=self.combine == "mean",
            weigh=scale.by_samples if self.by_samples else scale.each_the_same,
            ordered=self.ordered,
            first=self.replicas,
        )

    def reduction(self) -> Reduction | None:
        """Among replicas, if it is not shards that add up."""
        if self.reduce == "shards":
            return None
        return Reduction(self.combine == "mean", self.by_samples, self.replicas, self.reduce)
