"""Rounds of deltas: replicas train alone for a block of steps, and meet.

What model averaging, block momentum and DiLoCo have in common. Each replica i begins a block with
the parameters x that all have, takes ``every`` steps of its own optimizer, and pushes how far it
went; a round is one delta of every live replica::

    delta_i = x - x_i                        with the sign of a gradient
    x <- outer optimizer(x, mean of delta_i)

They differ in the outer optimizer, which is one of ours and has its state at the shards.

Who takes part in a round is decided as with ``HardSync``: who is live when it is about to be
closed. A block of a replica that dies is lost with it, and its units are lent again, for none of
them was complete; whatever else comes late, again or in part is in exactly one round, whole or by
fragments (docs/policies.md, *Training alone*).

Deviations that all three have:
    * A block also ends, shorter than ``every``, where there is no more work to be had, and where a
      replica holds ``Limits.leases_per_replica_max`` units.
    * What travels is the delta, so new parameters are x - (x - x_i), which float32 rounds: they are
      x_i to the bit where an element has changed by less than half of itself, or twice as much.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping


@dataclasses.dataclass(frozen=True)
class Averaging(Policy):
    """Rounds of deltas; what a round does to the parameters, its subclasses say by ``outer()``.

    Args:
        every: Steps in a block, >= 1.
        combine: "mean" of a round's deltas, or their "sum".
        by_samples: Weigh each by its samples. False: each counts the same.
        replicas: The first round waits until so many replicas gave a delta to it, >= 1.
        keeps_state: What a replica's own optimizer keeps goes on in the next block. False: it
            begins anew.

    Raises:
        ConfigError: a setting is out of range.
    """

    every: int = 10
    combine: Literal["mean", "sum"] = "mean"
    by_samples: bool = False
    replicas: int = 1
    keeps_state: bool = True

    def __post_init__(self) -> None:
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r}: choose mean or sum")
        for field in ("by_samples", "keeps_state"):
            object.__setattr__(self, field, config.flag(field, getattr(self, field)))
        for field in ("every", "replicas"):
            object.__setattr__(self, field, config.whole(field, getattr(self, field), least=1))

    def replica(self) -> ReplicaRule:
        """Train for a block, push how far, and wait for the round."""
        steps = payload.Delta(keeps_state=self.keeps_state)
        return Stepping(schedule.Blocks(self.every), steps, gate.Barrier())

    def shard(self) -> ShardRule:
        """One delta of every live replica, one round after the other."""
        return combine.EveryLive(
            mean=self.combine == "mean",
            weigh=scale.by_samples if self.by_samples else scale.each_the_same,
            first=self.replicas,
        )
