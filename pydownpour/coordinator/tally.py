"""Adding up what roles count: sums over incarnations, finite numbers."""

from __future__ import annotations

import math

import msgspec

from pydownpour import histogram, limits
from pydownpour.wire.messages import ReplicaStats

SUMMED = (
    "switches",
    "steps",
    "samples",
    "units",
    "pushes_sent",
    "pushes_acked",
    "pushes_repeated",
    "pushes_refused",
    "pushes_silent",
    "records_left_out",
    "payload_bytes",
    "gradients_dropped",
    "values_overflowed",
    "values_underflowed",
    "losses_not_finite",
    "records_duplicate",
    "fetches",
    "reconnects",
    "reduced_sent",
    "reduced_received",
    "bytes_sent",
    "bytes_received",
    "waited_push_s",
    "waited_blocks_s",
    "waited_round_s",
    "waited_clock_s",
    "waited_fetch_s",
    "waited_work_s",
)
"""Fields of ReplicaStats that are totals."""
WAITED = tuple(name for name in SUMMED if name.startswith("waited_"))
"""Those of them that are seconds a training loop waited, by what for."""


def add_stats(banked: ReplicaStats, current: ReplicaStats) -> ReplicaStats:
    """Totals of both; what is no total (loss, waiting for whom, memory) as it is in ``current``."""
    sums = {
        # Two lies that are each within a message's bounds must not add up to one that is not.
        name: min(
            getattr(banked, name) + getattr(current, name),
            limits.SECONDS_MAX if name.endswith("_s") else limits.COUNT_MAX,
        )
        for name in SUMMED
    }
    staleness = histogram.total([banked.staleness, current.staleness])
    return msgspec.structs.replace(current, **sums, staleness=staleness)


def finite(value: float | None) -> float | None:
    """The value if JSON can carry it, else None."""
    return value if value is not None and math.isfinite(value) else None
