"""The inlet's slow twin does what the core does, event by event and bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core, errors
from tests.reference import inlet as twin
from tests.reference.codecs import Int8
from tests.reference.frames import Frame

LEN, FRAGMENT_LEN = 80, 32
BLOCK = 16
FRAGMENTS, FIRST = 3, 6
MAX_NORM = 20.0
"""The first few pushes are smaller, and the last ones larger."""
SIZES = {1: "f4", 2: "f8", 3: "f2"}

runs = st.fixed_dictionaries({
    "incarnation": st.integers(1, 3),
    "push": st.integers(1, 6),
    "first_open": st.integers(1, 4),
    "fragments": st.sampled_from([
        range(FIRST + start, FIRST + stop)
        for start in range(-1, FRAGMENTS + 1)
        for stop in range(start, FRAGMENTS + 2)
    ]),
    "misplaced": st.sampled_from([0] * 9 + [1]),
    "dtype": st.sampled_from([1, 2, 3, 7]),
    "codec": st.sampled_from([0, 0, 0, 1, 1, 2]),
    "longer": st.integers(-1, 1),
    "scale": st.sampled_from([0.5, 1.0, -1.0, np.inf, np.nan, 3e38]),
    "poison": st.booleans(),
    "decision": st.sampled_from(["accept", "accept", "skip"]),
    "cut": st.one_of(st.none(), st.integers(1, 200)),
})  # fmt: skip


def make_store(max_norm: float) -> _core.Shard:
    optimizer = _core.Optimizer([("sgd", {"lr": 1.0})])
    codec = _core.Codec("int8", {"block": BLOCK})
    return _core.Shard(
        len=LEN,
        stripe_len=16,
        fragment_len=FRAGMENT_LEN,
        first_fragment=FIRST,
        optimizer=optimizer,
        codec=codec,
        max_norm=max_norm,
    )


def stream(run: dict[str, Any], number: int) -> bytes:
    """A push, its records and a ping, damaged or cut short as the case says."""
    who = {"replica": 1, "incarnation": run["incarnation"]}
    notice = struct.pack("<QQQ", run["first_open"], 0, 0)
    fragments = run["fragments"]
    data = Frame(
        1, **who, seq=run["push"], fragment=fragments.start, count=len(fragments), payload=notice
    ).encode()
    for i, fragment in enumerate(fragments):
        elements = min(FRAGMENT_LEN, LEN - (fragment - FIRST) * FRAGMENT_LEN)
        values = np.full(max(elements, 4), number + 1, "f4")
        if run["poison"] and i == 1:
            values[3] = np.inf
        payload = values.astype(SIZES.get(run["dtype"], "f4")).tobytes()
        if run["codec"]:
            payload = encoded(max(elements, 4), number, run)
        data += Frame(
            2, **who, codec=run["codec"], dtype=run["dtype"], seq=run["push"],
            fragment=fragment + run["misplaced"], version=number % 3, payload=payload,
        ).encode()  # fmt: skip
    data += Frame(8, seq=number).encode()
    return data if run["cut"] is None else data[: run["cut"]]


def encoded(elements: int, number: int, run: dict[str, Any]) -> bytes:
    """Codes as nobody of ours would send them, and now and then a byte more or less."""
    scales = np.full(-(-elements // BLOCK), run["scale"], "<f4")
    codes = (np.arange(elements) * 37 + number).astype(np.int8)
    data = scales.tobytes() + codes.tobytes()
    return data[: len(data) + min(run["longer"], 0)] + bytes(max(run["longer"], 0))


def words(event: Any) -> str:
    """An event's fields, whoever made it."""
    if isinstance(event, _core.Frame):
        where = f"{event.seq} {event.fragment} {event.count}"
        return f"frame {event.kind} {where} {event.payload!r}"
    kind = type(event).__name__
    names: tuple[str, ...] = ("push", "fragment", "code", "count", "first_index", "norm")
    if kind == "Settled":
        names = ("push", "fragment", "count", "applied", "staleness", "lsn", "last")
    return f"{kind} " + " ".join(f"{name}={getattr(event, name)}" for name in names)


def converse(store: Any, make: Callable[..., Any], cases: list[dict[str, Any]]) -> list[str]:
    """Everything a shard would see of several connections, one after the other."""
    seen: list[str] = []
    for number, run in enumerate(cases):
        inlet = make(store, payload_size_max=256, control_size_max=64, ack_every=2)
        view, data = memoryview(inlet), stream(run, number)
        try:
            while data:
                start, stop = inlet.window()
                n = min(stop - start, len(data), 100)
                view[start : start + n], data = data[:n], data[n:]
                event = inlet.advance(n)
                while event is not None:
                    seen.append(words(event))
                    if isinstance(event, _core.Frame) and event.kind == 1:
                        place = (event.seq, event.fragment, event.count)
                        seen.append(store.admit(1, run["incarnation"], *place, run["first_open"]))
                        _ = inlet.skip() if run["decision"] == "skip" else inlet.accept(scale=0.5)
                    event = inlet.advance(0)
        except errors.RemoteProtocolError:
            seen.append("the stream is dead")
        seen.append(str(store.applied(1)))
    return seen


def values(store: _core.Shard) -> tuple[bytes, bytes, int]:
    array = np.empty(LEN, "f4")
    store.read(array)
    return array.tobytes(), store.versions(), store.lsn


@given(st.lists(runs, min_size=1, max_size=8))
def test_the_twin_sees_and_does_the_same(cases: list[dict[str, Any]]) -> None:
    real, slow = make_store(MAX_NORM), make_store(MAX_NORM)
    expected = converse(real, _core.ShardInlet, cases)
    made = twin.Shard(slow, twin.Rules(), Int8(BLOCK), MAX_NORM)
    assert converse(made, twin.Inlet, cases) == expected
    assert values(slow) == values(real)
