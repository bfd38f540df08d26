"""Who waited for whom, and how far apart replicas were: of a whole job, from what shards count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydownpour.coordinator.places import Place
from pydownpour.waits import WaitsEntry, across


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
