"""Every optimizer, in any chain, equals its numpy twin to the bit, on every instruction set."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core
from pydownpour.errors import LocalProtocolError
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
FLAGS = st.sampled_from([0.0, 1.0])
HISTORIES = st.integers(1, 4).map(float)
POWERS = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 3)
BEFORE = {
    "clip": {"max": numbers(0.125, 4)},
    "weight_decay": {"rate": numbers(0, 0.25)},
    "trace": {"decay": FRACTIONS},
    "fasgd": {"gamma": FRACTIONS, "beta": FRACTIONS, "eps": EPS, "initial": numbers(0.125, 2)},
    "delay_compensation": {"strength": numbers(0, 0.5), "history": HISTORIES},
    "adaptive_delay_compensation": {
        "strength": numbers(0, 2), "decay": FRACTIONS, "eps": EPS, "history": HISTORIES,
    },
    "gap_aware": {"decay": FRACTIONS, "eps": EPS, "history": HISTORIES},
    "warm_up": {"over": COUNTS, "start": FRACTIONS, "by_samples": FLAGS},
    "step_decay": {"every": COUNTS, "factor": FRACTIONS, "by_samples": FLAGS},
    "cosine": {"over": COUNTS, "floor": FRACTIONS, "by_samples": FLAGS},
    "staleness_decay": {"power": POWERS},
    "linear_scaling": {"records": numbers(0.125, 8)},
    "sqrt_scaling": {"batch": numbers(0.125, 8)},
}  # fmt: skip


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


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, int, dict[str, Any]]:
    """A record that is applied or added to a round, or the end of a round; on which fragment.

    Versions and rounds are relative to where the fragment is.
    """
    fragment = draw(st.integers(0, 3))
    if draw(st.integers(0, 3)) == 0:
        by = st.none() | numbers(0.125, 2)
        return "close", fragment, {"round": draw(st.integers(-1, 1)), "factor": draw(by)}
    numbers_of = {
        "base_version": st.none() | st.integers(-4, 1),
        "scale": numbers(-2, 2),
        "staleness_power": POWERS,
        "round": st.none() | st.sampled_from([0, 0, 0, 1, -1]),
        "weight": st.just(1.0) | st.floats(0.125, 8),
        "samples": st.integers(0, 9),
    }
    return "take", fragment, {name: draw(value) for name, value in numbers_of.items()}


@pytest.mark.parametrize("level", LEVELS)
@given(
    chains(),
    st.integers(1, 200),
    st.lists(calls(), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_equal_to_the_twin(
    level: str,
    parts: list[tuple[str, dict[str, float]]],
    length: int,
    calls: list[tuple[str, int, dict[str, Any]]],
    seed: int,
) -> None:
    optimizer = _core.Optimizer(parts, simd=level)
    store = _core.Shard(
        len=length,
        stripe_len=STRIPE_LEN,
        fragment_len=FRAGMENT_LEN,
        optimizer=optimizer,
        accumulates=True,
    )
    w = arrays(seed, length)
    store.load(0, w)
    twins = [slow.Fragment(parts, w[i : i + FRAGMENT_LEN]) for i in range(0, length, FRAGMENT_LEN)]
    assert store.planes == optimizer.planes == np.shape(twins[0].state)[0]
    for i, (kind, fragment, some) in enumerate(calls):
        fragment %= store.fragments
        twin = twins[fragment]
        if some["round"] is not None:
            some = some | {"round": max(0, twin.round + some["round"])}
        if kind == "close":
            expected = twin.close(some["round"], some["factor"])
            call: Any = functools.partial(store.close_round, fragment, **some)
        else:
            if some["base_version"] is not None:
                some = some | {"base_version": max(0, twin.version + some["base_version"])}
            g = arrays(seed + i + 1, twin.w.size)
            expected = twin.take(g, **some)
            call = functools.partial(store.apply, fragment, g, _core.DTYPE_F32, **some)
        if expected:
            call()
        else:
            with pytest.raises(LocalProtocolError, match=r"round \d+ is not open"):
                call()
        assert store.version(fragment) == twin.version
        weights = [weight for weight, _, _ in twin.records]
        open = (twin.round, len(weights), sum(weights)) if weights else None
        assert store.accumulated(fragment) == open
    assert store.history == optimizer.history == twins[0].history
    assert store.bases_gone == sum(twin.bases_gone for twin in twins)
    planes = [
        np.concatenate(plane) for plane in zip(*[[t.w, *t.state] for t in twins], strict=True)
    ]
    for back in range(1, store.history + 1):
        planes.append(np.concatenate([twin.ago(back) for twin in twins]))
    for index, plane in enumerate(planes):
        values = np.empty(length, "f4")
        store.read_plane(index, values)
        # Equal to the bit, but for the sign of a zero, which numpy's clamp may choose otherwise.
        np.testing.assert_array_equal(values, plane, err_msg=f"plane {index} of {parts}")
    names = [name for name, _ in parts]
    assert optimizer.tells == ("fasgd" in names)
    mean = 0.0
    if optimizer.tells:
        before = names[: names.index("fasgd")]
        v = planes[1 + sum(slow.PLANES.get(name, 0) for name in before) + 2]
        mean = v.astype("f8").mean()
    assert store.deviation == pytest.approx(mean, rel=1e-12)


def test_what_replicas_are_told_has_the_same_bits_however_it_came_about() -> None:
    """On every level, added up with each update or when the plane is loaded."""
    parts = [
        ("trace", {"decay": 0.5}),
        ("fasgd", {"gamma": 0.9, "beta": 0.5, "eps": 1e-6, "initial": 0.3}),
        ("sgd", {"lr": 0.1}),
    ]

    def store(level: str) -> _core.Shard:
        return _core.Shard(
            len=5000,
            stripe_len=2048,
            fragment_len=4096,
            optimizer=_core.Optimizer(parts, simd=level),
        )

    found = set()
    for level in LEVELS:
        one, other = store(level), store(level)
        assert one.deviation == pytest.approx(np.float32(0.3), rel=1e-12)
        for i in range(5):
            one.apply(0, arrays(i, 4096), _core.DTYPE_F32)
            one.apply(1, arrays(i, 904), _core.DTYPE_F32)
        plane = np.empty(5000, "f4")
        for index in range(5):
            one.read_plane(index, plane)
            other.load_plane(index, plane)
        assert one.deviation == other.deviation
        found.add(one.deviation)
    assert len(found) == 1
