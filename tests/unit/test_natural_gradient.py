"""Natural-gradient SGD: when it learns, what it refuses, and what it passes on."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from pydownpour.errors import ConfigError, GradientMismatch, UnsupportedArray
from pydownpour.replica.natural_gradient import FIRST_LEARNT, SIDES, Factor

Rows = NDArray[np.float32]


def minibatch(seed: int, samples: int = 12, inputs: int = 6, outputs: int = 4) -> tuple[Rows, Rows]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, inputs), np.float32)
    return x, rng.standard_normal((samples, outputs), np.float32)


def state(natural: dp.NaturalGradient) -> bytes:
    """What it would answer to something new, and nothing learnt of it."""
    return copy.deepcopy(natural).gradient(*minibatch(99)).tobytes()


def test_it_is_the_product_of_both_sides_by_what_was_known_before() -> None:
    natural = dp.NaturalGradient(rank_inputs=3, alpha=2.0, history=50.0, update_every=1)
    left, right = Factor(6, 3, 2.0, 50.0), Factor(4, 3, 2.0, 50.0)
    for seed in range(4):
        x, d = minibatch(seed)
        pairs = ((left, x.astype(float)), (right, d.astype(float)))
        if seed == 0:
            for factor, rows in pairs:
                factor.learn(rows)
        bent, back = (factor.precondition(rows).astype(np.float32) for factor, rows in pairs)
        for factor, rows in pairs:
            factor.learn(rows)
        g = natural.gradient(x, d)
        assert g.dtype == np.float32
        assert np.array_equal(g, bent.T @ back)


def test_it_learns_from_the_first_minibatches_and_then_from_every_so_manieth() -> None:
    natural = dp.NaturalGradient(update_every=3)
    learnt = []
    for number in range(FIRST_LEARNT + 9):
        before = state(natural) if number else b""
        natural.gradient(*minibatch(number))
        if state(natural) != before:
            learnt.append(number)
    assert learnt == [*range(FIRST_LEARNT), 12, 15, 18]


def test_the_same_minibatches_give_the_same_bits() -> None:
    one, other = dp.NaturalGradient(), dp.NaturalGradient()
    for seed in range(15):
        rows = minibatch(seed)
        assert one.gradient(*rows).tobytes() == other.gradient(*rows).tobytes()


def test_a_minibatch_of_few_samples_is_enough() -> None:
    natural = dp.NaturalGradient()
    for seed in range(30):
        x, d = minibatch(seed, samples=1)
        g = natural.gradient(x, d)
        assert np.isfinite(g).all()
        # Of one sample, the gradient's norm is the product of its rows' norms.
        assert np.linalg.norm(g) == pytest.approx(np.linalg.norm(x.T @ d), rel=1e-5)


def test_a_side_of_width_one_stays_as_it_is() -> None:
    natural = dp.NaturalGradient()
    x, d = minibatch(1, inputs=1, outputs=1)
    assert np.array_equal(natural.gradient(x, d), x.T @ d)
    assert natural.state_size == 0


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf, -np.inf, 1e-120, 1e120])
@pytest.mark.parametrize("side", [0, 1])
def test_rows_that_are_zero_or_no_numbers_teach_nothing(wrong: float, side: int) -> None:
    natural = dp.NaturalGradient()
    natural.gradient(*minibatch(0))
    known = state(natural)
    rows: list[NDArray[Any]] = [each.astype(np.float64) for each in minibatch(1)]
    rows[side][...] = wrong
    g = natural.gradient(*rows)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(g, rows[0].T @ rows[1], equal_nan=True)
    assert np.isfinite(g).all() == np.isfinite(wrong)
    assert state(natural) == known


def test_one_nan_makes_a_gradient_that_step_drops() -> None:
    x, d = minibatch(0)
    x[3, 2] = np.nan
    g = dp.NaturalGradient().gradient(x, d)
    assert np.isnan(g[2]).all()
    assert np.isfinite(np.delete(g, 2, axis=0)).all()


def test_nothing_but_zeros_first() -> None:
    natural = dp.NaturalGradient()
    x, d = minibatch(0)
    assert not natural.gradient(x, np.zeros_like(d)).any()
    fresh = dp.NaturalGradient()
    assert np.array_equal(natural.gradient(x, d), fresh.gradient(x, d))


def test_its_rows_may_be_any_numbers() -> None:
    x, d = minibatch(0)
    pixels = (x * 50).astype(np.int64)
    g = dp.NaturalGradient().gradient(pixels, d)
    assert g.dtype == np.float32
    assert np.array_equal(g, dp.NaturalGradient().gradient(pixels.astype(np.float32), d))
    assert dp.NaturalGradient().gradient(x.astype(np.float64), d).dtype == np.float64
    lists = dp.NaturalGradient().gradient(x.tolist(), d.astype(np.float64))
    assert lists.shape == (6, 4)


def test_it_keeps_its_directions_and_nothing_else() -> None:
    natural = dp.NaturalGradient(rank_inputs=2)
    assert natural.state_size == 0
    for seed in range(3):
        natural.gradient(*minibatch(seed))
        assert natural.state_size == 8 * (2 * 6 + 2 + 3 * 4 + 3)


def test_ranks_that_are_not_given_fit_any_layer() -> None:
    natural = dp.NaturalGradient()
    natural.gradient(*minibatch(0, inputs=100, outputs=100))
    assert natural.state_size == 8 * 101 * sum(SIDES.values())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank_inputs": 0}, r"rank_inputs=0 must be at least 1"),
        ({"rank_derivatives": 2.5}, r"rank_derivatives=2.5 must be a whole number"),
        ({"alpha": -1.0}, r"alpha=-1 is out of range; alpha is 0 or more"),
        ({"alpha": float("nan")}, r"alpha=nan is out of range"),
        ({"history": 0.0}, r"history=0 is out of range; history is above 0"),
        ({"update_every": 0}, r"update_every=0 must be at least 1"),
    ],
)
def test_settings_out_of_bounds(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dp.NaturalGradient(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank_inputs": 6}, r"rank_inputs=6 must be below the width of inputs, 6; .* it is 5"),
        ({"rank_derivatives": 9}, r"rank_derivatives=9 must be below the width of derivatives, 4"),
    ],
)
def test_a_rank_that_is_no_lower_than_its_width(settings: dict[str, Any], words: str) -> None:
    natural = dp.NaturalGradient(**settings)
    with pytest.raises(ConfigError, match=words):
        natural.gradient(*minibatch(0))


X, D = minibatch(0)


@pytest.mark.parametrize(
    ("inputs", "derivatives", "words"),
    [
        (X[0], D, r"inputs \(6,\) and derivatives \(12, 4\): .*reshape"),
        (X.reshape(3, 4, 6), D, r"inputs \(3, 4, 6\) and derivatives"),
        (X[:0], D[:0], r"inputs \(0, 6\) and derivatives \(0, 4\): .*at least one"),
        (X[:5], D, r"inputs \(5, 6\) and derivatives \(12, 4\): not the same number"),
        (X[:, :5], D, r"inputs \(12, 5\) .* were \(6, 4\) before: .* of its own"),
    ],
)
def test_shapes_that_do_not_fit(inputs: Rows, derivatives: Rows, words: str) -> None:
    natural = dp.NaturalGradient()
    natural.gradient(X, D)
    known = state(natural)
    with pytest.raises(GradientMismatch, match=words):
        natural.gradient(inputs, derivatives)
    assert state(natural) == known


@pytest.mark.parametrize("wrong", [None, {"w": X}, X.astype(complex), np.ma.masked_array(X)])
def test_what_is_no_array_of_numbers(wrong: Any) -> None:
    with pytest.raises(UnsupportedArray, match=r"rows 'inputs'"):
        dp.NaturalGradient().gradient(wrong, D)
