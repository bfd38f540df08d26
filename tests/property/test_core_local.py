"""A replica's own optimizer equals the numpy twin to the bit, and a shard with one replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core
from pydownpour.errors import ParameterError
from tests.property.test_core_optimizers import LEVELS, arrays, chains
from tests.reference import optimizers as slow

Parts = list[tuple[str, dict[str, float]]]
PIECE = 1024
"""Elements that the core steps at a time."""


def gathered(*values: Any) -> _core.Arrays:
    gather = _core.Gather([value.shape for value in values])
    found = gather.plain(list(values))
    assert found is not None
    return found


@pytest.mark.parametrize("level", LEVELS)
@given(
    chains().filter(lambda parts: not _core.Optimizer(parts).history),
    st.sampled_from([1, 17, PIECE, PIECE + 1, 2 * PIECE + 5]),
    st.lists(st.integers(0, 9) | st.just("begin"), min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_equal_to_the_twin(
    level: str, parts: Parts, length: int, calls: list[int | str], seed: int
) -> None:
    local = _core.LocalOptimizer(_core.Optimizer(parts, simd=level), len=length)
    w = arrays(seed, length)
    expected, state = w.copy(), slow.initial(parts, length)
    steps = before = since = 0
    for call in calls:
        if isinstance(call, str):
            local.begin()
            state, since = slow.initial(parts, length), 0
            continue
        g = arrays(seed + steps + 1, length)
        pieces = (g[:5], g[5:]) if length > 5 else (g,)
        local.step(w, gathered(*pieces), samples=call)
        steps, since = steps + 1, since + 1
        at = slow.Context(steps, samples_before=before, samples=call)
        expected, state = slow.update(parts, expected, g, state, at, since=since)
        np.testing.assert_array_equal(w, expected)
        before += call
    assert local.size == 4 * length * _core.Optimizer(parts).planes


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_the_shard_s_own_arithmetic(level: str) -> None:
    parts: Parts = [
        ("warm_up", {"over": 4.0, "start": 0.25, "by_samples": 1.0}),
        ("clip", {"max": 1.5}),
        ("adamw", {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.01}),
    ]
    optimizer = _core.Optimizer(parts, simd=level)
    shard = _core.Shard(len=3000, stripe_len=3008, fragment_len=3008, optimizer=optimizer)
    local, w = _core.LocalOptimizer(optimizer, len=3000), arrays(1, 3000)
    shard.load(0, w)
    theirs = np.empty_like(w)
    for step in range(5):
        g = arrays(2 + step, 3000)
        assert local.step(w, gathered(g), samples=step)
        shard.apply(0, g, _core.DTYPE_F32, samples=step)
        shard.read(theirs)
        np.testing.assert_array_equal(w, theirs)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    local = _core.LocalOptimizer(_core.Optimizer([("sgd", {"lr": 1.0})]), len=3)
    w = np.ones(3, np.float32)
    for target, gradient in ((w, np.ones(2, "f4")), (w[:2].copy(), np.ones(2, "f4"))):
        with pytest.raises(ParameterError, match="elements"):
            local.step(target, gathered(gradient), samples=1)
    with pytest.raises(ParameterError, match="memory"):
        local.step(w, gathered(w), samples=1)
    np.testing.assert_array_equal(w, np.ones(3))
    assert local.step(w, gathered(np.full(3, 1e38, "f4")), samples=1)
    assert not local.step(w, gathered(np.full(3, np.inf, "f4")), samples=1)
