"""Exactly-once, slowly: a shard that remembers every record it ever applied, in a set.

RELIABILITY rules in one place: identity is (replica, incarnation, seq); the floor is where the
replica said nothing below is incomplete, or where everything below is applied; a seq more than
1,023 above the floor is not taken; a past that is not known is not guessed, and a replica that
calls records settled which it never announced has one.
"""

from __future__ import annotations

import dataclasses

WINDOW = 1024


@dataclasses.dataclass
class Replica:
    """One replica's past. ``applied`` holds (incarnation, seq) and is never cut."""

    incarnation: int = 0
    known: bool = False
    said: int = 0
    announced: int = 0
    applied: set[tuple[int, int]] = dataclasses.field(default_factory=set)

    @property
    def floor(self) -> int:
        """The highest seq with everything up to it done or given up."""
        floor = self.said
        while (self.incarnation, floor + 1) in self.applied:
            floor += 1
        return floor

    @property
    def heard(self) -> int:
        """The highest seq that was announced or applied."""
        applied = (seq for life, seq in self.applied if life == self.incarnation)
        return max(self.announced, max(applied, default=0))

    def start_over(self, incarnation: int, *, known: bool) -> None:
        """A new incarnation has no past here."""
        self.incarnation, self.known, self.said, self.announced = incarnation, known, 0, 0

    def is_done(self, seq: int) -> bool:
        """Whether the record has its final answer."""
        return seq <= self.floor or (self.incarnation, seq) in self.applied


class Shard:
    """Answers as the core's ledger must; without ``bounded`` it believes any floor."""

    def __init__(self, *, bounded: bool = True) -> None:
        self.bounded = bounded
        self.replicas: dict[int, Replica] = {}

    def admit(
        self, replica: int, incarnation: int, first_seq: int, count: int, first_incomplete: int
    ) -> str:
        """The verdict in one word."""
        entry = self.replicas.get(replica, Replica())
        if incarnation < entry.incarnation:
            return "fenced"
        is_new = incarnation > entry.incarnation or not entry.known
        if (is_new or self.bounded) and first_incomplete - 1 > (0 if is_new else entry.heard):
            return "unknown"
        if is_new:
            entry.start_over(incarnation, known=True)
        self.replicas[replica] = entry
        # The floor climbs over applied records before and after the replica's word counts.
        entry.said = max(entry.floor, first_incomplete - 1)
        if first_seq + count - 1 >= entry.floor + WINDOW:
            return "window"
        if count:
            entry.announced = max(entry.announced, first_seq + count - 1)
        done = sum(entry.is_done(seq) for seq in range(first_seq, first_seq + count))
        if done == 0:
            return "new"
        return "done" if done == count else "partly"

    def fence(self, replica: int, incarnation: int) -> None:
        """Older incarnations are refused from now on."""
        entry = self.replicas.setdefault(replica, Replica())
        if incarnation > entry.incarnation:
            entry.start_over(incarnation, known=False)

    def settle(self, replica: int, incarnation: int, seq: int) -> str:
        """Apply one record if it is new: "applied", "duplicate" or why not."""
        entry = self.replicas.get(replica)
        if entry is None:
            return "unknown"
        if incarnation < entry.incarnation:
            return "fenced"
        if incarnation > entry.incarnation or not entry.known:
            return "unknown"
        if entry.is_done(seq):
            return "duplicate"
        if seq >= entry.floor + WINDOW:
            return "window"
        entry.applied.add((incarnation, seq))
        return "applied"

    def applied(self, replica: int) -> tuple[int, int, int] | None:
        """(incarnation, floor, records applied in all incarnations)."""
        entry = self.replicas.get(replica)
        if entry is None:
            return None
        return entry.incarnation, entry.floor, len(entry.applied)
