"""What becomes of pushes at a shard: each is a shard's whole half.

Each        every push is an update of its own
EveryLive   a round is one gradient of every live replica
Share       a round is one n-th of so many gradients, whoever they are of
Reduced     replicas have added up among themselves, and each sum is for one version
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, final

from pydownpour.policy.base import (
    Accumulate,
    Apply,
    ClusterView,
    Decision,
    NotYet,
    PushInfo,
    ShardRule,
    Wait,
)
from pydownpour.policy.pieces.scale import AS_IT_IS, Scale, Weighing, each_the_same


@final
class Each(ShardRule):
    """Every push is applied when it comes, scaled.

    Args:
        scale: What each fragment's gradient is multiplied by.
        repeats: Replicas may want their last one applied again.
    """

    def __init__(self, scale: Scale = AS_IT_IS, *, repeats: bool = False) -> None:
        self._apply = Apply(scale)
        self.repeats = repeats

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return self._apply


@final
class Reduced(ShardRule):
    """What comes is the sum of a group of replicas: it is for one version, and for no other.

    A sum that is pushed again by others, because whoever pushed it first died in the middle, finds
    the fragments taken that have it.
    """

    reduces = True

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Apply(staleness_max=0)


LATE_PATIENCE_S: Final = 2.0
"""How long a round waits for the own gradient of a replica whose last one came too late for the
round before. It may be waiting for another shard's round meanwhile, and that one, the other way
round, for somebody whom only this one keeps: what this breaks is a circle."""


@final
class EveryLive(ShardRule):
    """A round is one gradient of every replica that is live when it is about to be closed.

    One that was made for an earlier round (its replica was believed dead and came back) is added,
    and is not its replica's contribution. That is waited for, for ``LATE_PATIENCE_S``.

    Args:
        mean: A round's sum is divided by the sum of its weights.
        weigh: What each gradient counts for.
        ordered: Gradients are added in the order of their replicas' ids; one that comes before its
            turn is turned down until then.
        first: Replicas that the first round waits for, at least.
    """

    combines = True

    def __init__(
        self,
        *,
        mean: bool = True,
        weigh: Weighing = each_the_same,
        ordered: bool = False,
        first: int = 1,
    ) -> None:
        self.mean = mean
        self._weigh, self._ordered, self._first = weigh, ordered, first
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
        if self._ordered and not is_late:
            before = tuple(one for one in self._missing(view) if one < push.replica)
            if before:
                return NotYet(f"round {self.round} adds in the order of ids: {{on}}", before)
        return Accumulate(self.round, self._weigh(push.samples))

    def arrived(self, push: PushInfo) -> None:
        """One less to wait for, unless it was made for an earlier round."""
        self._holds = True
        (self._given if push.round >= self.round else self._late).add(push.replica)

    def due(self, view: ClusterView, now: float) -> Wait | None:
        """When every live replica gave its gradient; late ones are waited for a while only."""
        missing = self._missing(view)
        if not self._holds or self._is_short or not self._late.issuperset(missing):
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

    @property
    def _is_short(self) -> bool:
        """The first round waits for more replicas than have come."""
        return self.round == 0 and len(self._given) < self._first

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
        if self._is_short:
            return (
                f"round 0 waits for {self._first} replicas (replicas=...), "
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


@final
class Share(ShardRule):
    """A round is one n-th of as many gradients as there are replicas; nobody waits for it.

    Args:
        n: Rounds for which all of the replicas give about one gradient each, >= 1.
        replicas: How many there are. 0: those that are live when it is asked.
        mean: A round's sum is divided by how many gradients are in it.
        scale: What each fragment's gradient is multiplied by.
    """

    combines = True

    def __init__(
        self, n: int, *, replicas: int = 0, mean: bool = True, scale: Scale = AS_IT_IS
    ) -> None:
        self.mean = mean
        self._n, self._replicas, self._scale = n, replicas, scale
        self._here = 0
        """Gradients of the open round."""

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        """Into the open round."""
        return Accumulate(self.round, scale=self._scale)

    def arrived(self, push: PushInfo) -> None:
        """One more."""
        self._here += 1

    def due(self, view: ClusterView, now: float) -> Wait | None:
        """When enough are here; or some, and nobody is live who could give another."""
        short = max(1, (self._replicas or len(view.live)) // self._n) - self._here
        if short <= 0 or (self._here and not view.live):
            return None
        return Wait(f"round {self.round} waits for {short} more gradients, whoever they are of")

    def closed(self) -> None:
        super().closed()
        self._here = 0

    def export(self) -> dict[str, Any]:
        return {**super().export(), "here": self._here}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._here = int(state["here"])
