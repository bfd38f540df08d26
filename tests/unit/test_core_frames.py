"""Frames: golden bytes, the slow twin, and what must not leave or come in."""

from __future__ import annotations

import dataclasses
from typing import Any

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
        {"kind": 15},
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
