"""Shard and optimizer: geometry, loading, reading, applying, and their errors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pydownpour import _core, errors
from tests.reference import frames as slow

SGD = [("sgd", {"lr": 0.5})]
LEN, STRIPE_LEN, FRAGMENT_LEN = 100, 16, 32


def make_store(parts: Any = SGD, **numbers: Any) -> _core.Shard:
    """A small store, or one with other lengths."""
    lengths: dict[str, Any] = {
        "len": LEN,
        "stripe_len": STRIPE_LEN,
        "fragment_len": FRAGMENT_LEN,
    } | numbers
    return _core.Shard(**lengths, optimizer=_core.Optimizer(parts))


def read(store: _core.Shard) -> np.ndarray[Any, Any]:
    values = np.empty(store.len, "f4")
    store.read(values)
    return values


def test_an_optimizer_tells_its_planes_and_level() -> None:
    adam = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    adagrad = {"lr": 0.1, "eps": 1e-8, "initial": 0.1}
    for parts, planes in ((SGD, 0), ([("adagrad", adagrad)], 1), ([("adam", adam)], 2)):
        optimizer = _core.Optimizer(parts)
        assert optimizer.planes == planes
        assert optimizer.simd == _core.build_info()["simd"]
    for level in _core.build_info()["simd_available"].split(","):
        assert _core.Optimizer(SGD, simd=level).simd == level


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("nonsense", {})],
        [("sgd", {})],
        [("sgd", {"lr": 0.1, "more": 1.0})],
        [("sgd", {"lr": -1.0})],
        [("sgd", {"lr": float("nan")})],
        [("clip", {"max": 1.0})],
        [*SGD, *SGD],
    ],
    ids=str,
)
def test_an_impossible_optimizer_is_refused(parts: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _core.Optimizer(parts)
    assert isinstance(caught.value, ValueError)


def test_an_unknown_level_names_the_available_ones() -> None:
    with pytest.raises(errors.ConfigError, match="baseline"):
        _core.Optimizer(SGD, simd="mmx")


def test_a_store_tells_its_lengths() -> None:
    store = make_store()
    assert (store.len, store.stripe_len, store.fragment_len) == (LEN, STRIPE_LEN, FRAGMENT_LEN)
    assert (store.fragments, store.planes, store.lsn) == (4, 0, 0)
    assert store.versions() == bytes(8 * 4)
    memory = store.memory()
    assert set(memory) == {
        "parameters", "state", "accumulators", "spare", "table", "history", "pinned", "decoded",
            "kept",
    }  # fmt: skip
    assert memory["parameters"] >= 4 * LEN


@pytest.mark.parametrize(
    "wrong", [{"len": 0}, {"stripe_len": 0}, {"stripe_len": 15}, {"fragment_len": 40}], ids=str
)
def test_an_impossible_store_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.ConfigError):
        make_store(**wrong)


def test_load_and_read_anywhere() -> None:
    store = make_store()
    values = np.arange(LEN, dtype="f4")
    store.load(0, values[:70])
    store.load(70, values[70:])
    np.testing.assert_array_equal(read(store), values)
    for start in (0, 5, 15, 16, 31, 99):
        some = np.empty(min(40, LEN - start), "f4")
        store.read(some, start)
        np.testing.assert_array_equal(some, values[start : start + 40])
    with pytest.raises(errors.ParameterError, match="100"):
        store.read(np.empty(2, "f4"), 99)
    with pytest.raises(errors.ParameterError, match="100"):
        store.load(99, np.empty(2, "f4"))


@pytest.mark.parametrize("dtype", [1, 2, 3])
def test_apply_changes_one_fragment_and_counts(dtype: int) -> None:
    store = make_store()
    gradient = np.arange(FRAGMENT_LEN).astype({1: "f4", 2: "f8", 3: "f2"}[dtype])
    assert store.apply(1, gradient, dtype) == 1
    assert store.apply(1, gradient, dtype, scale=2.0) == 2
    expected = np.zeros(LEN, "f4")
    expected[32:64] = -0.5 * 3 * np.arange(32)
    np.testing.assert_array_equal(read(store), expected)
    assert (store.lsn, store.version(1), store.version(0)) == (2, 2, 0)
    assert store.versions() == np.array([0, 2, 0, 0], "<u8").tobytes()


def test_the_last_fragment_is_shorter() -> None:
    store = make_store()
    store.apply(3, np.ones(4, "f4"), 1)
    np.testing.assert_array_equal(read(store)[96:], np.full(4, -0.5, "f4"))
    with pytest.raises(errors.ParameterError, match="32 elements, the fragment has 4"):
        store.apply(3, np.ones(32, "f4"), 1)


def test_poison_is_refused_whole_and_located() -> None:
    store = make_store()
    gradient = np.ones(FRAGMENT_LEN, "f4")
    gradient[[7, 20]] = np.nan, np.inf
    with pytest.raises(errors.NonFiniteGradient) as caught:
        store.apply(0, gradient, 1)
    assert caught.value.details == {"count": 2, "first_index": 7}
    huge = np.full(FRAGMENT_LEN, 3e38, "f4")
    with pytest.raises(errors.NonFiniteGradient):
        store.apply(0, huge, 1, scale=4.0)
    assert store.lsn == 0
    assert not read(store).any()


@pytest.mark.parametrize("dtype", [1, 2, 3])
def test_a_record_above_max_norm_is_refused_whatever_the_scale(dtype: int) -> None:
    store = make_store(max_norm=5.0)
    kind = {1: "f4", 2: "f8", 3: "f2"}[dtype]
    gradient = np.zeros(FRAGMENT_LEN, kind)
    gradient[3:5] = 3.0, -4.0
    assert store.apply(0, gradient, dtype, scale=100.0) == 1
    gradient[7] = 0.25
    with pytest.raises(errors.ParameterError, match=r"norm of 5\.006246, above the allowed 5"):
        store.apply(0, gradient, dtype, scale=0.0)
    gradient[7] = np.nan  # it is not finite, and that is said
    with pytest.raises(errors.NonFiniteGradient):
        store.apply(0, gradient, dtype)
    assert store.lsn == 1


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan"), float("inf")])
def test_a_max_norm_that_bounds_nothing_is_refused(max_norm: float) -> None:
    with pytest.raises(errors.ConfigError, match="max_norm must be finite and above 0"):
        make_store(max_norm=max_norm)


def test_a_result_that_overflows_is_refused_too() -> None:
    store = make_store([("sgd", {"lr": 2.0})])
    store.load(0, np.full(LEN, -3e38, "f4"))
    with pytest.raises(errors.NonFiniteGradient, match="the update would make 32 elements"):
        store.apply(0, np.full(FRAGMENT_LEN, 3e38, "f4"), 1)
    np.testing.assert_array_equal(read(store), np.full(LEN, -3e38, "f4"))


def test_wrong_arguments_of_apply() -> None:
    store = make_store()
    ones = np.ones(FRAGMENT_LEN, "f4")
    with pytest.raises(errors.ParameterError, match="fragment 4 does not exist"):
        store.apply(4, ones, 1)
    with pytest.raises(errors.ParameterError, match="dtype code 9"):
        store.apply(0, ones, 9)
    with pytest.raises(errors.ParameterError, match="fragment must be"):
        store.version(4)
    with pytest.raises(OverflowError):
        store.apply(-1, ones, 1)


def test_planes_travel_between_stores() -> None:
    parts = [("adagrad", {"lr": 0.1, "eps": 1e-8, "initial": 0.25})]
    old, new = make_store(parts), make_store(parts)
    assert old.planes == 1
    old.apply(0, np.ones(FRAGMENT_LEN, "f4"), 1)
    for plane in (0, 1):
        for start in range(0, LEN, 50):  # in pieces: a plane may be most of a machine's memory
            piece = np.empty(min(50, LEN - start), "f4")
            old.read_plane(plane, piece, start)
            new.load_plane(plane, piece, start)
    state = np.empty(LEN, "f4")
    new.read_plane(1, state)
    np.testing.assert_array_equal(state[:40], np.r_[np.full(32, 1.25), np.full(8, 0.25)])
    np.testing.assert_array_equal(read(new), read(old))
    with pytest.raises(errors.ParameterError, match="plane 2"):
        new.read_plane(2, state)
    some = np.empty(20, "f4")
    new.read_plane(1, some, 20)
    np.testing.assert_array_equal(some, state[20:40])
    make_store(parts).load_plane(1, some, 80)
    with pytest.raises(errors.ParameterError, match="elements 81 to 101"):
        new.read_plane(1, some, 81)
    with pytest.raises(errors.ParameterError, match="elements 81 to 101"):
        new.load_plane(1, some, 81)


def test_loading_after_the_first_record_is_too_late() -> None:
    store = make_store()
    store.apply(0, np.ones(FRAGMENT_LEN, "f4"), 1)
    values = np.zeros(LEN, "f4")
    state = store.export_state()
    with pytest.raises(errors.LocalProtocolError, match="LSN 1"):
        store.load(0, values)
    with pytest.raises(errors.LocalProtocolError, match="LSN 1"):
        store.load_plane(0, values)
    with pytest.raises(errors.LocalProtocolError, match="LSN 1"):
        store.import_state([state])


def test_an_answer_about_a_run_costs_the_fragments_here_and_not_the_numbers_in_it() -> None:
    store = make_store(first_fragment=7)
    assert store.admit(1, 1, 1, 7, 4, 1) == "new"
    for _ in range(200):  # four thousand million fragments each, were they walked
        assert store.admit(1, 1, 1, 7, 2**32 - 1, 2**40) == "unknown"
        assert store.admit(1, 1, 1, 7, 2**32 - 1, 2) == "elsewhere"
        assert store.admit(1, 1, 1, 2**32 - 1, 2**32 - 1, 1) == "elsewhere"
    assert store.applied(1) == (1, 1, 0)
    far = 2**62
    assert store.admit(1, 1, far, 7, 4, 1) == "new"
    assert store.admit(1, 1, far, 7, 4, far + 1) == "done"
    assert store.applied(1) == (1, far, 0)


def test_fragments_have_the_numbers_of_the_layout() -> None:
    store = make_store(first_fragment=7)
    assert (store.first_fragment, store.fragments) == (7, 4)
    store.apply(9, np.ones(FRAGMENT_LEN, "f4"), 1)
    assert [store.version(fragment) for fragment in range(7, 11)] == [0, 0, 1, 0]
    np.testing.assert_array_equal(np.flatnonzero(read(store)), np.arange(64, 96))
    for cursor in (0, 7, 8):
        buffers, cursor, count = store.parameter_frames(1 - 1, cursor, 10**6)
        frames = _core.scan_frames(b"".join(bytes(memoryview(b)) for b in buffers))
        assert [frame.fragment for frame in frames] == list(range(11))[-count:]
        assert cursor == 11
    with pytest.raises(errors.ParameterError, match="fragment must be one of the shard's"):
        store.version(0)
    with pytest.raises(errors.ConfigError, match="beyond 32 bits"):
        make_store(first_fragment=2**32 - 2)


def test_parameter_frames_are_pinned_buffers_of_one_moment() -> None:
    store = make_store(len=40_000, stripe_len=2048, fragment_len=8192)
    values = np.arange(40_000, dtype="f4")
    store.load(0, values)
    buffers, cursor, frames = store.parameter_frames(0, 0, 10**9)
    assert (cursor, frames) == (5, 5)
    pinned = [buffer for buffer in buffers if isinstance(buffer, _core.PinnedStripe)]
    assert len(pinned) == 20
    assert store.memory()["pinned"] == 0  # what is published costs nothing more
    assert [len(stripe) for stripe in pinned] == [8192] * 19 + [1088 * 4]
    view = memoryview(pinned[0])
    assert view.readonly
    assert view.nbytes == 8192
    store.apply(0, np.ones(8192, "f4"), 1)
    assert store.memory()["pinned"] == 8192 * 4
    data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
    received = list(slow.decode(data))
    assert b"".join(frame.payload for frame in received) == values.tobytes()
    assert [frame.fragment for frame in received] == list(range(5))
    view.release()
    del view, pinned, buffers
    assert store.memory()["pinned"] == 0
    np.testing.assert_array_equal(read(store)[:8192], values[:8192] - 0.5)


def test_parameter_frames_come_in_batches_of_what_changed() -> None:
    store = make_store()
    store.apply(1, np.ones(32, "f4"), 1)
    store.apply(3, np.ones(4, "f4"), 1)
    buffers, cursor, frames = store.parameter_frames(0, 0, 1)
    assert (cursor, frames, len(buffers)) == (1, 1, 1)
    buffers, cursor, frames = store.parameter_frames(1, 0, 10**6)
    assert (cursor, frames) == (4, 1)
    (frame,) = slow.decode(b"".join(bytes(memoryview(buffer)) for buffer in buffers))
    assert (frame.fragment, frame.version, frame.seq) == (3, 1, 2)
    assert frame.payload == np.full(4, -0.5, "f4").tobytes()
    assert store.parameter_frames(2, 0, 10**6) == ([], 4, 0)
    assert store.parameter_frames(0, 4, 10**6) == ([], 4, 0)


def test_readers_that_let_nothing_go_never_hold_a_writer_up() -> None:
    store = make_store(len=65_536, stripe_len=16_384, fragment_len=16_384)
    gradient = np.ones(16_384, "f4")
    held = []
    for _ in range(100):
        cursor = 0
        while cursor < store.fragments:
            buffers, cursor, frames = store.parameter_frames(0, cursor, 10**9)
            held.append(buffers)
            assert frames
        for fragment in range(4):
            store.apply(fragment, gradient, 1)
    kept = sum(isinstance(b, _core.PinnedStripe) for buffers in held for b in buffers)
    assert store.kept == kept == 4  # 8 copies of 4 stripes, but for two records and their scratch
    assert store.lsn == 400
    # What could not be kept was copied, whole.
    (frame,) = slow.decode(b"".join(bytes(memoryview(b)) for b in held[-1]))
    assert (frame.version, frame.payload) == (99, np.full(16_384, -49.5, "f4").tobytes())
    held.clear()
    buffers.clear()
    assert store.kept == store.memory()["pinned"] == 0


def test_threads_apply_without_losing_a_record() -> None:
    store = make_store(len=4096, stripe_len=1024, fragment_len=2048)
    gradient = np.full(2048, 2.0, "f4")

    def push() -> None:
        for i in range(200):
            store.apply(i % 2, gradient, 1)

    threads = [threading.Thread(target=push) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.lsn == 600
    np.testing.assert_array_equal(read(store), np.full(4096, -300.0, "f4"))
