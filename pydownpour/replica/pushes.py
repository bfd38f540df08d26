"""A push in flight: one gradient, its records at each shard, and which of them are settled."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from pydownpour.layout import Flat
from pydownpour.wire.frames import PushNotice


@final
@dataclasses.dataclass(eq=False, slots=True)
class Push:
    """One accrued gradient on its way to every shard.

    Attributes:
        index: 1, 2, 3, ... in the order a replica pushed.
        values: The gradient over the whole layout; must not change until the push is settled.
        base: Per shard, the fragment versions of the parameters it was computed from.
        clock: Steps finished.
        samples: Samples in it.
        norm: Its L2 norm over all shards.
        leases: The units whose gradients are in it, by their leases.
        open_parts: Shards that have not answered for all their records.
        refused: Records refused, over all shards.
        staleness: The largest reported.
    """

    index: int
    values: Flat
    base: tuple[NDArray[np.uint64], ...]
    clock: int
    samples: int
    norm: float
    leases: tuple[int, ...] = ()
    open_parts: int = 0
    refused: int = 0
    staleness: int = 0
    reason: str = ""


@final
class Part:
    """The records of a push at one shard: seqs first_seq .. first_seq + count - 1."""

    __slots__ = ("_done", "count", "data", "first_seq", "open", "push", "sent")

    def __init__(self, push: Push, first_seq: int, count: int, data: memoryview) -> None:
        self.push, self.first_seq, self.count = push, first_seq, count
        self.data = data
        """This shard's slice of the gradient as bytes of the wire's dtype."""
        self.sent = 0
        """Records handed to the current connection."""
        self.open = count
        """Records without a definite answer."""
        self._done = bytearray(count)

    def settle(self, seq: int, count: int) -> int:
        """Mark records as answered; returns how many were open (a resend answers twice)."""
        first = max(seq - self.first_seq, 0)
        stop = min(seq + count - self.first_seq, self.count)
        if stop <= first:
            return 0
        fresh = self._done.count(0, first, stop)
        self._done[first:stop] = b"\1" * (stop - first)
        self.open -= fresh
        return fresh

    def is_settled(self, index: int) -> bool:
        """Whether record ``index`` has its definite answer."""
        return self._done[index] != 0

    @property
    def first_open(self) -> int:
        """Index of the first record without an answer; count if there is none."""
        found = self._done.find(0)
        return self.count if found < 0 else found

    def rewind(self) -> None:
        """A new connection: send again from the first open record."""
        self.sent = self.first_open

    def notice(self, first_incomplete: int) -> PushNotice:
        """What the announcement of (the rest of) this push says."""
        push = self.push
        return PushNotice(first_incomplete, push.clock, push.samples, push.norm)
