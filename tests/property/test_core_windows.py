"""Exactly-once: the shard against one that remembers everything in a set, through restarts; and
shards that are cut anew."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pydownpour import _core, errors
from tests.reference.frames import Frame
from tests.reference.windows import Shard

FRAGMENTS, FRAGMENT_LEN, FIRST = 3, 16, 4
LEN = FRAGMENTS * FRAGMENT_LEN
PARTS = [
    ("gap_aware", {"decay": 0.5, "eps": 1e-3, "history": 2.0}),
    ("momentum", {"lr": 1.0, "momentum": 0.5, "nesterov": 0.0}),
]
POISON = np.full(FRAGMENT_LEN, np.nan, "f4").tobytes()
ONES = np.ones(FRAGMENT_LEN, "f4").tobytes()
NAMES = {_core.CODE_FENCED: "fenced", _core.CODE_UNKNOWN_STATE: "unknown",
         _core.CODE_WINDOW: "window", _core.CODE_FRAGMENT: "elsewhere",
         _core.CODE_NON_FINITE: "poison"}  # fmt: skip

replicas, incarnations = st.integers(1, 2), st.integers(1, 3)
FAR = (2**31, 2**40, 2**62, 2**64 - 1)
pushes = st.one_of(st.integers(1, 8), st.integers(60, 70))
places = st.integers(FIRST - 1, FIRST + FRAGMENTS)


def make_store(fragments: range = range(FIRST, FIRST + FRAGMENTS)) -> _core.Shard:
    return _core.Shard(
        len=len(fragments) * FRAGMENT_LEN,
        stripe_len=16,
        fragment_len=FRAGMENT_LEN,
        first_fragment=fragments.start,
        optimizer=_core.Optimizer(PARTS),
    )


def planes(store: _core.Shard) -> list[bytes]:
    values = np.empty(store.len, "f4")
    read = []
    for plane in range(store.planes + store.history + 1):
        store.read_plane(plane, values)
        read.append(values.tobytes())
    return read


def restart(store: _core.Shard) -> _core.Shard:
    """What a checkpoint and a restart do."""
    new = make_store()
    for plane, values in enumerate(planes(store)):
        new.load_plane(plane, values)
    new.import_state([store.export_state()])
    return new


def push(
    store: _core.Shard,
    replica: int,
    incarnation: int,
    number: int,
    first: int,
    payloads: list[bytes],
    size: int,
) -> tuple[list[str], int]:
    """Send a run, accept it whatever admit said: a word for each record, and how many applied."""
    inlet = _core.ShardInlet(store, payload_size_max=256, control_size_max=64, ack_every=2)
    who = {"replica": replica, "incarnation": incarnation}
    said = struct.pack("<QQQ", 1, 0, 0)
    data = Frame(1, **who, seq=number, fragment=first, count=len(payloads), payload=said).encode()
    for i, payload in enumerate(payloads):
        data += Frame(2, **who, dtype=1, fragment=first + i, seq=number, payload=payload).encode()
    view = memoryview(inlet)
    answers: list[str] = []
    applied = lasts = 0
    while data:
        start, stop = inlet.window()
        n = min(stop - start, len(data), size)
        view[start : start + n], data = data[:n], data[n:]
        event = inlet.advance(n)
        while event is not None:
            if isinstance(event, _core.Frame):
                inlet.accept()
            elif isinstance(event, _core.Refusal):
                assert (event.push, event.fragment) == (number, first + len(answers))
                answers.append(NAMES[event.code])
            else:
                assert (event.push, event.fragment) == (number, first + len(answers))
                answers += ["settled"] * event.count
                applied += event.applied
                lasts += event.last
            event = inlet.advance(0)
    assert lasts == 1
    return answers, applied


class ExactlyOnce(RuleBasedStateMachine):
    """Random histories of admissions, pushes, duplicates, poison, fences and restarts."""

    @initialize()
    def start(self) -> None:
        self.store = make_store()
        self.model = Shard(range(FIRST, FIRST + FRAGMENTS))
        self.twin = make_store()  # gets each applied record exactly once, without identity

    @rule(
        replica=replicas,
        incarnation=incarnations,
        number=pushes,
        first=places,
        count=st.integers(0, FRAGMENTS + 1),
        first_open=st.one_of(
            st.just(1), st.integers(1, 9), st.integers(1, 70), st.sampled_from(FAR)
        ),
    )
    def admit(
        self, replica: int, incarnation: int, number: int, first: int, count: int, first_open: int
    ) -> None:
        run = (replica, incarnation, number, first, count, first_open)
        assert self.store.admit(*run) == self.model.admit(*run)

    @rule(
        replica=replicas,
        incarnation=incarnations,
        number=pushes,
        first=places,
        size=st.integers(1, 300),
        poison=st.lists(st.booleans(), min_size=1, max_size=FRAGMENTS),
    )
    def push(
        self,
        replica: int,
        incarnation: int,
        number: int,
        first: int,
        size: int,
        poison: list[bool],
    ) -> None:
        expected, applied = [], 0
        for i, is_poison in enumerate(poison):
            answer = self.expect(replica, incarnation, number, first + i, is_poison)
            applied += answer == "applied"
            expected.append("settled" if answer in {"applied", "duplicate"} else answer)
        payloads = [POISON if is_poison else ONES for is_poison in poison]
        answers = push(self.store, replica, incarnation, number, first, payloads, size)
        assert answers == (expected, applied)

    def expect(
        self, replica: int, incarnation: int, number: int, fragment: int, is_poison: bool
    ) -> str:
        """The model's answer to one record; applied ones reach the twin."""
        entry = self.model.replicas.get(replica)
        past = set(entry.applied) if entry else set()
        answer = self.model.settle(replica, incarnation, number, fragment)
        if answer == "applied":
            if is_poison:  # refused, and not done
                self.model.replicas[replica].applied = past
                return "poison"
            self.twin.apply(fragment, ONES, 1, base_version=0)
        return answer

    @rule(replica=replicas, step=st.integers(1, 3), first=places)
    def one_fragment_of_many(self, replica: int, step: int, first: int) -> None:
        """Until no more of them are remembered."""
        for number in range(1, 140, step):
            self.push(replica, 2, number, first, 10**6, [False])

    @rule(replica=replicas, incarnation=incarnations)
    def fence(self, replica: int, incarnation: int) -> None:
        self.store.fence(replica, incarnation)
        self.model.fence(replica, incarnation)

    @rule()
    def restart(self) -> None:
        self.store = restart(self.store)

    @invariant()
    def the_state_counts_every_applied_record_once(self) -> None:
        for replica in (1, 2):
            assert self.store.applied(replica) == self.model.applied(replica)
        assert (self.store.lsn, self.store.versions()) == (self.twin.lsn, self.twin.versions())
        assert planes(self.store) == planes(self.twin)


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(stateful_step_count=30)


