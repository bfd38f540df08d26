"""Every optimizer, in any chain, equals its numpy twin to the bit, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core
from tests.reference import optimizers as slow

LEVELS = _core.build_info()["simd_available"].split(",")
STRIPE_LEN, FRAGMENT_LEN = 16, 48


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


RATES = numbers(2.0**-10, 2.0)
FRACTIONS = st.sampled_from([0.0, 0.5, 0.9, 0.999])
EPS = st.sampled_from([2.0**-20, 1e-8, 1e-3])
RULES = {
    "sgd": {"lr": RATES},
    "momentum": {"lr": RATES, "momentum": FRACTIONS, "nesterov": st.sampled_from([0.0, 1.0])},
    "adagrad": {"lr": RATES, "eps": EPS, "initial": numbers(0, 2)},
    "adam": {"lr": RATES, "beta1": FRACTIONS, "beta2": FRACTIONS, "eps": EPS},
    "adamw": {
        "lr": RATES, "beta1": FRACTIONS, "beta2": FRACTIONS, "eps": EPS, "decay": numbers(0, 0.25),
    },
}  # fmt: skip
COUNTS = st.integers(1, 9).map(float)
BEFORE = {
    "clip": {"max": numbers(0.125, 4)},
    "weight_decay": {"rate": numbers(0, 0.25)},
    "trace": {"decay": FRACTIONS},
    "warm_up": {"updates": COUNTS, "start": FRACTIONS},
    "step_decay": {"every": COUNTS, "factor": FRACTIONS},
    "cosine": {"updates": COUNTS, "floor": FRACTIONS},
}


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[str, dict[str, float]]]:
    before = draw(st.lists(st.sampled_from(sorted(BEFORE)), max_size=6))
    rule = draw(st.sampled_from(sorted(RULES)))
    parts = [(name, BEFORE[name]) for name in before] + [(rule, RULES[rule])]
    return [(name, {key: draw(value) for key, value in some.items()}) for name, some in parts]


def arrays(seed: int, len: int) -> Any:
    random = np.random.default_rng(seed)
    values = random.standard_normal(len).astype("f4")
    values[random.random(len) < 0.1] = 0
    return values


def test_every_part_is_drawn() -> None:
    assert set(RULES) == set(slow.RULES)
    assert set(BEFORE) == set(slow.CHANGES) | set(slow.SCHEDULES)


@pytest.mark.parametrize("level", LEVELS)
@given(
    chains(),
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 3), numbers(-2, 2)), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_equal_to_the_twin(
    level: str,
    parts: list[tuple[str, dict[str, float]]],
    len: int,
    records: list[tuple[int, float]],
    seed: int,
) -> None:
    optimizer = _core.Optimizer(parts, simd=level)
    store = _core.Store(
        len=len, stripe_len=STRIPE_LEN, fragment_len=FRAGMENT_LEN, optimizer=optimizer
    )
    w, state = arrays(seed, len), slow.initial(parts, len)
    assert store.planes == optimizer.planes == np.shape(state)[0]
    store.load(0, w)
    counts = [0] * store.fragments
    for i, (fragment, scale) in enumerate(records):
        fragment %= store.fragments
        here = slice(fragment * FRAGMENT_LEN, min((fragment + 1) * FRAGMENT_LEN, len))
        g = arrays(seed + i + 1, len)[here]
        store.apply(fragment, g, _core.DTYPE_F32, scale=scale)
        counts[fragment] += 1
        w[here], changed = slow.update(
            parts, w[here], g, [plane[here] for plane in state], counts[fragment], scale
        )
        for plane, values in zip(state, changed, strict=True):
            plane[here] = values
    for index, expected in enumerate([w, *state]):
        values = np.empty(len, "f4")
        store.read_plane(index, values)
        # Equal to the bit, but for the sign of a zero, which numpy's clamp may choose otherwise.
        np.testing.assert_array_equal(values, expected, err_msg=f"plane {index} of {parts}")
