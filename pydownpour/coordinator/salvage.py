"""What of the parameters is lost when a job fails, for its report and for people."""

from __future__ import annotations

from typing import Any, Final

from pydownpour.coordinator.places import Place
from pydownpour.layout import Layout

PARTS_TOLD_MAX: Final = 100
"""Missing parts that a report lists."""
ARRAYS_NAMED_MAX: Final = 8
"""Arrays that one missing part names; of more it says how many there are."""
SHARDS_NAMED_MAX: Final = 3
"""Missing parts that the words name."""


def missing_part(layout: Layout, place: Place, error: Exception | None) -> dict[str, Any]:
    """One shard's part, where it lies in the layout, and why it is missing."""
    start, stop = place.start, place.start + place.len
    arrays = [s.name for s in layout.arrays if s.start < stop and s.start + s.len > start]
    return {
        "shard": place.index,
        "start": start,
        "stop": stop,
        "arrays": arrays[:ARRAYS_NAMED_MAX],
        "arrays_count": len(arrays),
        "why": str(error) if error is not None else "its shard is dead",
    }


def salvage_words(missing: list[dict[str, Any]]) -> str:
    """What was kept of a job that failed, in one sentence."""
    if not missing:
        return "all parameters could be read and are kept"
    named = [
        f"elements {part['start']} to {part['stop'] - 1} ({_arrays(part)}) of shard {part['shard']}"
        for part in missing[:SHARDS_NAMED_MAX]
    ]
    if len(missing) > SHARDS_NAMED_MAX:
        named.append(f"those of {len(missing) - SHARDS_NAMED_MAX} more shards")
    return f"the other parameters are kept; NaN stands for what is missing: {', '.join(named)}"


def _arrays(part: dict[str, Any]) -> str:
    more = part["arrays_count"] - len(part["arrays"])
    return ", ".join(part["arrays"]) + (f" and {more} more" if more else "")
