"""Frames: the core and the slow twin write and read the same bytes, and find the same damage."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core, errors
from tests.reference import frames as slow

U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))


@st.composite
def frames(draw: st.DrawFn) -> slow.Frame:
    kind = draw(st.sampled_from(slow.KINDS))
    has_elements = kind in slow.ELEMENTS
    return slow.Frame(
        kind=kind,
        flags=draw(U32) & slow.FLAGS.get(kind, 0),
        codec=draw(U8) if has_elements else 0,
        dtype=draw(U8) if has_elements else 0,
        replica=draw(U32),
        incarnation=draw(U32),
        fragment=draw(U32),
        seq=draw(U64),
        version=draw(U64),
        aux=draw(U32),
        count=draw(U32),
        payload=draw(st.binary(max_size=300)),
    )


def read(frame: _core.Frame) -> slow.Frame:
    names = [field.name for field in dataclasses.fields(slow.Frame)]
    return slow.Frame(**{name: getattr(frame, name) for name in names})


@given(st.lists(frames(), max_size=4))
def test_both_codecs_agree(sent: list[slow.Frame]) -> None:
    data = b"".join(_core.encode_frame(**dataclasses.asdict(frame)) for frame in sent)
    assert data == b"".join(frame.encode() for frame in sent)
    assert [read(frame) for frame in _core.scan_frames(data)] == sent
    assert list(slow.decode(data)) == sent


@given(frames(), st.data())
def test_any_changed_byte_is_found(frame: slow.Frame, data: st.DataObject) -> None:
    good = bytearray(frame.encode())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(errors.RemoteProtocolError):
        _core.scan_frames(good)


@given(st.binary(max_size=200))
def test_both_codecs_refuse_the_same_bytes(data: bytes) -> None:
    try:
        expected = list(slow.decode(data))
    except ValueError:
        with pytest.raises(errors.RemoteProtocolError):
            _core.scan_frames(data)
    else:
        assert [read(frame) for frame in _core.scan_frames(data)] == expected


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_checksums_agree_and_continue(data: bytes, cut: int) -> None:
    expected = slow.crc32c(data)
    assert _core.crc32c(data) == expected
    assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == expected
