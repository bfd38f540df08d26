"""Exactly-once: the shard against one that remembers everything in a set, through restarts."""

from __future__ import annotations

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

FRAGMENTS, FRAGMENT_LEN = 3, 16
LEN = FRAGMENTS * FRAGMENT_LEN
PARTS = [("momentum", {"lr": 1.0, "momentum": 0.5, "nesterov": 0.0})]
POISON = np.full(FRAGMENT_LEN, np.nan, "f4").tobytes()
ONES = np.ones(FRAGMENT_LEN, "f4").tobytes()
NAMES = {_core.CODE_FENCED: "fenced", _core.CODE_UNKNOWN_STATE: "unknown",
         _core.CODE_WINDOW: "window", _core.CODE_NON_FINITE: "poison"}  # fmt: skip

replicas, incarnations = st.integers(1, 2), st.integers(1, 3)
FAR = (2**31, 2**40, 2**62, 2**64 - 1)
seqs = st.one_of(st.integers(1, 8), st.integers(1018, 1032))


def make_store() -> _core.Store:
    return _core.Store(
        len=LEN, stripe_len=16, fragment_len=FRAGMENT_LEN, optimizer=_core.Optimizer(PARTS)
    )


def planes(store: _core.Store) -> list[bytes]:
    values = np.empty(LEN, "f4")
    read = []
    for plane in range(store.planes + 1):
        store.read_plane(plane, values)
        read.append(values.tobytes())
    return read


def restart(store: _core.Store) -> _core.Store:
    """What a checkpoint and a restart do."""
    new = make_store()
    for plane, values in enumerate(planes(store)):
        new.load_plane(plane, values)
    new.import_ledger(store.export_ledger())
    return new


def push(
    store: _core.Store, replica: int, incarnation: int, seq: int, payloads: list[bytes], size: int
) -> tuple[list[str], int]:
    """Send a run, accept it whatever admit said: a word for each record, and how many applied."""
    inlet = _core.ShardInlet(store, payload_size_max=256, control_size_max=64, ack_every=2)
    who = {"replica": replica, "incarnation": incarnation}
    said = struct.pack("<QQQ", 1, 0, 0)
    data = Frame(1, **who, seq=seq, count=len(payloads), payload=said).encode()
    for i, payload in enumerate(payloads):
        place = (seq + i) % FRAGMENTS
        data += Frame(2, **who, dtype=1, fragment=place, seq=seq + i, payload=payload).encode()
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
                assert event.seq == seq + len(answers)
                answers.append(NAMES[event.code])
            else:
                assert event.first_seq == seq + len(answers)
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
        self.store, self.model = make_store(), Shard()
        self.twin = make_store()  # gets each applied record exactly once, without identity

    @rule(
        replica=replicas,
        incarnation=incarnations,
        seq=seqs,
        count=st.one_of(st.integers(0, 6), st.integers(0, 1100)),
        first_incomplete=st.one_of(
            st.just(1), st.integers(1, 9), st.integers(1, 1100), st.sampled_from(FAR)
        ),
    )
    def admit(
        self, replica: int, incarnation: int, seq: int, count: int, first_incomplete: int
    ) -> None:
        run = (replica, incarnation, seq, count, first_incomplete)
        assert self.store.admit(*run) == self.model.admit(*run)

    @rule(
        replica=replicas,
        incarnation=incarnations,
        seq=seqs,
        size=st.integers(1, 300),
        poison=st.lists(st.booleans(), min_size=1, max_size=5),
    )
    def push(self, replica: int, incarnation: int, seq: int, size: int, poison: list[bool]) -> None:
        expected, applied = [], 0
        for i, is_poison in enumerate(poison):
            answer = self.expect(replica, incarnation, seq + i, is_poison)
            applied += answer == "applied"
            expected.append("settled" if answer in {"applied", "duplicate"} else answer)
        payloads = [POISON if is_poison else ONES for is_poison in poison]
        answers = push(self.store, replica, incarnation, seq, payloads, size)
        assert answers == (expected, applied)

    def expect(self, replica: int, incarnation: int, seq: int, is_poison: bool) -> str:
        """The model's answer to one record; applied ones reach the twin."""
        entry = self.model.replicas.get(replica)
        past = set(entry.applied) if entry else set()
        answer = self.model.settle(replica, incarnation, seq)
        if answer == "applied":
            if is_poison:  # refused, and not done
                self.model.replicas[replica].applied = past
                return "poison"
            self.twin.apply(seq % FRAGMENTS, ONES, 1)
        return answer

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


def busy_store() -> _core.Store:
    store = make_store()
    for replica, count in ((1, 5), (7, 2)):
        store.admit(replica, 1, 1, count, 1)
        push(store, replica, 1, 1, [ONES] * count, 10**6)
    store.fence(9, 3)
    return store


BYTES = busy_store().export_ledger()


@given(st.data())
def test_a_damaged_ledger_is_refused_and_nothing_changes(data: Any) -> None:
    damaged = bytearray(BYTES)
    damaged[data.draw(st.integers(0, len(BYTES) - 1))] ^= data.draw(st.integers(1, 255))
    store = make_store()
    for wrong in (damaged, BYTES[: data.draw(st.integers(0, len(BYTES) - 1))], BYTES + b"\0"):
        with pytest.raises(errors.CheckpointError):
            store.import_ledger(wrong)
    assert store.export_ledger() == make_store().export_ledger()


def test_a_ledger_of_another_geometry_is_refused() -> None:
    other = _core.Store(len=LEN, stripe_len=16, fragment_len=32, optimizer=_core.Optimizer(PARTS))
    with pytest.raises(errors.CheckpointError, match="fragments of 16"):
        other.import_ledger(BYTES)


def test_a_ledger_of_another_version_says_so() -> None:
    body = BYTES[:4] + b"\x01" + BYTES[5:-4]
    with pytest.raises(errors.CheckpointError, match="ledger version 1"):
        make_store().import_ledger(body + struct.pack("<I", _core.crc32c(body)))


def test_ids_and_seqs_start_at_one() -> None:
    store = make_store()
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(errors.ParameterError, match="at least 1"):
            store.admit(*wrong, 1, 1)
