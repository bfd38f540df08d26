"""Entries of the core's journal, read one field at a time; layout: store/journal.rs."""

from __future__ import annotations

import dataclasses
import struct

LAYOUT = struct.Struct("<QIBBBxIIQQQdQQfQ8xI")
ENTRY_SIZE = LAYOUT.size
APPLIED, ACCUMULATED, CLOSED = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Entry:
    """One update of one fragment."""

    lsn: int
    fragment: int
    change: int
    dtype: int
    codec: int
    replica: int
    incarnation: int
    push: int
    base_version: int
    round: int
    weight: float
    samples: int
    staleness: int
    factor: float
    length: int
    chain: int
    payload: bytes


def decode(data: bytes) -> Entry:
    """Read one."""
    fields = [*LAYOUT.unpack_from(data), data[ENTRY_SIZE:]]
    entry = Entry(*fields)
    assert entry.length == len(entry.payload)
    return entry