def busy_store() -> _core.Shard:
    store = make_store()
    for replica, count in ((1, 2), (7, 3)):
        store.admit(replica, 1, 1, FIRST, count, 1)
        push(store, replica, 1, 1, FIRST, [ONES] * count, 10**6)
    store.fence(9, 3)
    return store


BYTES = busy_store().export_state()


@given(st.data())
def test_a_damaged_state_is_refused_and_nothing_changes(data: Any) -> None:
    damaged = bytearray(BYTES)
    damaged[data.draw(st.integers(0, len(BYTES) - 1))] ^= data.draw(st.integers(1, 255))
    store = make_store()
    for wrong in (damaged, BYTES[: data.draw(st.integers(0, len(BYTES) - 1))], BYTES + b"\0"):
        with pytest.raises(errors.CheckpointError):
            store.import_state([wrong])
    assert store.export_state() == make_store().export_state()


def test_a_state_of_other_fragments_is_refused() -> None:
    other = _core.Shard(
        len=LEN,
        stripe_len=16,
        fragment_len=32,
        first_fragment=FIRST,
        optimizer=_core.Optimizer(PARTS),
    )
    with pytest.raises(errors.CheckpointError, match="fragments of 16"):
        other.import_state([BYTES])
    for states, words in (([], "in 0 of the states"), ([BYTES, BYTES], "in 2 of the states")):
        with pytest.raises(errors.CheckpointError, match=words):
            make_store().import_state(states)


def test_a_state_of_another_version_says_so() -> None:
    body = BYTES[:4] + b"\x07" + BYTES[5:-4]
    with pytest.raises(errors.CheckpointError, match="state version 7"):
        make_store().import_state([body + struct.pack("<I", _core.crc32c(body))])


def test_ids_and_pushes_start_at_one() -> None:
    store = make_store()
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(errors.ParameterError, match="at least 1"):
            store.admit(*wrong, FIRST, 1, 1)


LAYOUT = 6
"""Fragments of the layout that is cut into shards again and again."""
cuts = st.sets(st.integers(1, LAYOUT - 1)).map(
    lambda cuts: [range(*pair) for pair in itertools.pairwise([0, *sorted(cuts), LAYOUT])]
)


def cut_anew(shards: list[_core.Shard], parts: list[range]) -> list[_core.Shard]:
    """The same parameters, optimizer state and past in other shards."""
    whole = [b"".join(pieces) for pieces in zip(*map(planes, shards), strict=True)]
    states = [shard.export_state() for shard in shards]
    size = 4 * FRAGMENT_LEN
    new = [make_store(part) for part in parts]
    for shard, part in zip(new, parts, strict=True):
        for plane, values in enumerate(whole):
            shard.load_plane(plane, values[part.start * size : part.stop * size])
        shard.import_state(states)
    return new


@given(
    records=st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(0, LAYOUT - 1)), max_size=40
    ),
    parts=st.lists(cuts, min_size=1, max_size=4),
    every=st.integers(1, 15),
)
def test_a_state_loads_into_shards_that_are_cut_differently(
    records: list[tuple[int, int, int]], parts: list[list[range]], every: int
) -> None:
    shards, twin = [make_store(range(LAYOUT))], make_store(range(LAYOUT))
    known = set()
    for i, record in enumerate([*records, *records]):
        replica, number, fragment = record
        (shard,) = (one for one in shards if 0 <= fragment - one.first_fragment < one.fragments)
        assert shard.admit(replica, 1, number, fragment, 1, 1) in ("new", "done")
        assert push(shard, replica, 1, number, fragment, [ONES], 10**6) == (
            ["settled"],
            record not in known,
        )
        if record not in known:
            known.add(record)
            twin.apply(fragment, ONES, 1, base_version=0)
        if i % every == 0:
            shards = cut_anew(shards, parts[i % len(parts)])
    assert [b"".join(pieces) for pieces in zip(*map(planes, shards), strict=True)] == planes(twin)
    assert b"".join(shard.versions() for shard in shards) == twin.versions()
