"""Frames: golden bytes, the slow twin, and what must not leave or come in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pydownpour import _core, errors
from tests.reference import frames as slow
from tests.vectors import make

GOLDEN = (make.FOLDER / "frames.txt").read_text().splitlines()


def fields(line: str) -> tuple[slow.Frame, bytes]:
    """A golden line as a frame and its bytes."""
    words = dict(word.split("=") for word in line.split())
    data, payload = bytes.fromhex(words.pop("bytes")), bytes.fromhex(words.pop("payload", ""))
    return slow.Frame(**{name: int(value) for name, value in words.items()}, payload=payload), data


def same(frame: _core.Frame, expected: slow.Frame) -> bool:
    """Whether every field agrees."""
    wanted = dataclasses.asdict(expected)
    return frame.length == len(expected.payload) and all(
        getattr(frame, name) == value for name, value in wanted.items()
    )


def test_the_golden_file_is_what_the_twin_writes() -> None:
    assert make.text() == (make.FOLDER / "frames.txt").read_text()


@pytest.mark.parametrize("line", GOLDEN, ids=lambda line: line[:40])
def test_golden_frames(line: str) -> None:
    expected, data = fields(line)
    assert _core.encode_frame(**dataclasses.asdict(expected)) == data
    (frame,) = _core.scan_frames(data)
    assert same(frame, expected)
    assert list(slow.decode(data)) == [expected]


def test_a_frame_shows_itself() -> None:
    (frame,) = _core.scan_frames(_core.encode_frame(kind=_core.KIND_PING, seq=7))
    assert repr(frame).startswith("Frame(PING, ")
    assert "seq=7" in repr(frame)
    with pytest.raises(AttributeError):
        frame.seq = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 0},
        {"kind": 13},
        {"kind": _core.KIND_PING, "flags": 1},
        {"kind": _core.KIND_ACK, "flags": 2},
        {"kind": _core.KIND_PUSH, "dtype": 1},
        {"kind": _core.KIND_FETCH, "codec": 1},
    ],
    ids=str,
)
def test_what_nobody_would_read_is_not_encoded(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.LocalProtocolError, match="cannot encode"):
        _core.encode_frame(**wrong)


def test_numbers_that_do_not_fit_their_field_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [{"replica": 2**32}, {"seq": -1}, {"version": 2**64}]
    for wrong in [*wrongs, {"aux": -1}]:
        with pytest.raises(OverflowError):
            _core.encode_frame(kind=_core.KIND_PING, **wrong)


def test_a_scan_names_the_byte_at_which_it_ended() -> None:
    good = _core.encode_frame(kind=_core.KIND_PING)
    with pytest.raises(errors.RemoteProtocolError, match=r"frame at byte 64: .*needs 64") as caught:
        _core.scan_frames(good + good[:10])
    assert caught.value.details == {"offset": 64}
    with pytest.raises(errors.RemoteProtocolError, match="not a pydownpour stream"):
        _core.scan_frames(b"GET / HTTP/1.1\r\n" * 4)
    assert _core.scan_frames(b"") == []


@pytest.mark.parametrize("dtype", [1, 2, 3, 4])
def test_fragment_headers_equal_the_twin(dtype: int) -> None:
    size = {1: 4, 2: 8, 3: 2, 4: 2}[dtype]
    values = bytes(i % 251 for i in range(size * 100))
    versions = np.arange(10, 14, dtype="u8")
    headers = _core.fragment_headers(
        values, dtype, fragment_len=32, first_fragment=1, count=3, replica=5, incarnation=2,
        push=9, versions=versions,
    )  # fmt: skip
    expected = b""
    for i in range(3):
        start = size * 32 * (i + 1)
        payload = values[start : start + size * 32]
        frame = slow.Frame(
            2, dtype=dtype, replica=5, incarnation=2, fragment=1 + i, seq=9,
            version=11 + i, payload=payload,
        )  # fmt: skip
        expected += frame.encode()[:64]
    assert headers == expected


def test_fragment_headers_of_a_run_that_does_not_fit() -> None:
    values, versions = np.zeros(100, "f4"), np.zeros(4, "u8")
    good: dict[str, Any] = {
        "fragment_len": 32, "first_fragment": 0, "count": 4, "replica": 1, "incarnation": 1,
        "push": 1, "versions": versions,
    }  # fmt: skip
    assert len(_core.fragment_headers(values, 1, **good)) == 4 * 64
    for wrong in (
        {"count": 5},
        {"first_fragment": 4},
        {"first_fragment": 2**63},
        {"fragment_len": 0},
        {"push": 0},
        {"push": 2**64 - 1},
        {"versions": versions[:3]},
    ):
        with pytest.raises(errors.ParameterError):
            _core.fragment_headers(values, 1, **{**good, **wrong})
