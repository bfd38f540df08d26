"""Natural-gradient SGD equals its twin, which inverts F; and is invariant where it must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pydownpour import NaturalGradient
from pydownpour.replica.natural_gradient import Factor
from tests.reference import natural_gradient as slow

Rows = NDArray[np.float64]
SEEDS = st.integers(0, 2**32 - 1)
ALPHAS = st.sampled_from([0.0, 0.1, 1.0, 4.0, 100.0])


def orthogonal(rng: np.random.Generator, width: int) -> Rows:
    return np.asarray(np.linalg.qr(rng.standard_normal((width, width)))[0])


def root(rng: np.random.Generator, roots: Rows) -> Rows:
    """Rows whose second moments have these roots of eigenvalues, as many as they are wide."""
    width = len(roots)
    rows: Rows = orthogonal(rng, width) * (roots * np.sqrt(width)) @ orthogonal(rng, width)
    return rows


@st.composite
def sides(draw: st.DrawFn) -> tuple[np.random.Generator, int, int]:
    """(chance, width, rank)"""
    width = draw(st.integers(2, 7))
    return np.random.default_rng(draw(SEEDS)), width, draw(st.integers(1, width - 1))


def minibatches(rng: np.random.Generator, width: int, count: int) -> list[Rows]:
    """More rows than their width, of directions that are unlike."""
    mix = orthogonal(rng, width) * np.linspace(1, 3, width)
    return [rng.standard_normal((3 * width + 5, width)) @ mix for _ in range(count)]


@given(sides(), ALPHAS, st.sampled_from([30.0, 200.0, 2000.0]))
def test_low_rank_equals_the_inverse_of_the_whole(
    side: tuple[np.random.Generator, int, int], alpha: float, history: float
) -> None:
    rng, width, rank = side
    fast = Factor(width, rank, alpha, history)
    chance = np.random.default_rng(0).standard_normal((width, rank))
    twin = slow.Factor(np.linalg.qr(chance)[0].T, alpha, history)
    for rows in minibatches(rng, width, 6):
        fast.learn(rows)
        twin.learn(rows)
        bent = fast.precondition(rows)
        np.testing.assert_allclose(bent, twin.precondition(rows), rtol=1e-6, atol=1e-8)
        assert np.linalg.norm(bent) == pytest.approx(np.linalg.norm(rows), rel=1e-12)


@given(sides(), ALPHAS)
def test_what_has_always_been_so_is_inverted_exactly(
    side: tuple[np.random.Generator, int, int], alpha: float
) -> None:
    """Some directions and a rest that is alike: no rank is missing, and F becomes the truth."""
    rng, width, rank = side
    roots = np.sqrt([*np.linspace(20, 5, rank), *[1.0] * (width - rank)])
    rows = root(rng, roots)
    factor = Factor(width, rank, alpha, 1.0)
    for _ in range(30):
        factor.learn(rows)
    new = rng.standard_normal((4, width))
    expected = slow.precondition(new, rows.T @ rows / width, alpha)
    np.testing.assert_allclose(factor.precondition(new), expected, rtol=1e-6, atol=1e-8)


@given(SEEDS, st.integers(2, 5))
def test_in_full_it_does_not_see_how_inputs_are_written(seed: int, width: int) -> None:
    """Without smoothing, and with all directions told apart, X A moves weights as X does.

    W' = A^-1 W gives the same outputs, so a gradient g should become A^-1 g: its direction does.
    """
    rng = np.random.default_rng(seed)
    roots = [2.0 * width, *np.linspace(width, 2, width - 2), 1.0][-width:]
    usual, changed = root(rng, np.array(roots)), root(rng, np.array(roots[::-1]))
    change = np.linalg.solve(usual, changed)
    rows = rng.standard_normal((6, width))
    derivatives = rng.standard_normal((6, 3))
    found = []
    for seen, written in ((usual, np.eye(width)), (changed, change)):
        factor = Factor(width, width - 1, 0.0, 1.0)
        for _ in range(30):
            factor.learn(seen)
        g = written @ factor.precondition(rows @ written).T @ derivatives
        found.append(g / np.linalg.norm(g))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-8)


def both_sides(rng: np.random.Generator, count: int) -> list[tuple[Rows, Rows]]:
    return list(zip(minibatches(rng, 6, count), minibatches(rng, 6, count), strict=True))


@given(SEEDS, st.integers(-40, 40), st.integers(-40, 40))
def test_the_scale_of_rows_is_the_gradient_s_to_the_bit(seed: int, one: int, other: int) -> None:
    plain, scaled = NaturalGradient(), NaturalGradient()
    for x, d in both_sides(np.random.default_rng(seed), 3):
        g = plain.gradient(x, d) * 2.0 ** (one + other)
        assert np.array_equal(scaled.gradient(x * 2.0**one, d * 2.0**other), g)


@given(SEEDS)
def test_neither_does_the_order_of_samples_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain, mixed = NaturalGradient(), NaturalGradient()
    for x, d in both_sides(rng, 3):
        order = rng.permutation(len(x))
        g = plain.gradient(x, d)
        np.testing.assert_allclose(mixed.gradient(x[order], d[order]), g, rtol=1e-6, atol=1e-8)


@given(SEEDS)
def test_smoothed_enough_it_is_plain_sgd(seed: int) -> None:
    natural = NaturalGradient(alpha=1e12)
    for x, d in both_sides(np.random.default_rng(seed), 3):
        np.testing.assert_allclose(natural.gradient(x, d), x.T @ d, rtol=1e-9, atol=1e-9)
