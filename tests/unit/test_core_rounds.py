"""Records that a shard combines in rounds, as Python sees them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from pydownpour import _core, errors
from tests.reference.frames import Frame

LEN, STRIPE_LEN, FRAGMENT_LEN = 40, 16, 32
ONES = np.ones(FRAGMENT_LEN, "f4")


def make_store(
    *, length: int = LEN, first_fragment: int = 0, accumulates: bool = True
) -> _core.Shard:
    return _core.Shard(
        len=length,
        stripe_len=STRIPE_LEN,
        fragment_len=FRAGMENT_LEN,
        first_fragment=first_fragment,
        optimizer=_core.Optimizer([("sgd", {"lr": 1.0})]),
        accumulates=accumulates,
    )


def read(store: _core.Shard) -> np.ndarray[Any, Any]:
    values = np.empty(store.len, "f4")
    store.read(values)
    return values


def test_a_round_is_one_update_with_one_lsn_and_one_version() -> None:
    store = make_store()
    assert store.accumulates
    assert store.accumulated(0) is None
    for lsn, weight in enumerate([1.0, 3.0], start=1):
        assert store.apply(0, ONES * lsn, 1, round=5, weight=weight, samples=10) == lsn
    assert store.accumulated(0) == (5, 2, 4.0)
    assert store.version(0) == np.count_nonzero(read(store)) == 0
    closed = store.close_round(0, 5)
    assert closed is not None
    assert (closed.lsn, closed.version, closed.count, closed.weight) == (3, 1, 2, 4.0)
    assert (closed.samples, closed.staleness) == (20, 0)
    np.testing.assert_array_equal(read(store)[:32], np.full(32, -(1 + 3 * 2) / 4, "f4"))
    assert store.accumulated(0) is None
    assert store.close_round(0, 6) is None, "nothing was accumulated"
    assert (store.lsn, store.version(0)) == (4, 1), "which has its place in the order, too"
    with pytest.raises(errors.LocalProtocolError, match=r"round 6 is not open: .* at round 7"):
        store.apply(0, ONES, 1, round=6)
    with pytest.raises(errors.LocalProtocolError, match="round 6 is not open"):
        store.close_round(0, 6)


def test_a_sum_is_applied_with_any_factor() -> None:
    store = make_store()
    for fragment in (0, 1):
        g = ONES[: (32, 8)[fragment]]
        store.apply(fragment, g, 1, round=0)
        store.apply(fragment, g, 1, round=0)
    store.close_round(0, 0, factor=1.0)
    store.close_round(1, 0, factor=0.25)
    np.testing.assert_array_equal(read(store), np.r_[np.full(32, -2.0), np.full(8, -0.5)])


def test_what_cannot_be_applied_is_dropped_and_said() -> None:
    store = make_store()
    store.apply(0, ONES * np.float32(3e38), 1, round=0)
    store.apply(0, ONES * np.float32(3e38), 1, round=0)
    with pytest.raises(errors.NonFiniteGradient) as caught:
        store.close_round(0, 0)
    assert "round 0 is closed and its 2 records are dropped" in str(caught.value)
    assert caught.value.details == {"count": 32, "first_index": 0}
    assert (store.accumulated(0), store.version(0)) == (None, 0)


def test_numbers_that_make_no_sense_are_named() -> None:
    store = make_store()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"scale": float("nan")}, "scale is NaN"),
        ({"staleness_power": -1.0}, "staleness_power is -1"),
        ({"staleness_power": 9.0}, "0 to 8"),
        ({"round": 0, "weight": 0.0}, "weight is 0"),
        ({"round": 2**64 - 1}, "cannot be closed"),
    ]
    for numbers, words in wrong:
        with pytest.raises(errors.ParameterError, match=words):
            store.apply(0, ONES, 1, **numbers)
    with pytest.raises(errors.ParameterError, match="factor is inf"):
        store.close_round(0, 0, factor=float("inf"))
    with pytest.raises(errors.ParameterError, match="see start_accumulating"):
        make_store(accumulates=False).apply(0, ONES, 1, round=0)
    with pytest.raises(errors.ParameterError, match="no accumulators"):
        make_store(accumulates=False).close_round(0, 0)
    with pytest.raises(errors.ParameterError, match="fragment"):
        store.accumulated(2)


def test_staleness_divides_where_it_is_known() -> None:
    store = make_store()
    for _ in range(4):
        store.apply(0, ONES, 1)
    store.apply(0, ONES, 1, base_version=0, staleness_power=0.5)
    assert read(store)[0] == -4.5
    store.apply(1, ONES[:8], 1, base_version=0, staleness_power=0.5)
    assert read(store)[32] == -1.0, "nothing happened to that fragment"


def test_of_several_records_with_one_base_a_fragment_takes_one() -> None:
    """Compare and apply: a record is for the version that it names, or for none."""
    store = make_store(accumulates=False)
    ones = np.ones(LEN, "f4")
    assert store.apply(0, ONES, 1, base_version=0, staleness_max=0) == 1
    with pytest.raises(errors.LocalProtocolError, match="1 updates since the record's base"):
        store.apply(0, ONES, 1, base_version=0, staleness_max=0)
    # Fragment 0 has its update; fragment 1 gets it from whoever comes next, and once.
    only_fresh = {"staleness_max": 0}
    refusal, settled = feed(store, push(1, ones), **only_fresh)
    assert (refusal.code, refusal.fragment) == (_core.CODE_SUPERSEDED, 0)
    assert (settled.fragment, settled.count, settled.applied, settled.last) == (1, 1, 1, True)
    again, last = feed(store, push(1, ones), **only_fresh)
    assert again.code == _core.CODE_SUPERSEDED, "what was not applied is not called a duplicate"
    assert (last.count, last.applied) == (1, 0), "and what was is"
    np.testing.assert_array_equal(read(store), -ones)
    store.apply(0, ONES, 1, base_version=0, staleness_max=1)
    assert store.version(0) == 2


def test_an_export_carries_open_rounds_samples_and_what_was_closed() -> None:
    old, new = make_store(), make_store()
    old.apply(1, ONES[:8], 1, round=3)
    old.close_round(1, 3)
    old.apply(0, ONES, 1, round=4, weight=2.5, samples=8)
    values = read(old)
    new.load(0, values)
    new.import_state([old.export_state()])
    assert new.accumulated(0) == (4, 1, 2.5)
    for store in (old, new):
        with pytest.raises(errors.LocalProtocolError, match="at round 4"):
            store.apply(1, ONES[:8], 1, round=3)
        store.apply(0, ONES, 1, round=4)
        closed = store.close_round(0, 4)
        assert closed is not None
        assert (closed.lsn, closed.count, closed.samples) == (5, 2, 8)
    np.testing.assert_array_equal(read(new), read(old))
    assert new.export_state() == old.export_state()


def test_a_store_combines_from_the_moment_it_is_told_to() -> None:
    store = make_store(accumulates=False)
    store.apply(0, ONES, 1)
    with pytest.raises(errors.ParameterError, match="no accumulators"):
        store.apply(0, ONES, 1, round=7)
    assert (store.accumulates, store.memory()["accumulators"]) == (False, 0)
    store.start_accumulating()
    store.apply(0, ONES, 1, round=7)
    store.start_accumulating()
    assert store.accumulated(0) == (7, 1, 1.0)
    assert (store.accumulates, store.memory()["accumulators"]) == (True, 4 * store.len)
    store.apply(0, ONES, 1)
    closed = store.close_round(0, 7)
    assert closed is not None
    assert (closed.lsn, closed.version, read(store)[0]) == (4, 3, -3.0)


def test_a_state_with_rounds_makes_a_store_combine_and_one_without_takes_none_away() -> None:
    old = make_store()
    old.apply(0, ONES, 1, round=4)
    new, plain = make_store(accumulates=False), make_store(accumulates=False)
    for store, of in ((new, old), (plain, make_store(accumulates=False))):
        store.load(0, read(of))
        store.import_state([of.export_state()])
    assert (new.accumulated(0), plain.accumulates) == ((4, 1, 1.0), False)
    combining = make_store()
    combining.import_state([plain.export_state()])
    combining.apply(0, ONES, 1, round=2)
    assert combining.accumulated(0) == (2, 1, 1.0)


def test_open_rounds_go_with_their_fragments_into_other_shards() -> None:
    old = make_store()
    old.apply(1, ONES[:8], 1, round=3)
    old.close_round(1, 3)
    old.apply(0, ONES, 1, round=4, weight=2.5, samples=8)
    parts = make_store(length=32), make_store(length=8, first_fragment=1)
    for part, start in zip(parts, (0, 32), strict=True):
        part.load(0, read(old)[start : start + part.len])
        part.import_state([old.export_state()])
    assert [part.lsn for part in parts] == [1, 1]
    assert (parts[0].accumulated(0), parts[1].accumulated(1)) == ((4, 1, 2.5), None)
    with pytest.raises(errors.LocalProtocolError, match="at round 4"):
        parts[1].apply(1, ONES[:8], 1, round=3)
    whole = make_store()
    whole.load(0, read(old))
    whole.import_state([part.export_state() for part in parts])
    for store in (old, whole):
        store.apply(0, ONES, 1, round=4)
        assert store.close_round(0, 4) is not None
    np.testing.assert_array_equal(read(whole), read(old))
    assert (whole.lsn, whole.versions()) == (4, old.versions())


def push(number: int, values: np.ndarray[Any, Any]) -> bytes:
    """A whole push of replica 1, incarnation 1, over both fragments."""
    said, who = struct.pack("<QQQ", 1, 0, 64), {"replica": 1, "incarnation": 1, "seq": number}
    data = Frame(1, **who, count=2, payload=said).encode()
    for fragment, payload in enumerate((values[:FRAGMENT_LEN], values[FRAGMENT_LEN:])):
        data += Frame(2, dtype=1, **who, fragment=fragment, payload=payload.tobytes()).encode()
    return data


def feed(store: _core.Shard, data: bytes, **admission: Any) -> list[Any]:
    """Everything an inlet reports of one push, accepted so."""
    inlet = _core.ShardInlet(store, payload_size_max=1024, control_size_max=256, ack_every=8)
    memoryview(inlet)[: len(data)] = data
    inlet.window()
    event, events = inlet.advance(len(data)), []
    while event is not None:
        events.append(event)
        if isinstance(event, _core.Frame):
            store.admit(1, 1, event.seq, event.fragment, event.count, 1)
            inlet.accept(**admission)
        event = inlet.advance(0)
    return events[1:]


def test_an_accumulated_record_is_done_and_one_that_comes_late_is_not() -> None:
    store = make_store()
    ones = np.ones(LEN, "f4")
    terms = {"round": 0, "weight": 2.0, "samples": 64}
    for applied in (2, 0):
        (settled,) = feed(store, push(1, ones), **terms)
        assert (settled.count, settled.applied, settled.last) == (2, applied, True)
    assert [store.accumulated(fragment) for fragment in (0, 1)] == [(0, 1, 2.0), (0, 1, 2.0)]
    assert store.applied(1) == (1, 1, 2)
    store.close_round(0, 0)
    refusal, settled = feed(store, push(2, ones), **terms)
    assert (refusal.code, refusal.fragment) == (_core.CODE_ROUND, 0)
    assert (settled.count, settled.applied) == (1, 1)
    # What was refused is not remembered as done, and may come again in another round.
    (settled,) = feed(store, push(2, ones), **terms | {"round": 1})[-1:]
    assert store.accumulated(0) == (1, 1, 2.0)
    closed = store.close_round(1, 0)
    assert closed is not None
    assert (closed.count, closed.samples) == (2, 128)
    np.testing.assert_array_equal(read(store), -ones)


def test_a_push_cannot_be_accepted_on_terms_that_make_no_sense() -> None:
    data = push(1, np.ones(LEN, "f4"))
    wrong: list[tuple[bool, dict[str, Any]]] = [
        (False, {"round": 0}),
        (True, {"round": 0, "weight": float("nan")}),
        (True, {"staleness_power": 100.0}),
    ]
    for accumulates, terms in wrong:
        store = make_store(accumulates=accumulates)
        with pytest.raises(errors.ParameterError):
            feed(store, data, **terms)
