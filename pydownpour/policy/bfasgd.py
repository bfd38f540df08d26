"""B-FASGD: replicas fetch by chance, where it is likely to be worth the bytes.

Odena, "Faster Asynchronous SGD", 2016, section 2.3. With ``dp.FASGD`` before the rule, shards keep
for each parameter a running mean v of the deviation of its gradients. A replica repeats::

    g = gradient(parameters, next minibatch)
    push g, and wait for the answer
    vbar = mean of v over all parameters, as the shards have said
    if r < 1 / (1 + c_fetch / (vbar + eps)):  fetch, and wait for it     # r drawn from [0, 1)

so it fetches often while gradients differ a lot, and more and more seldom later. A replica whose
fetch is dropped goes on with the parameters it has.

Deviations:
    * v is the mean of the deviation, as the paper's text says and its equation does not; see
      ``dp.FASGD``.
    * Dropped fetches count as staleness: it is the number of updates since the parameters were
      fetched that a gradient was computed from, so ``dp.FASGD`` divides by more. The author's code
      counts a dropped fetch as if it had been made.
    * The paper's server answers a push with new parameters in one step under a lock. Here a push
      and the fetch behind it are two messages, and others may push in between.
    * ``overlap=True`` pushes and fetches in the background, which the paper does not.
    * Pushes are not dropped. The paper drops them in the same way (c_push), and lets the server
      apply its copy of that client's last gradient again.
    * It prints no eps; ours is that of the author's code.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from pydownpour import config
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping


@final
@dataclasses.dataclass(frozen=True)
class BFASGD(Policy):
    """B-FASGD (Odena 2016, section 2.3).

    Args:
        c_fetch: Cost of a fetch, in deviations, >= 0: the chance of one is
            1 / (1 + c_fetch / (vbar + eps)). 0 fetches after each step, which is
            ``dp.Downpour(overlap=False)``.
        eps: Added to the mean deviation, > 0.
        deviation: A mean deviation that is always so, >= 0, in place of what ``dp.FASGD`` tells:
            fetches of constant chance, with any optimizer. None: what is told.
        overlap: Push and fetch in the background while the replica computes. False: wait for each,
            as the paper's clients do.

    Raises:
        ConfigError: a setting is out of range.
    """

    c_fetch: float = 0.01
    eps: float = 1e-4
    deviation: float | None = None
    overlap: bool = False
    name: ClassVar[str] = "bfasgd"

    def __post_init__(self) -> None:
        cost = config.real("c_fetch", self.c_fetch, config.not_negative, "it must be at least 0")
        eps = config.real("eps", self.eps, config.positive, "it must be above 0")
        object.__setattr__(self, "c_fetch", cost)
        object.__setattr__(self, "eps", eps)
        object.__setattr__(self, "overlap", config.flag("overlap", self.overlap))
        if self.deviation is not None:
            deviation = config.real(
                "deviation", self.deviation, config.not_negative, "it must be at least 0, or None"
            )
            object.__setattr__(self, "deviation", deviation)

    @property
    def needs_deviation(self) -> bool:
        """Unless one is given, or nothing depends on it."""
        return self.deviation is None and self.c_fetch > 0

    def replica(self) -> ReplicaRule:
        """Push after each step; fetch by chance, and where it costs nothing always."""
        thrift = schedule.Thrift(cost=self.c_fetch, eps=self.eps, deviation=self.deviation)
        return Stepping(
            thrift if self.c_fetch > 0 else schedule.EVERY_STEP,
            payload.Accrued(local_rate=0.0),
            gate.RunFree(overlap=self.overlap),
        )

    def shard(self) -> ShardRule:
        """Every push, unscaled, when it comes: the optimizer scales it."""
        return combine.Each(scale.AS_IT_IS)
