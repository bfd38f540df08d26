"""The core's journal as Python meets it: entries in order, before anybody can read them."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pydownpour import _core, errors
from tests.reference.journal import ENTRY_SIZE, decode

LEN = 32


def make_store(journal: _core.Journal) -> _core.Shard:
    optimizer = _core.Optimizer([("sgd", {"lr": 1.0})])
    return _core.Shard(
        len=LEN,
        stripe_len=16,
        fragment_len=16,
        first_fragment=3,
        optimizer=optimizer,
        journal=journal,
    )


def test_a_journal_has_every_record_in_the_order_of_its_lsn() -> None:
    journal = _core.Journal(size_max=1 << 20)
    store = make_store(journal)
    gradient = np.arange(16, dtype="f4")
    store.apply(4, gradient, 1, scale=0.5)
    store.apply(3, gradient.astype("f2"), 3)
    with pytest.raises(errors.NonFiniteGradient):
        store.apply(3, np.full(16, np.nan, "f4"), 1)
    assert (journal.last_lsn, store.lsn) == (2, 2)
    first, second = map(decode, journal.take())
    assert (first.lsn, first.fragment, first.change, first.dtype) == (1, 4, 1, 1)
    assert (first.factor, first.payload) == (0.5, gradient.tobytes())
    assert (second.lsn, second.fragment, second.dtype) == (2, 3, 3)
    assert second.payload == gradient.astype("f2").tobytes()
    assert journal.take() == []


def test_each_entry_is_chained_to_the_one_before() -> None:
    journal = _core.Journal(size_max=1 << 20)
    store = make_store(journal)
    for _ in range(3):
        store.apply(3, np.ones(16, "f4"), 1)
    chain = 0
    for entry in journal.take():
        chain = _core.crc32c(entry[ENTRY_SIZE:], _core.crc32c(entry[: ENTRY_SIZE - 4], chain))
        assert struct.unpack_from("<I", entry, ENTRY_SIZE - 4) == (chain,)


def test_a_full_journal_refuses_and_takes_again_when_it_is_emptied() -> None:
    journal = _core.Journal(size_max=2 * (ENTRY_SIZE + 64))
    store = make_store(journal)
    gradient = np.ones(16, "f4")
    store.apply(3, gradient, 1)
    store.apply(3, gradient, 1)
    with pytest.raises(errors.LimitExceeded, match="320 of 320 bytes of the journal"):
        store.apply(4, gradient, 1)
    assert (store.lsn, store.version(4)) == (2, 0)
    assert len(journal.take()) == 2
    assert store.apply(4, gradient, 1) == 3
