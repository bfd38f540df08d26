"""A push in flight: one gradient, its records at each shard, and which of them are settled.

A push has one number, the same at every shard; a record is one fragment of it, by its number in the
whole layout.
"""

from __future__ import annotations

import dataclasses
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour.limits import HEADER_SIZE
from pydownpour.replica.encoded import EncodedPush
from pydownpour.wire.frames import PushNotice


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """Which parameters a gradient was computed from.

    Attributes:
        versions: Of all fragments of the layout.
        rounds: Per shard, the rounds it had closed.
        clock: Every live replica's pushes of its first so many steps are in it, as shards count.

    Shapes:
        versions: (fragments of the layout,) uint64.
    """

    versions: NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))
    rounds: tuple[int, ...] = ()
    clock: int = 0


@final
@dataclasses.dataclass(eq=False, slots=True)
class Push:
    """One accrued gradient on its way to every shard.

    Attributes:
        index: 1, 2, 3, ... in the order a replica pushed: its number on the wire.
        encoded: Its records as they are sent. Those without an answer must not change.
        again: Records that are sent first, in place of those: they stand for the last gradient that
            a shard has of this replica, and the whole ones go where it has none.
        base: The parameters it was computed from.
        clock: Steps finished.
        samples: Samples in it.
        norm: Its L2 norm over all shards.
        leases: The units whose gradients are in it, by their leases.
        portions: Its records at each shard, once the links have it.
        open_portions: Shards that have not answered for all their records.
        is_settled: Every record has its definite answer, or none was sent.
        is_silent: It has no record: there was nothing to say, and no shard hears of it.
        refused: Records refused, over all shards.
        superseded: Those of them that were for a version which others have changed.
        staleness: The largest reported.
        blamed: Records refused for a fault of the gradient, over all shards.
        in_doubt: Nobody can say what of it was applied.
        by_policy: The job's policy refused it.
        reason: Why it was not applied, in words: the first refusal's. One that has a reason before
            it is sent cannot be sent.
        unused_fragments: Of which its own gradient is nowhere: refused, or an earlier one was
            applied again.
        repeated: Records that were answered as earlier ones', applied again.
    """

    index: int
    encoded: EncodedPush
    base: Base
    clock: int
    samples: int
    norm: float
    leases: tuple[int, ...] = ()
    portions: list[Portion] = dataclasses.field(default_factory=list)
    open_portions: int = 0
    is_settled: bool = False
    is_silent: bool = False
    refused: int = 0
    superseded: int = 0
    blamed: int = 0
    in_doubt: bool = False
    staleness: int = 0
    by_policy: bool = False
    reason: str = ""
    unused_fragments: list[int] = dataclasses.field(default_factory=list)
    repeated: int = 0
    again: memoryview | None = None


TO_SEND: Final = 0
ON_ITS_WAY: Final = 1
SETTLED: Final = 2


