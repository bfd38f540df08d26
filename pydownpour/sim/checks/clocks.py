"""What stale synchronous parallel promises of each read: nothing is older than the slack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from pydownpour.policy import PushInfo
from pydownpour.policy.ssp import SSP
from pydownpour.replica.pushes import Push
from pydownpour.shard.rounds import Event
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check, Watched, one_policy
from pydownpour.sim.checks.oracle import Life


@final
class ReadsAreWithinSlack(Check):
    """A step begun at clock c was computed from a copy with all updates of the first c - s steps.

    Of the replicas that were waited for when their update arrived. From books of its own: what a
    shard's versions were then, and what a replica says each gradient was computed from. And nobody
    begins a step while the slowest is more than the slack behind.
    """

    name = "reads are within the slack"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        policy = one_policy(watched.world)
        self._slack = policy.slack if isinstance(policy, SSP) else None
        self._arrived: dict[int, dict[int, NDArray[np.uint64]]] = {}
        """By shard and clock: versions of its fragments that hold every update of that clock."""
        self._last: dict[int, dict[int, int]] = {}
        """By shard and replica: the clock of its last update that was waited for."""
        self._clocks: dict[Life, int] = {}
        """Of the last push of a life."""
        self._wrong: list[str] = []

    def shard_loaded(self, shard: Shard) -> None:
        if self._slack is not None:
            shard.rounds.on_event = lambda event, push: self._happened(shard, event, push)

    def _happened(self, shard: Shard, event: Event, push: PushInfo | None) -> None:
        if event != "arrived" or push is None:
            return
        index, clocks = shard.assigned.index, shard.rounds.clocks
        last = self._waited_for(shard)
        is_next = push.clock - 1 == last.get(push.replica)
        if push.replica in clocks.of and (is_next or push.clock > clocks.least):
            last[push.replica] = push.clock
            versions = np.frombuffer(shard.store.versions(), np.uint64)
            self._arrived.setdefault(index, {})[push.clock] = versions

    def _waited_for(self, shard: Shard) -> dict[int, int]:
        """Last clocks, without those of whom it has meanwhile waited for no more."""
        last = self._last.setdefault(shard.assigned.index, {})
        for gone in last.keys() - shard.rounds.clocks.of.keys():
            del last[gone]
        return last

    def pushed(self, life: Life, push: Push) -> None:
        begun_at = self._clocks.get(life)
        self._clocks[life] = push.clock
        if self._slack is None or begun_at is None:
            return
        least = begun_at - self._slack
        for shard in self.shards():
            index, clocks = shard.assigned.index, shard.rounds.clocks
            # One that goes on from further ahead, because it was not there, has not waited.
            if push.clock == begun_at + 1 and life.replica in clocks.of and clocks.least < least:
                slow = [who for who, clock in clocks.of.items() if clock < least]
                self._wrong.append(
                    f"{life} began step {push.clock}, and shard {index} knows {slow} below {least}"
                )
            first, count = shard.store.first_fragment, shard.store.fragments
            had = push.base.versions[first : first + count]
            for clock, versions in self._arrived.get(index, {}).items():
                if clock <= least and np.any(had < versions):
                    self._wrong.append(
                        f"{life} began step {push.clock} without updates of step {clock} that "
                        f"shard {index} had"
                    )

    def joined(self, life: Life) -> None:
        for last in self._last.values():
            last.pop(life.replica, None)  # it begins where the others are

    def gone(self, life: Life) -> None:
        self._clocks.pop(life, None)

    def look(self) -> Iterator[str]:
        for shard in self.shards() if self._slack is not None else ():
            self._waited_for(shard)  # who is gone for a while may be back at its next update
        yield from self._wrong
        self._wrong.clear()
