"""A journal that is durable late, and what a shard would be after its death: the durable prefix.

Where the shard came from another process, it begins with what that had.
"""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.shard.gate import AckGate
from pydownpour.shard.state import Shard
from tests.reference import codecs, journal

SIZE_MAX = 1 << 22


class LateJournal:
    """Everything is durable ``late_s`` after it was taken in, ``every_s`` at a time.

    Attributes:
        gate: For a shard.
        sums: At each element of the layout, what durable records have subtracted.
        shard: Whose journal it is, once it is there.
    """

    shard: Shard

    def __init__(
        self,
        len: int,
        fragment_len: int,
        every_s: float,
        late_s: float,
        codec: codecs.Codec | None = None,
    ) -> None:
        self.core = _core.Journal(size_max=SIZE_MAX)
        self.gate = AckGate("logged", self.core)
        self.gate.on_base = self._base
        self.sums: NDArray[np.float64] = np.zeros(len)
        self._codec = codec
        self._fragment_len, self._every_s, self._late_s = fragment_len, every_s, late_s
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        if entries := [journal.decode(entry) for entry in self.core.take()]:
            self._loop.call_later(self._late_s, self._durable, entries)
        self._loop.call_later(self._every_s, self._tick)

    def _base(self, lsn: int) -> None:
        values = np.empty(self.shard.assigned.len, np.float32)
        self.shard.store.read(values)
        self._loop.call_later(self._late_s, self._based, lsn, values)

    def _based(self, lsn: int, values: NDArray[np.float32]) -> None:
        start = self.shard.assigned.start
        self.sums[start : start + len(values)] = values
        self.gate.passed(lsn)

    def _durable(self, entries: list[journal.Entry]) -> None:
        for entry in entries:
            assert (entry.change, entry.dtype) == (journal.APPLIED, 1)
            start = entry.fragment * self._fragment_len
            stop = min(start + self._fragment_len, len(self.sums))
            if entry.codec:
                assert self._codec is not None
                values = self._codec.decode(entry.payload, stop - start)
            else:
                values = np.frombuffer(entry.payload, "<f4")
            self.sums[start:stop] -= values * np.float64(entry.factor)
        self.gate.passed(entries[-1].lsn)
