"""Adding up what roles count: sums over incarnations, histograms, finite numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from pydownpour.wire.messages import ReplicaStats

SUMMED = (
    "steps",
    "samples",
    "units",
    "pushes_sent",
    "pushes_acked",
    "pushes_refused",
    "gradients_dropped",
    "records_duplicate",
    "fetches",
    "reconnects",
    "bytes_sent",
    "bytes_received",
    "wait_s",
)
"""Fields of ReplicaStats that are totals."""


def add_stats(banked: ReplicaStats, current: ReplicaStats) -> ReplicaStats:
    """Totals of both; what is no total (loss, waiting for whom, memory) as it is in ``current``."""
    sums = {name: getattr(banked, name) + getattr(current, name) for name in SUMMED}
    staleness = add_histograms([banked.staleness, current.staleness])
    return msgspec.structs.replace(current, **sums, staleness=staleness)


def add_histograms(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum of histograms, keys ascending."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(sorted(total.items()))


def mean_of(histogram: Mapping[int, int]) -> float:
    """The mean key; 0 for an empty histogram."""
    count = sum(histogram.values())
    return sum(key * n for key, n in histogram.items()) / count if count else 0.0


def finite(value: float | None) -> float | None:
    """The value if JSON can carry it, else None."""
    return value if value is not None and math.isfinite(value) else None
