"""The inlets: a stream gives the same events and bits however it is cut; damage changes nothing."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core, errors
from tests.reference.frames import Frame

LEN, FRAGMENT_LEN, RECORD_SIZE = 80, 32, 64 + 128
SIZES = {1: "f4", 2: "f8", 3: "f2"}


def make_store() -> _core.Shard:
    parts = [("adagrad", {"lr": 0.1, "eps": 1e-8, "initial": 0.1})]
    return _core.Shard(
        len=LEN, stripe_len=16, fragment_len=FRAGMENT_LEN, optimizer=_core.Optimizer(parts)
    )


def push(number: int, values: Any, dtype: int = 1) -> bytes:
    who = {"replica": 1, "incarnation": 1}
    data = Frame(1, **who, seq=number, count=3, payload=struct.pack("<QQQ", 1, 0, 0)).encode()
    for i in range(3):
        payload = values[FRAGMENT_LEN * i : FRAGMENT_LEN * (i + 1)].astype(SIZES[dtype]).tobytes()
        data += Frame(2, **who, dtype=dtype, fragment=i, seq=number, payload=payload).encode()
    return data


def feed(store: _core.Shard, data: bytes, sizes: list[int]) -> list[str]:
    """Every event as text, and the error if the stream ends in one."""
    inlet = _core.ShardInlet(store, payload_size_max=256, control_size_max=64, ack_every=2)
    view, events, turn = memoryview(inlet), [], 0
    try:
        while data:
            start, stop = inlet.window()
            n = min(stop - start, len(data), sizes[turn % len(sizes)])
            view[start : start + n], data, turn = data[:n], data[n:], turn + 1
            event = inlet.advance(n)
            while event is not None:
                events.append(repr(event))
                if isinstance(event, _core.Frame) and event.kind == _core.KIND_PUSH:
                    store.admit(1, 1, event.seq, event.fragment, event.count, 1)
                    inlet.accept(scale=0.5)
                event = inlet.advance(0)
    except errors.RemoteProtocolError as error:
        events.append(str(error))
    return events


def state(store: _core.Shard) -> tuple[bytes, bytes, bytes]:
    values, sums = np.empty(LEN, "f4"), np.empty(LEN, "f4")
    store.read(values)
    store.read_plane(1, sums)
    return store.export_state(), values.tobytes(), sums.tobytes()


VALUES = np.linspace(-2, 2, LEN).astype("f4")
POISON = np.where(np.arange(LEN) == 40, np.nan, VALUES)
STREAM = b"".join([
    Frame(8, seq=3).encode(), push(1, VALUES), push(2, POISON), push(1, VALUES),
    push(3, VALUES, 2), Frame(5, seq=4, version=2).encode(), push(4, VALUES, 3),
])  # fmt: skip


@given(st.lists(st.integers(1, 400), min_size=1, max_size=9))
def test_any_cut_gives_the_same_events_and_bits(sizes: list[int]) -> None:
    whole, cut = make_store(), make_store()
    assert feed(cut, STREAM, sizes) == feed(whole, STREAM, [10**9])
    assert state(cut) == state(whole)


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255), st.integers(1, 400))
def test_damage_ends_the_stream_and_nothing_behind_it_is_applied(
    at: int, change: int, size: int
) -> None:
    damaged = bytearray(STREAM)
    damaged[at] ^= change
    hurt, healthy = make_store(), make_store()
    events = feed(hurt, bytes(damaged), [size])
    assert events[-1].startswith("frame at byte ")
    offset = int(events[-1].split()[3].rstrip(":"))
    assert offset <= at
    feed(healthy, STREAM[:offset], [10**9])
    assert state(hurt) == state(healthy)


@given(st.binary(min_size=64, max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    store = make_store()
    (error,) = feed(store, data, [100])
    assert error.startswith("frame at byte 0: ")
    assert store.lsn == 0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(0, 3))
def test_a_fetch_lands_the_same_however_it_is_cut(sizes: list[int], since: int) -> None:
    store = make_store()
    feed(store, push(1, VALUES), [10**9])
    buffers, _, _ = store.parameter_frames(since, 0, 10**9)
    data = b"".join(bytes(memoryview(buffer)) for buffer in buffers) + Frame(7, seq=5).encode()
    inlet = _core.ReplicaInlet(len=LEN, fragment_len=FRAGMENT_LEN, control_size_max=64)
    values, versions, turn, done = np.zeros(LEN, "f4"), np.zeros(3, "u8"), 0, None
    inlet.set_target(values, versions)
    places = (memoryview(inlet), values.data.cast("B"))
    while data:
        assert done is None
        place, start, stop = inlet.window()
        n = min(stop - start, len(data), sizes[turn % len(sizes)])
        places[place][start : start + n], data, turn = data[:n], data[n:], turn + 1
        done = inlet.advance(n)
    assert done is not None
    assert done.kind == _core.KIND_FETCHED
    expected = np.empty(LEN, "f4")
    store.read(expected)
    # Record i has LSN i + 1, so exactly the fragments from `since` on have changed.
    expected[: since * FRAGMENT_LEN] = 0
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(versions, [int(i >= since) for i in range(3)])


@given(st.integers(65, 2**64 - 1))
def test_a_huge_length_allocates_nothing(length: int) -> None:
    frame = bytearray(Frame(8).encode())
    frame[40:48] = struct.pack("<Q", length)
    frame[60:64] = struct.pack("<I", _core.crc32c(frame[:60]))
    events = feed(make_store(), bytes(frame), [64])
    assert events == [f"frame at byte 0: PING payload of {length} bytes, limit is 64"]


def test_what_is_announced_must_be_decided() -> None:
    inlet = _core.ShardInlet(make_store(), payload_size_max=256, control_size_max=64, ack_every=2)
    memoryview(inlet)[:88] = STREAM[64 : 64 + 88]
    assert isinstance(inlet.advance(88), _core.Frame)
    with pytest.raises(errors.LocalProtocolError):
        inlet.advance(0)
