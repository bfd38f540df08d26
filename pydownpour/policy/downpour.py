"""Downpour SGD: asynchronous replicas, no barrier, no gate.

Dean et al., NIPS 2012, section 4.1 and the appendix's client pseudo-code. Each replica repeats,
with its own step counter k from 0::

    if k % fetch_every == 0:  start a fetch in the background
    g = gradient(parameters, next minibatch)
    accrued += g
    parameters -= local_rate * g              # it also moves by itself between fetches
    if k % push_every == 0:  push accrued in the background; accrued = 0
    k += 1

and the shard applies each push when it arrives. The push test stands after the accumulation, so
with push_every = n the first push carries one gradient and the later ones n, as in the paper.

Deviations:
    * ``overlap=False`` awaits each push and each fetch before the next step. One replica with
      push_every = fetch_every = 1 then *is* sequential SGD; the paper has no such switch.
    * The paper moves the local copy by its fixed rate. With an adaptive rule on the shard that
      rate is not the step the shard takes, so ``local_rate=None`` means lr for plain SGD and 0
      for every other rule.
    * The paper's fetch replaces the local copy, and what that gained by itself while the fetch was
      under way is lost until the shard's answer to it comes. ``land="keep"`` adds it again.
    * A push waits while ``in_flight`` earlier ones have no answer; the paper does not bound them.
      Unbounded, a replica that computes faster than the shards apply would only add staleness.
    * What is accrued is pushed, whatever the schedule says, when there is no more work to lease
      and when it holds the gradients of ``Limits.leases_per_replica_max`` units.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping
from pydownpour.policy.pieces.payload import LANDS


@final
@dataclasses.dataclass(frozen=True)
class Downpour(Policy):
    """Downpour SGD (Dean et al. 2012).

    Args:
        push_every: Steps between pushes, n_push in the paper, >= 1.
        fetch_every: Steps between fetches, n_fetch in the paper, >= 1.
        overlap: Push and fetch in the background while the replica computes. False: wait for
            each, which makes a single replica sequential.
        in_flight: Pushes a replica may have unanswered when it pushes the next, >= 1. 1 sends one
            gradient while the next is computed; more hides longer round trips and adds staleness.
            ``limits.PUSHES_IN_FLIGHT_MAX`` and ``Limits.pushes_in_flight_size_max`` bound it.
        local_rate: Step of the replica's own copy between fetches, >= 0. None: lr if the rule is
            plain SGD, else 0.
        land: "replace" the copy by what was fetched; "redo" its own steps since that was asked for;
            or "keep" what it gained by itself since the last fetch (which takes the memory of one
            more copy, and has each step twice once the shard's answer to it comes).
        warm_start: Samples that one replica completes alone before the others get work, >= 0
            (the paper trains about 10 hours with one replica first).

    Raises:
        ConfigError: a setting is out of range.
    """

    push_every: int = 1
    fetch_every: int = 1
    overlap: bool = True
    in_flight: int = 1
    local_rate: float | None = None
    land: Literal["replace", "redo", "keep"] = "replace"
    warm_start: int = 0
    name: ClassVar[str] = "downpour"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            field: config.whole(field, getattr(self, field), least=1)
            for field in ("push_every", "fetch_every", "in_flight")
        }
        checked["warm_start"] = config.whole("warm_start", self.warm_start, least=0)
        checked["overlap"] = config.flag("overlap", self.overlap)
        if self.local_rate is not None:
            checked["local_rate"] = config.real(
                "local_rate", self.local_rate, config.not_negative, "it must be at least 0"
            )
        if self.land not in LANDS:
            raise ConfigError(f"land={self.land!r}: choose one of {', '.join(LANDS)}")
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    def replica(self) -> ReplicaRule:
        """Step after the schedule, push what is accrued, run free."""
        return Stepping(
            schedule.Every(push=self.push_every, fetch=self.fetch_every),
            payload.Accrued(local_rate=self.local_rate, land=self.land),
            gate.RunFree(in_flight=self.in_flight, overlap=self.overlap),
        )

    def shard(self) -> ShardRule:
        """Every push, unscaled, when it comes."""
        return combine.Each(scale.AS_IT_IS)

    def may_lease(self, replica: int, members: tuple[int, ...], samples_done: int) -> str:
        """Only the lowest live replica until the warm start is over."""
        return schedule.warm_start(self.warm_start, replica, members, samples_done)