@final
class Portion:
    """A push at one shard: the records of its fragments first .. first + count - 1.

    Fragments that the push leaves out have no record: they are settled from the beginning.
    """

    __slots__ = (
        "_again", "_doubt", "_state", "count", "encoded", "first", "number", "open", "push",
    )  # fmt: skip

    def __init__(self, push: Push, fragments: range) -> None:
        self.push, self.first, self.count = push, fragments.start, len(fragments)
        self.encoded = push.encoded
        self.number = push.index
        """Of the push, on the wire."""
        self.open = self.count
        """Records without a definite answer."""
        self._state = bytearray(self.count)
        """What each record is: TO_SEND, ON_ITS_WAY or SETTLED."""
        for fragment in self.encoded.left_out:
            if fragment in fragments:
                self._state[fragment - self.first] = SETTLED
                self.open -= 1
        self._doubt = bytearray(self.count)
        """1 for a record that was sent before, with an answer that may have been lost."""
        self._again = bytearray(b"\1" * self.count) if push.again is not None else None
        """1 for a record that is sent as the last one again; None: none is."""

    def next_run(self) -> tuple[int, int] | None:
        """(fragment, count) of the first records in a row to send; None if there are none."""
        state = self._state
        first = state.find(TO_SEND)
        if first < 0:
            return None
        rest = state[first:] if first else state
        count = len(rest) - len(rest.lstrip(b"\0"))
        if self._again is not None:
            alike = bytes([self._again[first]])
            kinds = self._again[first : first + count]
            count -= len(kinds.lstrip(alike))
        return self.first + first, count

    def frames(self, fragment: int, count: int) -> memoryview:
        """The records of a run that :meth:`next_run` gave, as they are written."""
        again = self.push.again
        if again is None or not self.is_again(fragment):
            return self.encoded.frames(fragment, count)
        return again[fragment * HEADER_SIZE : (fragment + count) * HEADER_SIZE]

    def is_again(self, fragment: int) -> bool:
        """Whether the record of a fragment stands for the last one, or did when it was settled."""
        return self._again is not None and self._again[fragment - self.first] == 1

    def send_whole(self, fragment: int, count: int) -> None:
        """The shard has nothing that these could stand for: they are to be sent whole."""
        if self._again is not None:
            for open in self.open_in(fragment, count):
                self._again[open - self.first] = 0
        self.take_back(fragment, count)

    def send(self, fragment: int, count: int) -> None:
        """Some records are on their way."""
        first = fragment - self.first
        self._state[first : first + count] = bytes([ON_ITS_WAY]) * count

    def unsend(self, fragment: int, count: int) -> None:
        """Records that were to be sent were not: nobody can have heard of them."""
        first = fragment - self.first
        self._state[first : first + count] = bytes(count)

    def settle(self, fragment: int, count: int) -> int:
        """Mark records as answered; returns how many were open (a resend answers twice)."""
        first, stop = self._places(fragment, count)
        fresh = stop - first - self._state.count(SETTLED, first, stop)
        self._state[first:stop] = bytes([SETTLED]) * (stop - first)
        self.open -= fresh
        return fresh

    def open_in(self, fragment: int, count: int) -> list[int]:
        """Which of these fragments have no answer yet."""
        places = range(*self._places(fragment, count))
        return [self.first + place for place in places if self._state[place] != SETTLED]

    def take_back(self, fragment: int, count: int) -> None:
        """Records that were turned down for now are to be sent again."""
        first, stop = self._places(fragment, count)
        for place in range(first, stop):
            if self._state[place] == ON_ITS_WAY:
                self._state[place], self._doubt[place] = TO_SEND, 1

    def in_doubt(self, fragment: int, count: int) -> int:
        """How many of these records were sent more than once: only they can be duplicates."""
        first, stop = self._places(fragment, count)
        return self._doubt.count(1, first, stop)

    def rewind(self) -> None:
        """A new connection: whatever has no answer is to be sent again."""
        self.take_back(self.first, self.count)

    def is_settled(self, fragment: int) -> bool:
        """Whether the record of a fragment has its definite answer."""
        return self._state[fragment - self.first] == SETTLED

    @property
    def answered(self) -> int:
        """Records from the first on that all have their definite answers."""
        return self.count - len(self._state.lstrip(b"\2"))

    @property
    def sent(self) -> int:
        """Records up to the last one that was ever sent on this connection, or settled."""
        return len(self._state.rstrip(b"\0"))

    def _places(self, fragment: int, count: int) -> tuple[int, int]:
        """The part of a run that is ours, as (first place, stop)."""
        first = fragment - self.first
        if 0 <= first and first + count <= self.count:
            return first, first + count
        stop = min(max(first + count, 0), self.count)
        return min(max(first, 0), stop), stop

    def notice(self, first_open: int, shard: int) -> PushNotice:
        """What the announcement of (the rest of) this push says to a shard."""
        push = self.push
        round = push.base.rounds[shard]
        return PushNotice(first_open, push.clock, push.samples, push.norm, round)
