"""Loops over elements, checksums, what the build says of itself, and how errors look."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pydownpour import _core, errors, limits
from tests.reference import frames as slow

ROOT = Path(__file__).resolve().parents[2]
NUMPY = {_core.DTYPE_F32: "f4", _core.DTYPE_F64: "f8", _core.DTYPE_F16: "f2"}


Words = NDArray[np.uint16]


def bf16(values: NDArray[np.floating[Any]]) -> Words:
    """Words of bfloat16, rounded to nearest even; finite values only."""
    bits = values.astype("f4").view("u4").astype("u8")
    words: Words = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")
    return words


def test_every_name_of_the_stub_exists_and_no_other() -> None:
    tree = ast.parse((ROOT / "pydownpour" / "_core.pyi").read_text())
    named: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            named.add(node.name)
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" not in ast.unparse(node.annotation):
            assert isinstance(node.target, ast.Name)
            named.add(node.target.id)
    hidden = {"__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
    assert set(dir(_core)) - hidden == named


def test_constants_agree_with_the_limits_and_have_distinct_numbers() -> None:
    assert (_core.HEADER_SIZE, _core.PUSHES_OPEN_MAX) == (
        limits.HEADER_SIZE,
        limits.PUSHES_OPEN_MAX,
    )
    for prefix, count in (("KIND_", 14), ("CODE_", 16), ("DTYPE_", 4)):
        numbers = [getattr(_core, name) for name in dir(_core) if name.startswith(prefix)]
        assert sorted(numbers) == list(range(1, count + 1))


def test_build_info_says_what_runs() -> None:
    info = _core.build_info()
    assert set(info) == {"version", "profile", "simd", "simd_available", "crc32c", "target"}
    assert info["version"] == _core.__version__
    assert info["simd"] in info["simd_available"].split(",")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5000, 300_001])
def test_crc32c_equals_the_table_and_continues(size: int) -> None:
    data = bytes(i * 31 % 256 for i in range(size))
    expected = slow.crc32c(data)
    assert _core.crc32c(data) == expected
    cut = size // 3
    assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == expected


@pytest.mark.parametrize("source", sorted(NUMPY))
@pytest.mark.parametrize("target", sorted(NUMPY))
def test_cast_rounds_as_numpy(source: int, target: int) -> None:
    with np.errstate(over="ignore"):
        values = np.linspace(-70000, 70000, 4099).astype(NUMPY[source])
        cast = np.empty(4099, NUMPY[target])
        _core.cast(values, source, cast, target)
        np.testing.assert_array_equal(cast, values.astype(NUMPY[target]))


def test_cast_to_and_from_bfloat16() -> None:
    values = np.linspace(-3, 3, 1001).astype("f4")
    words = np.empty(1001, "u2")
    _core.cast(values, _core.DTYPE_F32, words, _core.DTYPE_BF16)
    np.testing.assert_array_equal(words, bf16(values))
    back = np.empty(1001, "f4")
    _core.cast(words, _core.DTYPE_BF16, back, _core.DTYPE_F32)
    np.testing.assert_array_equal(back.view("u4"), words.astype("u4") << 16)


@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize("len", [0, 1, 17, 5000])
def test_step_equals_numpy(dtype: int, len: int) -> None:
    target = np.arange(len, dtype="f4")
    source = (np.arange(len) % 7 - 3).astype(NUMPY[dtype])
    stepped = target.copy()
    _core.step(stepped, source, dtype, 0.25)
    np.testing.assert_array_equal(stepped, target - np.float32(0.25) * source.astype("f4"))


def test_any_contiguous_buffer_will_do() -> None:
    values = np.arange(12, dtype="f4")
    expected = _core.crc32c(values)
    for same in (values.tobytes(), bytearray(values), values.data, values.reshape(3, 4)):
        assert _core.crc32c(same) == expected
    assert _core.crc32c(values[3:5]) == _core.crc32c(values.tobytes()[12:20])


def test_buffers_that_do_not_fit_are_refused_in_words() -> None:
    values = np.zeros(8, "f4")
    with pytest.raises(errors.UnsupportedArray, match="ascontiguousarray"):
        _core.crc32c(values[::2])
    with pytest.raises(errors.UnsupportedArray, match="ascontiguousarray"):
        _core.crc32c(np.zeros((4, 4), "f4", order="F"))
    with pytest.raises(errors.ParameterError, match="read-only"):
        _core.step(values.tobytes(), values, _core.DTYPE_F32, 0.5)
    with pytest.raises(errors.ParameterError, match="share memory"):
        _core.step(values[:5], values[3:], _core.DTYPE_F32, 0.5)
    with pytest.raises(errors.ParameterError, match="8 elements, target 7"):
        _core.step(np.zeros(7, "f4"), values, _core.DTYPE_F32, 0.5)
    with pytest.raises(errors.ParameterError, match="whole elements"):
        _core.step(values, b"12345", _core.DTYPE_F32, 0.5)
    with pytest.raises(errors.ParameterError, match="dtype code 9"):
        _core.step(values, b"", 9, 0.5)
    misaligned = memoryview(bytearray(33))[1:]
    with pytest.raises(errors.ParameterError, match="aligned"):
        _core.step(misaligned, values, _core.DTYPE_F32, 0.5)
    with pytest.raises(TypeError):
        _core.crc32c("text")  # type: ignore[arg-type]


def test_an_empty_buffer_is_fine() -> None:
    assert _core.crc32c(np.zeros(0, "f4")) == 0
    _core.cast(b"", _core.DTYPE_F32, bytearray(), _core.DTYPE_F16)


def test_a_misaligned_source_is_fine() -> None:
    values = np.arange(8, dtype="f4")
    shifted = memoryview(b"\0" + values.tobytes())[1:]
    stepped = np.zeros(8, "f4")
    _core.step(stepped, shifted, _core.DTYPE_F32, 1.0)
    np.testing.assert_array_equal(stepped, -values)


@pytest.mark.parametrize("size", [0, 10**6])
def test_a_panic_is_an_exception(size: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.InternalError, match="the core panicked: invariant 7 broke"):
        _core._panic("invariant 7 broke", size)
    assert "invariant 7 broke" in capfd.readouterr().err


@pytest.mark.parametrize("error", _core._all_errors(), ids=str)
def test_every_error_has_our_class_and_words(error: BaseException) -> None:
    assert isinstance(error, errors.DownpourError | errors.InternalError)
    assert type(error).__module__ == "pydownpour.errors"
    assert len(str(error)) > 10
    if isinstance(error, errors.RemoteProtocolError):
        assert error.details == {"offset": 64}
        assert str(error).startswith("frame at byte 64: ")
    if isinstance(error, errors.NonFiniteGradient):
        assert error.details == {"count": 2, "first_index": 5}


def test_the_examples_cover_the_classes_the_core_raises() -> None:
    names = {type(error).__name__ for error in _core._all_errors()}
    assert names == {
        "CheckpointError",
        "ConfigError",
        "InternalError",
        "LimitExceeded",
        "LocalProtocolError",
        "NonFiniteGradient",
        "ParameterError",
        "RemoteProtocolError",
        "UnsupportedArray",
    }
