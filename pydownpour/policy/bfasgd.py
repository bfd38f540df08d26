"""B-FASGD: replicas push and fetch by chance, where it is likely to be worth the bytes.

Odena, "Faster Asynchronous SGD", 2016, section 2.3. With ``dp.FASGD`` before the rule, shards keep
for each parameter a running mean v of the deviation of its gradients. A replica repeats::

    g = gradient(parameters, next minibatch)
    vbar = mean of v over all parameters, as the shards have said
    if r < 1 / (1 + c_push / (vbar + eps)):   push g                 # r drawn from [0, 1)
    else:                                     the shards apply its last gradient again
    wait for the answer
    if r' < 1 / (1 + c_fetch / (vbar + eps)):  fetch, and wait for it

so much travels while gradients differ a lot, and less and less later. A replica whose fetch is
dropped goes on with the parameters it has.

A push whose gradient is dropped is a push like any other, with a number, records and an answer to
each, and no payload. A shard keeps what it has applied last of each replica; where it has nothing
(a new process of the shard or of the replica, or ``Limits.kept_size_max``) it says so, and gets the
gradient. The samples of a gradient that was dropped count as done: an update was made for them.

Deviations:
    * v is the mean of the deviation, as the paper's text says and its equation does not; see
      ``dp.FASGD``.
    * Dropped fetches count as staleness: it is the number of updates since the parameters were
      fetched that a gradient was computed from, so ``dp.FASGD`` divides by more. The author's code
      counts a dropped fetch as if it had been made.
    * The staleness of a gradient that is applied again is counted from the parameters that it was
      computed from; the paper does not say.
    * vbar is what the answers before the gradient told, a step earlier than the server's.
    * The paper's server answers a push with new parameters in one step under a lock. Here a push
      and the fetch behind it are two messages, and others may push in between.
    * ``overlap=True`` pushes and fetches in the background, which the paper does not. A gradient
      is sent then whatever was drawn if the push before it has no answer yet.
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
            ``dp.Downpour(overlap=False)`` if pushes are free, too.
        c_push: Cost of a push, in deviations, >= 0, in the same way. In the paper dropped pushes do
            far more harm than dropped fetches. Above 0 shards keep the last gradient of each
            replica.
        eps: Added to the mean deviation, > 0.
        deviation: A mean deviation that is always so, >= 0, in place of what ``dp.FASGD`` tells:
            fetches of constant chance, with any optimizer. None: what is told.
        overlap: Push and fetch in the background while the replica computes. False: wait for each,
            as the paper's clients do.

    Raises:
        ConfigError: a setting is out of range.
    """

    c_fetch: float = 0.01
    c_push: float = 0.0
    eps: float = 1e-4
    deviation: float | None = None
    overlap: bool = False
    name: ClassVar[str] = "bfasgd"

    def __post_init__(self) -> None:
        for field in ("c_fetch", "c_push"):
            cost = config.real(
                field, getattr(self, field), config.not_negative, "it must be at least 0"
            )
            object.__setattr__(self, field, cost)
        eps = config.real("eps", self.eps, config.positive, "it must be above 0")
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
        return self.deviation is None and self.c_fetch + self.c_push > 0

    def replica(self) -> ReplicaRule:
        """Push and fetch by chance, and what costs nothing after each step."""
        return Stepping(
            schedule.Thrift(self.c_push, self.c_fetch, self.eps, self.deviation),
            payload.Accrued(local_rate=0.0),
            gate.RunFree(overlap=self.overlap),
        )

    def shard(self) -> ShardRule:
        """Every push, unscaled, when it comes: the optimizer scales it."""
        return combine.Each(scale.AS_IT_IS, repeats=self.c_push > 0)
