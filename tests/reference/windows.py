"""Exactly-once, slowly: a shard that remembers every record it ever applied, in a set.

RELIABILITY rules in one place: identity is (replica, incarnation, push, fragment); the floor is
where the replica said that every push below has its answers, or where every fragment of everything
below is applied; above it at most so many runs of pushes with the same fragments applied are
remembered; a past that is not known is not guessed, and a replica that calls pushes settled which
it never announced has one.
"""

from __future__ import annotations

import dataclasses

PUSHES_OPEN_MAX = 64


@dataclasses.dataclass
class Replica:
    """One replica's past. ``applied`` holds (incarnation, push, fragment) and is never cut."""

    fragments: range
    incarnation: int = 0
    known: bool = False
    said: int = 0
    announced: int = 0
    applied: set[tuple[int, int, int]] = dataclasses.field(default_factory=set)

    def done(self, push: int) -> frozenset[int]:
        """The fragments of a push that are applied."""
        return frozenset(f for f in self.fragments if (self.incarnation, push, f) in self.applied)

    @property
    def floor(self) -> int:
        """The highest push with everything up to it done or given up."""
        floor = self.said
        while len(self.done(floor + 1)) == len(self.fragments):
            floor += 1
        return floor

    @property
    def runs(self) -> list[list[int]]:
        """Consecutive pushes above the floor of which the same fragments are applied."""
        floor, runs = self.floor, list[list[int]]()
        of_this_life = {push for life, push, _ in self.applied if life == self.incarnation}
        for push in sorted(push for push in of_this_life if push > floor):
            last = runs[-1][-1] if runs else 0
            if runs and last == push - 1 and self.done(last) == self.done(push):
                runs[-1].append(push)
            else:
                runs.append([push])
        return runs

    def has_room(self, push: int) -> bool:
        """Whether a record of the push can be remembered."""
        runs = self.runs
        return push <= self.floor or [push] in runs or len(runs) + 2 <= PUSHES_OPEN_MAX

    @property
    def heard(self) -> int:
        """The highest push that was announced or applied."""
        applied = (push for life, push, _ in self.applied if life == self.incarnation)
        return max(self.announced, max(applied, default=0))

    def start_over(self, incarnation: int, *, known: bool) -> None:
        """A new incarnation has no past here."""
        self.incarnation, self.known, self.said, self.announced = incarnation, known, 0, 0

    def is_done(self, push: int, fragment: int) -> bool:
        """Whether the record has its final answer."""
        return push <= self.floor or (self.incarnation, push, fragment) in self.applied


class Shard:
    """Answers as the core's windows must; without ``bounded`` it believes any floor."""

    def __init__(self, fragments: range, *, bounded: bool = True) -> None:
        self.fragments, self.bounded = fragments, bounded
        self.replicas: dict[int, Replica] = {}

    def admit(
        self,
        replica: int,
        incarnation: int,
        push: int,
        fragment: int,
        count: int,
        first_open: int,
    ) -> str:
        """The verdict in one word."""
        entry = self.replicas.get(replica) or Replica(self.fragments)
        if incarnation < entry.incarnation:
            return "fenced"
        is_new = incarnation > entry.incarnation or not entry.known
        if (is_new or self.bounded) and first_open - 1 > (0 if is_new else entry.heard):
            return "unknown"
        if is_new:
            entry.start_over(incarnation, known=True)
        self.replicas[replica] = entry
        # The floor climbs over applied records before and after the replica's word counts.
        entry.said = max(entry.floor, first_open - 1)
        verdict = self._verdict(entry, push, range(fragment, fragment + count))
        if verdict in ("new", "partly") and not entry.has_room(push):
            return "window"
        if count:
            entry.announced = max(entry.announced, push)
        return verdict

    def _verdict(self, entry: Replica, push: int, fragments: range) -> str:
        if fragments and not (fragments[0] in self.fragments and fragments[-1] in self.fragments):
            return "elsewhere"
        done = sum(entry.is_done(push, fragment) for fragment in fragments)
        if done == 0:
            return "new"
        return "done" if done == len(fragments) else "partly"

    def fence(self, replica: int, incarnation: int) -> None:
        """Older incarnations are refused from now on."""
        entry = self.replicas.setdefault(replica, Replica(self.fragments))
        if incarnation > entry.incarnation:
            entry.start_over(incarnation, known=False)

    def settle(self, replica: int, incarnation: int, push: int, fragment: int) -> str:
        """Apply one record if it is new: "applied", "duplicate" or why not."""
        entry = self.replicas.get(replica)
        if entry is None:
            return "unknown"
        if incarnation < entry.incarnation:
            return "fenced"
        if incarnation > entry.incarnation or not entry.known:
            return "unknown"
        if fragment not in self.fragments:
            return "elsewhere"
        if entry.is_done(push, fragment):
            return "duplicate"
        if not entry.has_room(push):
            return "window"
        entry.applied.add((incarnation, push, fragment))
        return "applied"

    def applied(self, replica: int) -> tuple[int, int, int] | None:
        """(incarnation, floor, records applied in all incarnations)."""
        entry = self.replicas.get(replica)
        if entry is None:
            return None
        return entry.incarnation, entry.floor, len(entry.applied)
