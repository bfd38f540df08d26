"""How often each value occurred, in a fixed number of buckets: constant in size for ever.

Values below ``EXACT`` have a bucket each. From there on each power of two is cut into
``PER_OCTAVE`` buckets of equal width, so a bucket is at most a quarter as wide as its least value
is large. How many values there were, their mean and the largest of them are kept exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated, Final, final

import msgspec

from pydownpour.fields import Count
from pydownpour.limits import COUNT_MAX

EXACT: Final = 16
"""Values below it are told apart."""
PER_OCTAVE: Final = 4
"""Buckets between a power of two and the next."""
VALUE_BITS: Final = 32
"""Values this long or longer count in the last bucket; a frame carries no longer one."""
BUCKETS: Final = EXACT + PER_OCTAVE * (VALUE_BITS - 4)
"""Of every histogram: 128."""


@final
class HistogramEntry(msgspec.Struct, frozen=True):
    """A histogram at one moment, as it travels.

    Attributes:
        count: How many values there were.
        sum: Their sum.
        max: The largest; 0 if there was none.
        buckets: How many fell into each bucket, the empty ones at the end left out.
    """

    count: Count = 0
    sum: Count = 0
    max: Count = 0
    buckets: Annotated[list[Count], msgspec.Meta(max_length=BUCKETS)] = []

    @property
    def mean(self) -> float:
        """The mean value; 0 if there was none."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> int:
        """The least value of the bucket below or in which such a share of all values lies."""
        wanted, seen = share * self.count, 0
        for index, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted and count:
                return least(index)
        return 0

    def by_value(self) -> dict[str, int]:
        """Bucket by bucket, under the least value of each, as text (JSON has no other keys)."""
        return {str(least(i)): count for i, count in enumerate(self.buckets) if count}

    def outline(self) -> HistogramEntry:
        """Without its buckets: count, mean and largest."""
        return HistogramEntry(count=self.count, sum=self.sum, max=self.max)


@final
class Histogram:
    """Counts values one by one."""

    __slots__ = ("_buckets", "_count", "_max", "_sum")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self._count = self._sum = self._max = 0

    def add(self, value: int) -> None:
        """Count one more value, at least 0."""
        self._buckets[value if value < EXACT else bucket(value)] += 1
        self._count += 1
        self._sum += value
        if value > self._max:
            self._max = value

    def entry(self) -> HistogramEntry:
        """All that was counted, now."""
        used = BUCKETS
        while used and not self._buckets[used - 1]:
            used -= 1
        return HistogramEntry(
            count=min(self._count, COUNT_MAX),
            sum=min(self._sum, COUNT_MAX),
            max=min(self._max, COUNT_MAX),
            buckets=[min(count, COUNT_MAX) for count in self._buckets[:used]],
        )


def total(entries: Iterable[HistogramEntry]) -> HistogramEntry:
    """One histogram that counts what all of these count."""
    listed = list(entries)
    columns = zip_longest(*(entry.buckets for entry in listed), fillvalue=0)
    return HistogramEntry(
        count=_bounded(entry.count for entry in listed),
        sum=_bounded(entry.sum for entry in listed),
        max=max((entry.max for entry in listed), default=0),
        buckets=[_bounded(column) for column in columns],
    )


def _bounded(numbers: Iterable[int]) -> int:
    return min(sum(numbers), COUNT_MAX)


def bucket(value: int) -> int:
    """The bucket a value falls into."""
    if value < EXACT:
        return value
    bits = value.bit_length()
    if bits > VALUE_BITS:
        return BUCKETS - 1
    quarter = (value >> (bits - 3)) - PER_OCTAVE
    return EXACT + PER_OCTAVE * (bits - EXACT.bit_length()) + quarter


def least(index: int) -> int:
    """The least value of a bucket."""
    if index < EXACT:
        return index
    octave, quarter = divmod(index - EXACT, PER_OCTAVE)
    return (PER_OCTAVE + quarter) << (octave + EXACT.bit_length() - 3)
