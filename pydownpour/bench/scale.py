"""How much a run of the bench measures."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes and repetitions.

    Attributes:
        big_len: Elements of the large push; 42 million are 168 MB of float32.
        memory_len: Elements of the job whose processes are weighed; 125 million are 500 MB.
        tensors_len: Elements of the many small tensors' second size.
        tensors: How many small tensors.
        rounds: Repetitions of each measure.
        trips: Round trips timed in one repetition.
        patience_s: How long to go on in the hope of rounds that nobody disturbs.
    """

    big_len: int
    memory_len: int
    tensors_len: int
    tensors: int
    rounds: int
    trips: int
    patience_s: float


FULL = Scale(
    big_len=42_000_000,
    memory_len=125_000_000,
    tensors_len=10_000_000,
    tensors=10_000,
    rounds=9,
    trips=300,
    patience_s=20.0,
)
QUICK = Scale(
    big_len=600_000,
    memory_len=600_000,
    tensors_len=100_000,
    tensors=200,
    rounds=2,
    trips=20,
    patience_s=0.0,
)
"""Says only that the bench works."""
