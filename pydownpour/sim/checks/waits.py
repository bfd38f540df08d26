"""What shards say of who waits for whom: it is so, and it is never for the dead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from pydownpour.policy.hard_sync import HardSync
from pydownpour.sim.checks.base import Check, Watched
from pydownpour.sim.checks.oracle import Life

GONE_S: Final = 40.0
"""Virtual seconds an answer may be held for a replica that the coordinator has said is gone: a
shard that stands still looks at nobody, and no plan lets one for longer."""


ON_THE_WAY_S: Final = 0.5
"""Of a wait that has ended at its replica, until its shard hears of it."""


@final
class NobodyWaitsForTheDead(Check):
    """No answer is held for long for a replica that the shard was told is gone.

    From the coordinator's own list, and from what the shard has heard of it.
    """

    name = "nobody waits for the dead"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._since: dict[tuple[int, int, int], float] = {}
        """(shard, who waits, for whom) -> since when that one has been gone."""

    def look(self) -> Iterator[str]:
        """Those who are waited for are live, or have been gone for a moment only."""
        now, gone = self.world.loop.now, dict.fromkeys(self._gone())
        self._since = {wait: self._since.get(wait, now) for wait in gone}
        for (index, waiter, on), since in self._since.items():
            if now - since > GONE_S:
                yield (
                    f"shard {index} holds an answer to replica {waiter} for replica {on}, of which "
                    f"it was told {GONE_S:g} s ago that it is gone"
                )

    def _gone(self) -> Iterator[tuple[int, int, int]]:
        coordinator = self.world.coordinator
        if coordinator is None:
            return
        members = coordinator.job.members
        live = {one for start, stop in members.live_ids().ranges for one in range(start, stop)}
        for shard in self.shards():
            if shard.rounds.live_version != members.live_version:
                continue  # it has not heard of the last change yet
            for waiter in shard.rounds.waits.open:
                for on in shard.rounds.waits.on(waiter):
                    if on not in live:
                        yield shard.assigned.index, waiter, on


@final
class WhoWaitsIsHeld(Check):
    """Who is said to wait at a shard has an answer that is held, on a connection of its own."""

    name = "who waits is held"

    def look(self) -> Iterator[str]:
        """At every shard."""
        for shard in self.shards():
            rounds = shard.rounds
            for replica, owner in rounds.waits.open.items():
                if owner not in rounds.waiting:
                    yield (
                        f"shard {shard.assigned.index}: replica {replica} is said to wait, and no "
                        "answer to it is held"
                    )


@final
class EachSecondCountsOnce(Check):
    """No shard counts more seconds for a replica than this one has waited, by its own clock.

    Of synchronous rounds, where a training loop itself waits for each answer that is held, and of
    replicas in their first life: what comes of an older one may be held for a while yet.
    """

    name = "each second counts once"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._again: set[int] = set()
        """Replicas that have had a life before."""

    def joined(self, life: Life) -> None:
        """It may be its second."""
        if life.incarnation != 1:
            self._again.add(life.replica)

    def look(self) -> Iterator[str]:
        """Of every replica that lives, at every shard."""
        if not isinstance(self.world.job.policy, HardSync):
            return
        for life in self.watched.lives.values():
            if life.replica in self._again:
                continue
            by_kind = life.process.context.copy().run(life.trainer.waited.by_kind)  # by its clock
            waited = sum(by_kind.values())
            for shard in self.shards():
                counted = shard.rounds.waits.seconds_of(life.replica)
                if counted > waited + ON_THE_WAY_S:
                    yield (
                        f"shard {shard.assigned.index} counts {counted:.3f} s for replica "
                        f"{life.replica}, and that has waited {waited:.3f} s"
                    )
