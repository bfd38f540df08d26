"""Strom: what of a gradient is not yet large enough to be said waits at the replica.

Strom, Interspeech 2015, as described by its implementers. After each minibatch, at each node, and
for each weight i, with the residual r of the node::

    r_i += update_i
    if r_i >  tau:  send (i, +);  r_i -= tau
    if r_i < -tau:  send (i, -);  r_i += tau
    apply the own and all received +-tau to the own weights

and nothing is lost, only delayed: sum(sent) + r = sum(updates), here to the bit. The inside is the
codec ``dp.Threshold``, which this policy brings: what travels, and how exact it is, is said there.

Deviations:
    * A node of the paper sends its messages to all others, which apply them. Here they go to the
      shards, whose parameters are what a node would have that has heard every message so far; a
      fetch brings them, and it is dense. So what is small is what is pushed, and ``fetch_every``
      says how often a replica looks.
    * A replica moves its own copy by whole gradients times ``local_rate``, not by its own
      messages. A fetch brings what all have said, and its own steps since it was asked for are made
      again; what of the earlier ones was not said yet is not in it, as it is in no node's weights
      in the paper.
    * ``threshold`` is in units of the gradient; the paper's is of the update, which has been
      multiplied by the learning rate already. With ``dp.SGD(lr)`` the paper's tau is
      ``lr * threshold``.
    * The threshold stays as it is. (DL4J adapts it, clips the residual and says the rest now and
      then.)
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from pydownpour import config
from pydownpour.codecs import Codec, Threshold
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping


@final
@dataclasses.dataclass(frozen=True)
class Strom(Policy):
    """Asynchronous training in which only what has grown larger than a threshold travels.

    Args:
        threshold: What an element of the accumulated gradient must exceed to be sent, and what is
            sent of it; as ``dp.Threshold``'s tau. The paper's is this times the learning rate.
        fetch_every: Steps between fetches, >= 1. A fetch is dense: with fewer of them the copy is
            older, and more of what it has is this replica's own.
        in_flight: Pushes that may be without an answer when the next is sent, >= 1.
        local_rate: Step of the replica's own copy between fetches, >= 0. None: lr if the rule is
            plain SGD, else 0.

    Raises:
        ConfigError: a setting is out of range.
    """

    threshold: float = 0.1
    fetch_every: int = 1
    in_flight: int = 2
    local_rate: float | None = None
    name: ClassVar[str] = "strom"

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "threshold", Threshold(self.threshold).tau)
        for field in ("fetch_every", "in_flight"):
            set_(self, field, config.whole(field, getattr(self, field), least=1))
        if self.local_rate is not None:
            words = "it must be at least 0"
            rate = config.real("local_rate", self.local_rate, config.not_negative, words)
            set_(self, "local_rate", rate)

    def codec(self) -> Codec:
        """What waits and what is sent."""
        return Threshold(self.threshold)

    def replica(self) -> ReplicaRule:
        """Push after each step, fetch now and then, run free."""
        return Stepping(
            schedule.Every(push=1, fetch=self.fetch_every),
            payload.Accrued(local_rate=self.local_rate, land="redo"),
            gate.RunFree(in_flight=self.in_flight),
        )

    def shard(self) -> ShardRule:
        """Every message, unscaled, when it comes."""
        return combine.Each(scale.AS_IT_IS)
