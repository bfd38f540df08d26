"""Buckets of a fixed number, with count, mean and largest exact."""

from __future__ import annotations

import random

import msgspec
import pytest

from pydownpour import histogram
from pydownpour.histogram import BUCKETS, EXACT, Histogram, HistogramEntry
from pydownpour.limits import COUNT_MAX
from tests.fakes.coordination import histogram as histogram_of


def test_small_values_are_exact_and_larger_ones_off_by_a_quarter_at_most() -> None:
    for value in [*range(5000), 2**20 - 1, 2**20, 2**31, 2**32 - 1]:
        index = histogram.bucket(value)
        low = histogram.least(index)
        assert low <= value
        assert value < EXACT or value <= low + low // 4
        assert value != low or histogram.bucket(max(value - 1, 0)) != index or value == 0
        assert value >= EXACT or low == value


def test_the_buckets_follow_each_other_without_a_gap() -> None:
    starts = [histogram.least(index) for index in range(BUCKETS)]
    assert starts == sorted(set(starts))
    assert [histogram.bucket(start) for start in starts] == list(range(BUCKETS))
    assert [histogram.bucket(start - 1) for start in starts[1:]] == list(range(BUCKETS - 1))


def test_whatever_is_added_the_size_stays_and_count_mean_and_largest_are_exact() -> None:
    rng = random.Random(1)
    values = [int(2 ** rng.uniform(0, 70)) - 1 for _ in range(5000)]
    entry = histogram_of(*values)
    assert (entry.count, entry.max) == (5000, COUNT_MAX)
    assert sum(entry.buckets) == 5000
    assert len(entry.buckets) <= BUCKETS
    small = [value for value in values if value < 2**40]
    assert histogram_of(*small).mean == sum(small) / len(small)
    assert histogram_of(*small).max == max(small)


def test_totals_are_those_of_all_values_together() -> None:
    assert histogram.total([]) == HistogramEntry()
    assert histogram.total([histogram_of(3, 40), histogram_of(0, 3)]) == histogram_of(3, 40, 0, 3)
    assert HistogramEntry().mean == 0.0
    assert histogram_of(0, 0, 0, 4).mean == 1.0
    assert histogram_of(0, 3, 3, 17).by_value() == {"0": 1, "3": 2, "16": 1}
    assert histogram_of(0, 9).outline() == HistogramEntry(count=2, sum=9, max=9)


def test_a_quantile_is_the_bucket_in_which_it_lies() -> None:
    entry = histogram_of(*range(10), 100)
    assert [entry.quantile(share) for share in (0.0, 0.5, 0.9, 1.0)] == [0, 5, 9, 96]
    assert HistogramEntry().quantile(0.5) == 0


def test_counters_stop_at_what_json_can_carry() -> None:
    full = HistogramEntry(count=COUNT_MAX, sum=COUNT_MAX, max=9, buckets=[COUNT_MAX])
    both = histogram.total([full, full])
    assert (both.count, both.sum, both.buckets) == (COUNT_MAX, COUNT_MAX, [COUNT_MAX])
    counting = Histogram()
    counting.add(2**200)
    entry = counting.entry()
    assert msgspec.json.decode(msgspec.json.encode(entry), type=HistogramEntry) == entry


@pytest.mark.parametrize("body", [
    b'{"buckets": [%s]}' % b",".join([b"1"] * (BUCKETS + 1)), b'{"count": -1}',
    b'{"sum": 9007199254740993}', b'{"buckets": [-1]}',
])  # fmt: skip
def test_what_a_peer_sends_is_bounded(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=HistogramEntry)
