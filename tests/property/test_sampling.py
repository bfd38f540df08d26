"""Sample orders: bijections of the places, of any length, that nobody has to hold whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import limits
from pydownpour.job import Work
from pydownpour.replica.work import Unit
from pydownpour.sampling import samples_at
from pydownpour.wire.messages import UnitEntry, WorkEntry

SEEDS = st.integers(0, limits.COUNT_MAX)


def order(length: int, *, seed: int = 0, pass_index: int = 0) -> np.ndarray:
    return samples_at(length, True, seed, pass_index, 0, length)


@pytest.mark.parametrize("seed", [0, 1, limits.COUNT_MAX])
def test_an_order_visits_every_sample_once_whatever_the_length(seed: int) -> None:
    for length in range(1, 300):
        assert np.array_equal(np.sort(order(length, seed=seed)), np.arange(length)), length


@given(length=st.integers(1, 200_000), seed=SEEDS, pass_index=st.integers(0, 1000))
def test_longer_orders_do_so_too(length: int, seed: int, pass_index: int) -> None:
    assert np.array_equal(
        np.sort(order(length, seed=seed, pass_index=pass_index)), np.arange(length)
    )


@given(
    length=st.integers(1, limits.COUNT_MAX),
    seed=SEEDS,
    start=st.floats(0, 1),
    width=st.integers(0, 200_000),
    cut=st.floats(0, 1),
)
def test_a_slice_is_the_slice_of_the_whole(
    length: int, seed: int, start: float, width: int, cut: float
) -> None:
    first = min(int(start * length), length)
    last = min(first + width, length)
    middle = first + int(cut * (last - first))
    whole = samples_at(length, True, seed, 3, first, last)
    assert whole.dtype == np.int64
    assert len(np.unique(whole)) == last - first
    assert not len(whole) or (0 <= whole.min() and whole.max() < length)
    parts = [samples_at(length, True, seed, 3, *part) for part in ((first, middle), (middle, last))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_orders_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert order(10, seed=7, pass_index=1).tolist() == [9, 0, 8, 3, 2, 1, 4, 7, 5, 6]
    found = samples_at(2_000_000_000, True, 0, 4, 999_999_998, 1_000_000_002)
    assert found.tolist() == [1462554281, 1139729728, 1578770832, 1116702057]


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [order(50, seed=s, pass_index=n).tolist() for s in range(20) for n in range(20)]
    assert len({tuple(one) for one in orders}) == len(orders)


def test_every_sample_comes_at_every_place_about_equally_often() -> None:
    """Chi-squared with fixed seeds: 12 * 12 cells, as a uniform shuffle would fill them."""
    length, orders = 12, 6000
    counts = np.zeros((length, length))
    for seed in range(orders):
        counts[np.arange(length), order(length, seed=seed)] += 1
    expected = orders / length
    chi2 = ((counts - expected) ** 2 / expected).sum()
    freedom = (length - 1) ** 2
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


def test_neighbours_in_an_order_are_no_neighbours_in_the_data() -> None:
    """Steps between neighbours of a long order, in ten classes, as independent places give."""
    length = 1_000_000
    found = order(length, seed=5)
    steps = np.diff(found) % length
    counts = np.bincount(steps * 10 // length, minlength=10)
    expected = (length - 1) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 5 * math.sqrt(18)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / math.sqrt(length)
    halves = np.bincount(found[: length // 2] * 10 // length, minlength=10)
    # Half of all are drawn without putting back: half the variance of independent draws.
    assert (np.abs(halves - length / 20) < 5 * math.sqrt(length / 10 / 4)).all()


def test_work_of_any_size_starts_at_once_and_holds_nothing() -> None:
    work = Work(2_000_000_000, passes=3)
    entry = WorkEntry(len=work.len, unit=work.unit, passes=3, shuffle=True, seed=0)
    last = work.units - 1
    unit = Unit(UnitEntry(pass_index=2, unit=last, start=last * 256, stop=work.len, lease=1), entry)
    assert len(unit) == work.len - last * 256
    assert unit.indices.nbytes == len(unit) * 8
    assert np.array_equal(unit.indices, work.indices(2, last * 256, work.len))
