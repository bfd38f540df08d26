"""Every codec equals its numpy twin to the bit, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core, errors
from tests.reference import codecs as slow

LEVELS = _core.build_info()["simd_available"].split(",")
CODECS = {
    "int8": {"block": st.sampled_from([16.0, 48.0, 256.0])},
    "threshold": {"tau": st.sampled_from([1.0, 0.01, 1.7, 1e-30, 1e30])},
}


@st.composite
def codecs(draw: st.DrawFn) -> tuple[str, dict[str, float]]:
    name = draw(st.sampled_from(sorted(CODECS)))
    return name, {key: draw(value) for key, value in CODECS[name].items()}


ELEMENTS = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1e-40, -1e-37, 127.0, 63.5, 0.5]),
)
SOME_WORDS = st.lists(st.integers(0, 40) | st.just(2**31), unique=True, max_size=16).map(
    lambda words: np.array(sorted(words), "<u4").tobytes()
)
PAIRS = st.lists(st.tuples(ELEMENTS, ELEMENTS), max_size=300)


def test_every_codec_is_drawn() -> None:
    assert sorted(CODECS) == _core.codecs()


@pytest.mark.parametrize("level", LEVELS)
@given(codecs(), PAIRS)
def test_encoding_equals_the_twin(
    level: str, codec: tuple[str, dict[str, float]], pairs: list[tuple[float, float]]
) -> None:
    fast, twin = _core.Codec(*codec, simd=level), slow.of(*codec)
    gradient, residual = np.array(pairs, "f4").reshape(-1, 2).T.copy()
    target = np.zeros(fast.size_max(len(gradient)), np.uint8)
    before = residual.copy()
    try:
        with np.errstate(over="ignore"):
            expected, left = slow.encode(twin, gradient, residual)
    except ValueError:
        with pytest.raises(errors.NonFiniteGradient):
            fast.encode(gradient, residual, target)
        np.testing.assert_array_equal(residual, before)
        return
    size = fast.encode(gradient, residual, target)
    assert target[:size].tobytes() == expected
    np.testing.assert_array_equal(residual, left)
    decoded = np.full(len(gradient), np.nan, "f4")
    fast.decode(target[:size], decoded)
    np.testing.assert_array_equal(decoded, twin.decode(expected, len(gradient)))
    np.testing.assert_array_equal(decoded + residual, gradient + before)
    back = slow.give_back(twin, expected, gradient, left)
    fast.give_back(target[:size], gradient, residual)
    np.testing.assert_array_equal(residual, back)


@pytest.mark.parametrize("level", LEVELS)
@given(codecs(), st.binary(max_size=400) | SOME_WORDS, st.integers(0, 300))
def test_any_bytes_decode_as_the_twin_says(
    level: str, codec: tuple[str, dict[str, float]], data: bytes, len: int
) -> None:
    fast, twin = _core.Codec(*codec, simd=level), slow.of(*codec)
    decoded = np.empty(len, "f4")
    try:
        expected = twin.decode(data, len)
    except ValueError:
        with pytest.raises(errors.ParameterError, match=f"encoded by {codec[0]}"):
            fast.decode(data, decoded)
        return
    fast.decode(data, decoded)
    np.testing.assert_array_equal(decoded, expected)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_error_feedback_loses_nothing_over_many_pushes(seed: int, pushes: int) -> None:
    """Where no sum rounds, what was sent and what is left are exactly what went in."""
    random = np.random.default_rng(seed)
    codec = _core.Codec("int8", {"block": 16.0})
    residual, total, sent = np.zeros(50, "f4"), np.zeros(50), np.zeros(50)
    target: Any = np.zeros(codec.size_max(50), np.uint8)
    decoded = np.empty(50, "f4")
    for _ in range(pushes):
        # Each block's largest is 127/8, so that its scale is 1/8 and residuals are 64ths.
        gradient = (random.integers(-32, 33, 50) / 64).astype("f4")
        gradient[::16] = 15.875 - residual[::16]
        total += gradient
        codec.encode(gradient, residual, target)
        codec.decode(target, decoded)
        sent += decoded
        assert np.abs(residual).max() <= 1 / 16
        np.testing.assert_array_equal(sent + residual, total)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_threshold_delays_and_loses_nothing(seed: int, pushes: int) -> None:
    """Strom 2015: sum(sent) + residual == sum(updates); to the bit, where no sum rounds."""
    random = np.random.default_rng(seed)
    codec = _core.Codec("threshold", {"tau": 3.0})
    residual, total, sent = np.zeros(50, "f4"), np.zeros(50, "f4"), np.zeros(50, "f4")
    target: Any = np.zeros(codec.size_max(50), np.uint8)
    decoded = np.empty(50, "f4")
    for _ in range(pushes):
        gradient = (random.integers(-9, 10, 50) / 2).astype("f4")
        total += gradient
        codec.decode(target[: codec.encode(gradient, residual, target)], decoded)
        assert set(np.unique(decoded)) <= {-3.0, 0.0, 3.0}
        sent += decoded
        np.testing.assert_array_equal(sent + residual, total)
    for _ in range(200):  # what is left is said in the end, but for what is no quantum
        codec.decode(target[: codec.encode(0 * residual, residual, target)], decoded)
        sent += decoded
    assert np.abs(residual).max() <= 3
    np.testing.assert_array_equal(sent + residual, total)


def test_buffers_that_do_not_fit() -> None:
    codec = _core.Codec("int8", {"block": 16.0})
    values, target = np.zeros(20, "f4"), np.zeros(28, np.uint8)
    with pytest.raises(errors.ParameterError, match="residual has 19 elements, needs 20"):
        codec.encode(values, np.zeros(19, "f4"), target)
    with pytest.raises(errors.ParameterError, match="target has 27 bytes, needs 28"):
        codec.encode(values, np.zeros(20, "f4"), target[1:])
    with pytest.raises(errors.ParameterError, match="share memory"):
        codec.encode(values, values, target)
    with pytest.raises(errors.ParameterError, match="share memory"):
        codec.give_back(target, values, values)
    with pytest.raises(errors.ParameterError, match="not whole, aligned elements"):
        codec.encode(np.zeros(21, np.uint8), values, target)
    with pytest.raises(errors.ConfigError, match="multiple of 16"):
        _core.Codec("int8", {"block": 20.0})
    with pytest.raises(errors.ConfigError, match=r"unknown or absent"):
        _core.Codec("int8", {"block": 16.0}, simd="mmx")
    with pytest.raises(errors.NonFiniteGradient) as caught:
        codec.encode(np.array([1, np.nan, 3], "f4"), np.zeros(3, "f4"), target)
    assert caught.value.details == {"count": 1, "first_index": 1}
