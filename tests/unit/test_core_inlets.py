"""The inlets as Python meets them: windows over real buffers, events, errors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from pydownpour import _core, errors
from tests.reference.frames import Frame

LEN, FRAGMENT_LEN = 100, 32
FIRST = 3
"""The layout's number of the shard's first fragment."""
Event = _core.Frame | _core.Settled | _core.Refusal


def make_store(max_norm: float | None = None) -> _core.Shard:
    optimizer = _core.Optimizer([("sgd", {"lr": 0.5})])
    return _core.Shard(
        len=LEN,
        stripe_len=16,
        fragment_len=FRAGMENT_LEN,
        first_fragment=FIRST,
        optimizer=optimizer,
        max_norm=max_norm,
    )


def make_inlet(store: _core.Shard) -> _core.ShardInlet:
    return _core.ShardInlet(store, payload_size_max=1024, control_size_max=256, ack_every=3)


def push(number: int, values: np.ndarray[Any, Any], versions: Any = None) -> bytes:
    """A whole push of replica 1, incarnation 1, at this shard."""
    versions = np.zeros(4, "u8") if versions is None else versions
    said = struct.pack("<QQQ", 1, 0, 64)
    who = {"replica": 1, "incarnation": 1}
    data = Frame(1, **who, seq=number, fragment=FIRST, count=4, payload=said).encode()
    for i in range(4):
        payload = values[FRAGMENT_LEN * i : FRAGMENT_LEN * (i + 1)].astype("f4").tobytes()
        place = {"fragment": FIRST + i, "version": int(versions[i])}
        data += Frame(2, dtype=1, **who, seq=number, **place, payload=payload).encode()
    return data


def feed(
    inlet: _core.ShardInlet, store: _core.Shard, data: bytes, size: int = 10**9
) -> list[Event]:
    """Write data through the windows, accepting every push."""
    view, events = memoryview(inlet), []
    while data:
        start, stop = inlet.window()
        assert start < stop <= len(view)
        n = min(stop - start, len(data), size)
        view[start : start + n] = data[:n]
        data = data[n:]
        event = inlet.advance(n)
        while event is not None:
            events.append(event)
            if isinstance(event, _core.Frame) and event.kind == _core.KIND_PUSH:
                store.admit(1, 1, event.seq, event.fragment, event.count, 1)
                inlet.accept()
            event = inlet.advance(0)
    return events


def test_a_push_is_received_applied_and_reported() -> None:
    store = make_store()
    inlet = make_inlet(store)
    gradient = np.arange(LEN, dtype="f4")
    events = feed(inlet, store, push(1, gradient))
    announced, first, last = events
    assert isinstance(announced, _core.Frame)
    assert (announced.kind, announced.count, announced.length) == (_core.KIND_PUSH, 4, 24)
    assert repr(first) == (
        "Settled(push=1, fragment=3, count=3, applied=3, staleness=0, lsn=3, last=False)"
    )
    assert repr(last) == (
        "Settled(push=1, fragment=6, count=1, applied=1, staleness=0, lsn=4, last=True)"
    )
    values = np.empty(LEN, "f4")
    store.read(values)
    np.testing.assert_array_equal(values, -0.5 * gradient)
    assert store.applied(1) == (1, 1, 4)
    assert store.applied(2) is None
    again = feed(inlet, store, push(1, gradient))
    assert [event.applied for event in again if isinstance(event, _core.Settled)] == [0, 0]
    stale = feed(inlet, store, push(2, gradient, np.array([1, 0, 0, 1], "u8")))
    staleness = [event.staleness for event in stale if isinstance(event, _core.Settled)]
    assert staleness == [1, 0]


def test_a_refusal_names_record_code_and_place() -> None:
    store = make_store()
    gradient = np.ones(LEN, "f4")
    gradient[[40, 50]] = np.nan
    _, _, refusal, last = feed(make_inlet(store), store, push(1, gradient))
    assert isinstance(refusal, _core.Refusal)
    assert (refusal.push, refusal.fragment) == (1, FIRST + 1)
    assert refusal.code == _core.CODE_NON_FINITE
    assert (refusal.count, refusal.first_index) == (2, 8)
    assert repr(refusal) == "Refusal(push=1, fragment=4, code=1, count=2, first_index=8, norm=0)"
    assert isinstance(last, _core.Settled)
    assert (last.push, last.fragment, last.count, last.last) == (1, FIRST + 2, 2, True)


def test_a_record_above_max_norm_is_refused_by_itself_and_measured() -> None:
    store = make_store(max_norm=6.0)
    gradient = np.ones(LEN, "f4")
    gradient[40] = 6.0
    _, first, refusal, last = feed(make_inlet(store), store, push(1, gradient))
    assert isinstance(refusal, _core.Refusal)
    assert (refusal.push, refusal.fragment) == (1, FIRST + 1)
    assert refusal.code == _core.CODE_NORM
    assert (refusal.count, refusal.first_index) == (0, -1)
    assert refusal.norm == np.sqrt(31 + 36.0)
    assert isinstance(first, _core.Settled)
    assert isinstance(last, _core.Settled)
    assert (first.count, last.count) == (1, 2)
    assert store.applied(1) == (1, 0, 3), "it is not remembered as done"


def test_the_scratch_is_one_writable_buffer_that_outlives_its_inlet() -> None:
    inlet = make_inlet(make_store())
    view = memoryview(inlet)
    assert (view.readonly, view.format, view.itemsize) == (False, "B", 1)
    assert len(view) == 64 + 1024 + 64
    start, stop = inlet.window()
    del inlet
    view[start:stop] = bytes(stop - start)


def test_calls_out_of_order_are_our_own_fault() -> None:
    store = make_store()
    inlet = make_inlet(store)
    for early in (inlet.accept, inlet.skip):
        with pytest.raises(errors.LocalProtocolError, match="no push was announced"):
            early()
    with pytest.raises(errors.LocalProtocolError, match="room for 1152"):
        inlet.advance(1153)
    data = push(1, np.ones(LEN, "f4"))[:88]
    memoryview(inlet)[:88] = data
    assert isinstance(inlet.advance(88), _core.Frame)
    with pytest.raises(errors.LocalProtocolError, match=r"accept\(\) or skip\(\)"):
        inlet.advance(0)
    with pytest.raises(errors.ParameterError, match="scale"):
        inlet.accept(scale=float("nan"))
    inlet.skip()
    assert inlet.advance(0) is None


def test_malformed_bytes_end_the_stream_for_good() -> None:
    store = make_store()
    inlet = make_inlet(store)
    good = Frame(8, seq=1).encode()
    with pytest.raises(errors.RemoteProtocolError, match="damaged") as caught:
        feed(inlet, store, good + push(1, np.ones(LEN, "f4"))[:-1] + b"\xff")
    assert caught.value.details["offset"] == 64 + 88 + 3 * (64 + 128)
    for _ in range(2):
        with pytest.raises(errors.RemoteProtocolError, match="damaged"):
            inlet.advance(0)


def test_limits_are_limited() -> None:
    store = make_store()
    with pytest.raises(errors.ParameterError, match="payload_size_max"):
        _core.ShardInlet(store, payload_size_max=2**40, control_size_max=1, ack_every=1)
    with pytest.raises(errors.ParameterError, match="fragment_len"):
        _core.ReplicaInlet(len=1, fragment_len=0, control_size_max=1)


def make_replica() -> tuple[_core.ReplicaInlet, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inlet = _core.ReplicaInlet(
        len=LEN, fragment_len=FRAGMENT_LEN, first_fragment=FIRST, control_size_max=256
    )
    values, versions = np.full(LEN, 7, "f4"), np.full(4, 99, "u8")
    inlet.set_target(values, versions)
    return inlet, values, versions


def receive(inlet: _core.ReplicaInlet, values: Any, data: bytes, size: int) -> list[_core.Frame]:
    """Write data through the windows of scratch and target."""
    places, frames = (memoryview(inlet), memoryview(values).cast("B")), []
    while data:
        place, start, stop = inlet.window()
        assert start < stop <= len(places[place])
        n = min(stop - start, len(data), size)
        places[place][start : start + n] = data[:n]
        data = data[n:]
        frame = inlet.advance(n)
        while frame is not None:
            frames.append(frame)
            frame = inlet.advance(0)
    return frames


@pytest.mark.parametrize("size", [1, 50, 10**9])
def test_a_fetch_lands_in_the_target(size: int) -> None:
    store = make_store()
    store.load(0, np.arange(LEN, dtype="f4"))
    store.apply(FIRST + 2, np.ones(FRAGMENT_LEN, "f4"), 1)
    buffers, _, count = store.parameter_frames(0, 0, 10**9)
    data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
    data += _core.encode_frame(kind=_core.KIND_FETCHED, seq=3, version=store.lsn, count=count)
    inlet, values, versions = make_replica()
    (fetched,) = receive(inlet, values, data, size)
    assert (fetched.kind, fetched.seq, fetched.version, fetched.count) == (7, 3, 1, 4)
    expected = np.empty(LEN, "f4")
    store.read(expected)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(versions, [0, 0, 1, 0])


def test_the_target_is_kept_and_can_be_replaced_between_fetches() -> None:
    inlet, values, _ = make_replica()
    data = Frame(6, dtype=1, fragment=FIRST, version=5, payload=bytes(128)).encode()
    view = memoryview(inlet)
    view[:100] = data[:100]
    assert inlet.advance(100) is None
    assert inlet.window() == (1, 36, 128)
    with pytest.raises(errors.LocalProtocolError, match="fragment 3 is landing"):
        inlet.set_target(np.zeros(LEN, "f4"), np.zeros(4, "u8"))
    values.data.cast("B")[36:128] = data[100:]
    assert inlet.advance(92) is None
    inlet.set_target(np.zeros(LEN, "f4"), np.zeros(4, "u8"))
    receive(inlet, np.zeros(LEN, "f4"), data, 64)


def test_a_target_that_does_not_fit_is_refused() -> None:
    inlet, values, versions = make_replica()
    wrong: list[tuple[Any, Any, str]] = [
        (values[:50], versions, "50 values"),
        (values, versions[:3], "3 versions"),
        (values.tobytes(), versions, "read-only"),
        (np.zeros((LEN, 2), "f4")[:, 0], versions, "contiguous"),
        (bytearray(401), versions, "whole, aligned"),
        (values, values[:8], "share memory"),
    ]
    for target, counts, words in wrong:
        with pytest.raises(errors.ParameterError, match=words):
            inlet.set_target(target, counts)


def test_parameters_without_a_target_are_not_asked_for() -> None:
    inlet = _core.ReplicaInlet(
        len=LEN, fragment_len=FRAGMENT_LEN, first_fragment=FIRST, control_size_max=256
    )
    memoryview(inlet)[:64] = Frame(6, dtype=1, fragment=FIRST, payload=bytes(128)).encode()[:64]
    with pytest.raises(errors.RemoteProtocolError, match="no fetch is under way"):
        inlet.advance(64)


def test_arrays_are_released_with_the_inlet() -> None:
    inlet, values, _ = make_replica()
    inlet.set_target(bytearray(4 * LEN), bytearray(32))
    values.resize(2 * LEN, refcheck=False)
    storage = bytearray(4 * LEN)
    inlet.set_target(storage, bytearray(32))
    with pytest.raises(BufferError):
        storage.append(0)
    del inlet
    storage.append(0)
