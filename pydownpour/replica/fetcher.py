"""The one way parameters come in: from every shard into the staging buffer, from there to the user.

    user's thread                              session's loop
    begin()  ------- portal.post(start) ----->  start(): one FETCH to each shard
      ... computes ...                          bytes land in ``staging``
                                                the last shard's has landed: completed += 1
    landing()  <- true once, when none is on its way
    copies ``staging``

At most one fetch is on its way, and ``landing`` is true only when none is: what is copied is whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour.layout import Flat
from pydownpour.replica.link import Link
from pydownpour.replica.pushes import Base
from pydownpour.replica.standing import Standing
from pydownpour.wire.frames import FetchNotice


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What the answers to a fetch wait for.

    Attributes:
        rounds: At each shard, that it has closed so many; empty: none.
        least_clock: That every live replica's clock is so far.
        clock: The steps that this replica has finished, which each shard is told.
        apart: No push of this replica is on its way to a shard meanwhile.
        policy: The version of the job's policy whose rule asks.
    """

    rounds: tuple[int, ...] = ()
    least_clock: int = 0
    clock: int = 0
    apart: bool = False
    policy: int = 0

    def at(self, shard: int) -> FetchNotice:
        """What a shard is told."""
        rounds = self.rounds[shard] if self.rounds else 0
        return FetchNotice(rounds, self.least_clock, self.clock, self.policy)


NOW: Final = Gate()
"""Waits for nothing, before the first step: what there is."""


def _overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


@final
class Fetcher:
    """Fetches of a whole layout.

    Args:
        links: One to each shard; each writes into its elements of ``staging``.
        staging: Where the newest parameters land.
        versions: The versions of their fragments.
        standing: Told when they have.

    Shapes:
        staging: (elements of the layout,) float32.
        versions: (fragments of the layout,) uint64.

    Attributes:
        completed: Fetches that landed from every shard. Written on the session's loop.
    """

    def __init__(
        self,
        links: Sequence[Link],
        staging: Flat,
        versions: NDArray[np.uint64],
        standing: Standing,
    ) -> None:
        self._links, self.versions, self._standing = links, versions, standing
        self.staging = staging
        self.completed = 0
        self._was_brought = False
        """``staging`` has what the user's thread is about to fetch."""
        self._coming = 0
        """Shards whose answers to the fetch on its way have not landed."""
        for link in links:
            link.on_fetched = self._moved
        self._asked = 0
        """Of the user's thread: what ``completed`` is when no fetch is on its way."""
        self._landed = 0
        """Of the user's thread: the fetch it has copied."""

    # -- on the session's loop -------------------------------------------------------------------

    def start(self, gate: Gate = NOW) -> None:
        """Fetch in the background, unless a fetch is already on its way."""
        if not self._coming:
            self._coming = len(self._links)
            for i, link in enumerate(self._links):
                link.fetch(gate.at(i), apart=gate.apart)

    async def bring_some(self, fragments: range) -> None:
        """Fetch what is newer of some fragments, while the user's thread waits for something else.

        ``staging`` is not whole by that: who brings the rest says when it is.
        """
        await self._standing.wait(lambda: not self._coming)
        asked = [link for link in self._links if _overlap(link.fragments, fragments)]
        self._coming, wanted = len(asked), self.completed + 1
        for link in asked:
            link.fetch(only=_overlap(link.fragments, fragments))
        if asked:
            await self._standing.wait(lambda: self.completed >= wanted)

    def tell(self, clock: int) -> None:
        """Shards shall know that this replica has finished so many steps."""
        for link in self._links:
            link.tell(clock)

    def _moved(self) -> None:
        """One shard's has landed."""
        self._coming -= 1
        if not self._coming:
            self.completed += 1
            self._standing.changed()

    async def fetch(self, gate: Gate = NOW) -> None:
        """Fetch what is newer than now, and wait for it; the user's thread waits for us."""
        if self._was_brought:
            self._was_brought = False
        else:
            await self.bring(gate)
        self._asked = self.completed

    async def bring(self, gate: Gate = NOW) -> None:
        """The same while the user's thread waits for something else, and fetches then."""
        await self._standing.wait(lambda: not self._coming)
        wanted = self.completed + 1
        self.start(gate)
        await self._standing.wait(lambda: self.completed >= wanted)

    def brought(self) -> None:
        """``staging`` is whole and new: the next fetch of the user's thread finds it there."""
        self.completed += 1
        self._was_brought = True

    # -- on the user's thread --------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No fetch is on its way."""
        return self._asked == self.completed

    def begin(self) -> None:
        """A fetch is on its way: ``start`` has been posted, or is about to be."""
        self._asked += 1

    def landing(self) -> bool:
        """Whether ``staging`` is whole and newer than what was copied; then copy it now."""
        if not self.is_idle or self._landed == self._asked:
            return False
        self._landed = self._asked
        return True

    def base(self) -> Base:
        """What ``staging`` holds."""
        rounds = tuple(link.known.round for link in self._links)
        return Base(self.versions.copy(), rounds, self.clock)

    @property
    def clock(self) -> int:
        """Every live replica's pushes of its first so many steps are in ``staging``."""
        return min(link.known.clock for link in self._links)

    def least_clocks(self) -> tuple[int, int]:
        """Of the least clocks that shards have told: the smallest and the largest."""
        told = [link.view.least_clock for link in self._links]
        return min(told), max(told)

    def deviation(self) -> float:
        """The mean over all parameters of what the shards' optimizers tell."""
        links = self._links
        total = sum(link.view.deviation * link.entry.len for link in links)
        return total / sum(link.entry.len for link in links)
