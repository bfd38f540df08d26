"""Who waited for whom, and how far apart replicas were: of a whole job, from what shards count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from pydownpour.coordinator.places import Place
from pydownpour.limits import DEFAULT, Limits
from pydownpour.waits import WaitEntry, WaitsEntry, across


def who_waited(places: Sequence[Place]) -> dict[str, Any]:
    """The report's table: of each pair and replica the longest that any shard has counted."""
    return table(across(place.stats.waits for place in places))


def table(waits: WaitsEntry) -> dict[str, Any]:
    """As the report has it: longest first, in seconds."""
    return {
        "count": waits.count,
        "seconds": waits.seconds,
        "unnamed_s": waits.unnamed_s,
        "pairs": [
            {"replica": waiter, "on": on, "seconds": seconds} for waiter, on, seconds in waits.pairs
        ],
        "pairs_more_s": waits.pairs_more_s,
        "by_waiter": {str(replica): seconds for replica, seconds in waits.waiters},
        "by_waiter_more_s": waits.waiters_more_s,
        "by_waited_for": {str(replica): seconds for replica, seconds in waits.waited_for},
        "by_waited_for_more_s": waits.waited_for_more_s,
    }


@final
class WaitNews:
    """Which waits are news: one that has become notable, and one that was and has ended.

    Shards tell the longest that last and the newest that have ended, each under its number; so each
    is news once, whatever heartbeat is lost or comes twice.

    Args:
        limits: Which are notable, and how many are told in a time.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._begun: dict[int, dict[int, WaitEntry]] = {}
        """By shard: those that were notable and lasted when it was last heard."""
        self._over: dict[int, set[int]] = {}
        """By shard: numbers of those that had ended by then, as far as it tells."""
        self._window_began = 0.0
        self._told = self._more = 0

    def heard(self, index: int, waits: WaitsEntry, now: float) -> Iterator[tuple[str, Any]]:
        """What is new of one shard: ("wait" or "wait over", the event's fields), in order."""
        if not waits.count and index not in self._begun:
            return
        before = self._begun.get(index, {})
        least = self._limits.wait_notable_s
        lasting = {one.number: one for one in waits.open if one.seconds >= least}
        over = {one.number: one for one in waits.ended}
        for number, one in over.items():
            if number not in self._over.get(index, ()):
                yield from self._event("wait over", index, one, now)
        for number, one in before.items():
            if number not in lasting and number not in over:
                # Others have ended since, and it is no longer told how long this one lasted.
                yield from self._event("wait over", index, one, now, at_least=True)
        for number, one in lasting.items():
            if number not in before:
                yield from self._event("wait", index, one, now)
        self._begun[index], self._over[index] = lasting, set(over)

    def _event(
        self, event: str, index: int, one: WaitEntry, now: float, **more: Any
    ) -> Iterator[tuple[str, Any]]:
        if now - self._window_began >= self._limits.wait_events_s:
            self._window_began, self._told = now, 0
        if self._told >= self._limits.wait_events_max:
            self._more += 1
            return
        self._told += 1
        if self._more:
            more["not_told"], self._more = self._more, 0
        yield event, {
            "shard": index, "replica": one.replica, "on": one.on, "seconds": one.seconds,
            "reason": one.words, **more,
        }  # fmt: skip
