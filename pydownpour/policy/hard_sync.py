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
    * The rule alpha0 * sqrt(lambda * mu / B) for the learning rate is the user's to apply.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.policy.base import (
    Accumulate,
    Actions,
    ClusterView,
    Decision,
    NotYet,
    Policy,
    PushInfo,
    ReplicaRule,
    ShardRule,
    Wait,
)


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

    Raises:
        ConfigError: a setting is out of range.
    """

    combine: Literal["mean", "sum"] = "mean"
    by_samples: bool = False
    ordered: bool = False
    replicas: int = 1
    name: ClassVar[str] = "hardsync"

    def __post_init__(self) -> None:
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r}: choose mean or sum")
        for field in ("by_samples", "ordered"):
            object.__setattr__(self, field, config.flag(field, getattr(self, field)))
        object.__setattr__(self, "replicas", config.whole("replicas", self.replicas, least=1))

    def replica(self) -> ReplicaRule:
        """Push and fetch after each step, and wait for the round."""
        return _Replica()

    def shard(self) -> ShardRule:
        """One round after the other."""
        return _Shard(self)


@final
class _Replica(ReplicaRule):
    local_rate = 0.0

    def after_step(self, clock: int, view: ClusterView) -> Actions:
        return Actions(push=True, fetch=True, wait=True, after_round=True)


LATE_PATIENCE_S: Final = 2.0
"""How long a round waits for the own gradient of a replica whose last one came too late for the
round before. It may be waiting for another shard's round meanwhile, and that one, the other way
round, for somebody whom only this one keeps: what this breaks is a circle."""


@final
class _Shard(ShardRule):
    combines = True

    def __init__(self, settings: HardSync) -> None:
        self._settings = settings
        self.mean = settings.combine == "mean"
        self._given: set[int] = set()
        """Replicas whose gradient for the open round is here."""
        self._late: set[int] = set()
        """Those whose gradient for an earlier round is in it."""
        self._owed_since: float | None = None
        """When nothing was missing any more but what those still owe."""
        self._holds = False
        """Something is in the open round, be it late."""

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        """Into the open round, once a replica, and in its turn."""
        is_late = push.round < self.round
        if push.replica in self._given and not is_late:
            return NotYet(*self._waits_for(view))
        if self._settings.ordered and not is_late:
            before = tuple(one for one in self._missing(view) if one < push.replica)
            if before:
                return NotYet(f"round {self.round} adds in the order of ids: {{on}}", before)
        weight = float(max(push.samples, 1)) if self._settings.by_samples else 1.0
        return Accumulate(self.round, weight)

    def arrived(self, push: PushInfo) -> None:
        """One less to wait for, unless it was made for an earlier round."""
        self._holds = True
        (self._given if push.round >= self.round else self._late).add(push.replica)

    def due(self, view: ClusterView, now: float) -> Wait | None:
        """When every live replica gave its gradient; late ones are waited for a while only."""
        is_first = self.round == 0 and len(self._given) < self._settings.replicas
        missing = self._missing(view)
        if not self._holds or is_first or not self._late.issuperset(missing):
            self._owed_since = None
            return self._wait(view)
        if missing and self._owed_since is None:
            self._owed_since = now
        if not missing or self._owed_since is None:
            return None
        until = self._owed_since + LATE_PATIENCE_S
        return self._wait(view, until) if now < until else None

    def closed(self) -> None:
        super().closed()
        self._given.clear()
        self._late.clear()
        self._owed_since = None
        self._holds = False

    def _missing(self, view: ClusterView) -> tuple[int, ...]:
        return tuple(one for one in view.live if one not in self._given)

    def _wait(self, view: ClusterView, look_at: float = math.inf) -> Wait:
        words, on = self._waits_for(view)
        return Wait(words, look_at, on)

    def _waits_for(self, view: ClusterView) -> tuple[str, tuple[int, ...]]:
        """In words, and which replicas."""
        missing = self._missing(view)
        if missing:
            return f"round {self.round} waits for {{on}}", missing
        if self.round == 0 and len(self._given) < self._settings.replicas:
            return (
                f"round 0 waits for {self._settings.replicas} replicas (replicas=...), "
                f"{len(self._given)} have come"
            ), ()
        return f"round {self.round} waits for a gradient", ()

    def export(self) -> dict[str, Any]:
        given, late = sorted(self._given), sorted(self._late)
        return {**super().export(), "given": given, "late": late, "holds": self._holds}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._given = {int(one) for one in state["given"]}
        self._late = {int(one) for one in state["late"]}
        self._holds = bool(state["holds"])
