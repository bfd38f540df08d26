"""Stale synchronous parallel: nobody reads parameters that are staler than a slack.

Ho et al., NIPS 2013. Each of P workers repeats, with its own clock c from 0::

    read x, which holds every update with a timestamp <= c - s - 1, and all of its own
    u = -lr * gradient(x, next minibatch)
    x += u                                   committed with timestamp c
    c += 1

so the fastest is at most s clocks ahead of the slowest. s = 0 is bulk synchronous (BSP): behind
each step everybody waits for everybody. s = infinity never waits.

A worker reads its own cached copy. When that is too old it is read anew, by the rule of Petuum
Bosen (the authors' later system; the notes on its successor have another one, ``> c - s``)::

    stalest = max(0, c - s)
    if cached clock < stalest:  fetch; the server answers when every worker's clock >= stalest

*Lazy* reads fetch only then. *Eager* ones (ESSP; Dai et al. 2015) fetch behind each step in the
background, and wait only where what came is still too old: fresher copies, more traffic. Lazily
with s = infinity the first copy is never renewed.

Read-my-writes: the worker's own copy takes its step with each gradient. A fetch finds all of the
worker's pushes applied (none is on its way meanwhile), and own steps that were made while it was
under way are made again. With plain SGD that is the shards' own step, so each update is seen from
its own step on, exactly but for the order in which float32 rounds. Every other optimizer's step
depends on the shard's state: there the copy stands still by default, and own updates are seen from
the next fetch on, which lazily is up to s steps later; ``local_rate`` lets it move by a fixed rate
until then. With a codec the copy takes the whole gradient, and the shards what travels of it.

Deviations:
    * Workers come and go. Who is not live is waited for by nobody; who joins begins at the least
      clock there is.
    * A clock is a step. Updates are gradients, which any optimizer applies; only plain SGD's
      are the additive ones of the paper.
    * A copy may hold newer updates than it must, with s = 0 too: the result is BSP's to the bit if
      nobody pushes before all have read.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, gate, payload, scale, schedule
from pydownpour.policy.pieces.gate import Stepping


@final
@dataclasses.dataclass(frozen=True)
class SSP(Policy):
    """Stale synchronous parallel (Ho et al. 2013): wait only for who is too far behind.

    Args:
        slack: Steps that a replica's copy may lack of the slowest, s in the paper, >= 0. None, or
            infinity: it never waits.
        reads: "lazy": fetch only when the copy is too old. "eager": behind each step, too.
        local_rate: Step of the replica's own copy with each gradient, >= 0. None: lr if the rule is
            plain SGD, which makes its own updates visible at once, else 0.
        in_flight: Pushes a replica may have unanswered when it pushes the next, >= 1.

    Raises:
        ConfigError: a setting is out of range.
    """

    slack: int | None = 3
    reads: Literal["lazy", "eager"] = "lazy"
    local_rate: float | None = None
    in_flight: int = 1
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "slack": None,
            "in_flight": config.whole("in_flight", self.in_flight, least=1),
        }
        if self.slack not in (None, math.inf):
            checked["slack"] = config.whole("slack", self.slack, least=0)
        if self.reads not in ("lazy", "eager"):
            raise ConfigError(f"reads={self.reads!r}: choose lazy or eager")
        if self.local_rate is not None:
            checked["local_rate"] = config.real(
                "local_rate", self.local_rate, config.not_negative, "it must be at least 0"
            )
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    def replica(self) -> ReplicaRule:
        """Push after each step, fetch lazily or eagerly, wait within the slack."""
        return Stepping(
            schedule.EVERY_STEP if self.reads == "eager" else schedule.PUSH_EVERY_STEP,
            payload.Accrued(local_rate=self.local_rate, land="redo"),
            gate.Slack(self.slack, in_flight=self.in_flight),
        )

    def shard(self) -> ShardRule:
        """Every push, unscaled, when it comes."""
        return combine.Each(scale.AS_IT_IS)
