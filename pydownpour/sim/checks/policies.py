"""What a change of the job's policy promises: everybody obeys the newest, and nobody goes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from pydownpour.sim.checks.base import Check, Watched
from pydownpour.sim.checks.oracle import Life

BEHIND_S: Final = 10.0
"""Virtual seconds a shard may hear nothing of a change: it stands still, is cut off, or moves."""


@final
class EverybodyGoesOver(Check):
    """Who hears of a newer version obeys it: a shard at once, a replica when its step has ended.

    So at the end of a run no shard obeys what has been replaced for long.
    """

    name = "everybody goes over"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._shards: dict[int, int] = {}
        """The version that each shard was seen to obey, whichever process has it."""
        self._replicas: dict[Life, int] = {}
        self._behind: dict[tuple[Life, int], int] = {}
        """Steps that a replica had begun when it was seen to know a version and obey an older."""

    def gone(self, life: Life) -> None:
        self._replicas.pop(life, None)
        self._behind = {key: steps for key, steps in self._behind.items() if key[0] is not life}

    def look(self) -> Iterator[str]:
        """Versions only grow, up to what the coordinator has made."""
        coordinator = self.world.coordinator
        newest = coordinator.job.policies.entry.version if coordinator is not None else 1
        for shard in self.shards():
            index, version = shard.assigned.index, shard.rounds.policy.version
            if not self._shards.get(index, 1) <= version <= newest:
                yield (
                    f"shard {index} obeys version {version} of {newest}, after "
                    f"{self._shards.get(index)}"
                )
            self._shards[index] = version
        for life in self.watched.lives.values():
            yield from self._look(life, newest)

    def _look(self, life: Life, newest: int) -> Iterator[str]:
        trainer, known = life.trainer, life.trainer.session.coordination.policy.version
        version = trainer.ruling.version
        if not self._replicas.get(life, 1) <= version <= known <= newest:
            yield (
                f"{life} obeys version {version} and knows {known} of {newest}, after "
                f"{self._replicas.get(life)}"
            )
        self._replicas[life] = version
        if version < known:
            began = self._behind.setdefault((life, known), trainer.steps)
            if trainer.steps >= began + 2:
                yield f"{life} knows version {known}, and began two more steps under {version}"

    def end(self) -> Iterator[str]:
        """At the end of a run that ended well: none is long behind."""
        coordinator = self.world.coordinator
        if coordinator is None or self.world.failure:
            return
        job = coordinator.job
        until_s = self.world.loop.now - BEHIND_S  # the coordinator starts with the world
        old = [one.entry.version for one in job.policies.versions if one.at_s <= until_s]
        for shard in self.shards():
            if shard.rounds.policy.version < max(old, default=1):
                yield (
                    f"shard {shard.assigned.index} ends under version "
                    f"{shard.rounds.policy.version}, {BEHIND_S:g} s after {max(old)}"
                )
