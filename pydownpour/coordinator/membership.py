"""Replicas: ids, incarnations, and what each of them counted.

An id is never given to another replica: only a join that shows the same owner's key gets it again.
Each registration of an id is a new incarnation, which fences the older ones for ever; only a join
repeated with the same nonce (its answer was lost) gets the same answer. A dead member that is heard
again under its latest incarnation is live again: its leases were given away, its pushes were not
undone, so nothing but time was lost. One that left said so itself and is fenced.

Of those that are gone the newest keep a row of their own. Older ones are forgotten: their counts
are added to a sum, their ids are fenced here and, with the next heartbeat, at every shard.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import heapq
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import msgspec

from pydownpour import limits
from pydownpour.coordinator.tally import add_stats
from pydownpour.errors import ConfigError, Fenced, LimitExceeded
from pydownpour.limits import DEFAULT, Limits
from pydownpour.states import State, Table
from pydownpour.wire.messages import Join, KnownIds, LiveIds, MemberState, ReplicaStats

MEMBER: Final[Table[MemberState]] = Table(
    "a member",
    "live",
    {
        "live": {
            "suspect": "it is not heard for suspect_s",
            "dead": "it is not heard for dead_s",
            "left": "it says goodbye",
        },
        "suspect": {
            "live": "it is heard again",
            "dead": "it is not heard for dead_s",
            "left": "it says goodbye",
        },
        "dead": {
            "live": "it is heard again, or joins as its next incarnation",
            "left": "it says goodbye",
        },
        "left": {"live": "it joins as its next incarnation"},
    },
)
"""What a member may become."""

NO_STATS: Final = ReplicaStats()
NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.NAME_LEN_MAX}}}")


@final
@dataclasses.dataclass(slots=True)
class Member:
    """One replica, over all its incarnations."""

    id: int
    name: str
    incarnation: int
    host: str
    pid: int
    nonce: str
    owner: str
    """Digest of what its owner shows, or ""."""
    version: str
    seen_at: float
    joins: int = 1
    banked: ReplicaStats = NO_STATS
    """Last counts of earlier incarnations, added up."""
    current: ReplicaStats = NO_STATS
    rss_peak_bytes: int = 0
    left_because: str = ""
    """What went wrong when it left; "" if it left of its own accord, or has come back."""
    is_idle: bool = False
    """There was no work for it when it asked last: nobody waits for its gradients."""
    told_end: bool = False
    """It has heard that the job is over."""
    _state: State[MemberState] = dataclasses.field(default_factory=lambda: State(MEMBER))

    @property
    def state(self) -> MemberState:
        """What it is; :meth:`become` changes it."""
        return self._state.now

    def become(self, state: MemberState) -> bool:
        """Change as :data:`MEMBER` allows; False if it is that already.

        Raises:
            InternalError: it cannot become that.
        """
        return self._state.become(state, self.describe())

    @property
    def stats(self) -> ReplicaStats:
        """Counts over all incarnations."""
        return add_stats(self.banked, self.current) if self.incarnation > 1 else self.current

    @property
    def is_present(self) -> bool:
        """Live or suspect: not given up, and not gone."""
        return self.state in ("live", "suspect")

    def describe(self) -> str:
        """``replica 3 (host-b, pid 4711)``."""
        where = ", ".join(w for w in (self.host, f"pid {self.pid}" if self.pid else "") if w)
        return f"replica {self.id}" + (f" ({where})" if where else "")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Registered:
    """The outcome of a join.

    Attributes:
        repeated: The same join was answered before; nothing changed.
        rejoined: An id that was known, under a new incarnation: older ones are fenced.
    """

    member: Member
    repeated: bool = False
    rejoined: bool = False


@final
@dataclasses.dataclass(slots=True)
class Forgotten:
    """What is kept of members that are gone for long: sums."""

    replicas: int = 0
    stats: ReplicaStats = NO_STATS
    rss_peak_bytes: int = 0

    def add(self, member: Member) -> None:
        self.replicas += 1
        self.stats = add_stats(self.stats, msgspec.structs.replace(member.stats, loss=None))
        self.rss_peak_bytes = max(self.rss_peak_bytes, member.rss_peak_bytes)


@final
class Membership:
    """The members of a job, by id in ascending order.

    Args:
        limits: How many members there may be, and how long those that are gone are kept.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._members: dict[int, Member] = {}
        self._nonces: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self._next = 1
        self.forgotten = Forgotten()
        self.live_version = 1
        """Changes with who takes part and has work."""
        self._live: LiveIds | None = None
        self._present_ids: list[int] = []
        """Of live and suspect members, ascending: who comes or goes costs a place in it."""
        self._present: tuple[int, ...] | None = ()
        """The same, for who may keep it."""

    def register(self, join: Join, now: float) -> Registered:
        """Take a replica in.

        Raises:
            ConfigError: a name that cannot be.
            LimitExceeded: too many replicas.
        """
        if join.name and not NAME.fullmatch(join.name):
            raise ConfigError(
                f"replica name {join.name!r} must be 1 to {limits.NAME_LEN_MAX} of the characters "
                "A-Z a-z 0-9 . _ -"
            )
        asked_before = self._members.get(self._nonces.get(join.nonce, 0)) if join.nonce else None
        if asked_before is not None and asked_before.state != "left":
            self._hear(asked_before, now)
            return Registered(asked_before, repeated=True)
        owner = _digest(join.owner)
        member = self._members.get(self._owners.get(owner, 0)) if owner else None
        return self._renew(member, join, now) if member is not None else self._add(join, now)

    def _add(self, join: Join, now: float) -> Registered:
        if len(self._members) >= self._limits.replicas_max:
            raise LimitExceeded(
                f"this job has {len(self._members)} replicas with those that went lately, the "
                f"limit is {self._limits.replicas_max} (replicas_max)"
            )
        new = self._next
        self._next += 1
        self._members[new] = member = Member(
            id=new,
            name=join.name or f"replica-{new}",
            incarnation=1,
            host=join.host,
            pid=join.pid,
            nonce=join.nonce,
            owner=_digest(join.owner),
            version=join.version,
            seen_at=now,
        )
        self._came_or_went(member)
        self._know(member)
        return Registered(member)

    def _renew(self, member: Member, join: Join, now: float) -> Registered:
        member.banked = member.stats
        member.current = NO_STATS
        member.told_end = False
        self._nonces.pop(member.nonce, None)
        member.incarnation += 1
        member.joins += 1
        member.name = join.name or member.name
        member.host, member.pid, member.version = join.host, join.pid, join.version
        member.nonce = join.nonce
        self.change(member, "live")
        self.set_idle(member, False)
        member.seen_at = now
        self._know(member)
        return Registered(member, rejoined=True)

    def _know(self, member: Member) -> None:
        if member.nonce:
            self._nonces[member.nonce] = member.id
        if member.owner:
            self._owners[member.owner] = member.id

    def check(self, replica: int, incarnation: int, now: float) -> Member:
        """The member that speaks; it lives.

        Raises:
            Fenced: unknown, left, or an older incarnation.
        """
        member = self._members.get(replica)
        if member is None:
            was = "is gone for long and forgotten" if 0 < replica < self._next else "never joined"
            raise Fenced(f"replica {replica} {was}; join this job first")
        if incarnation != member.incarnation:
            raise Fenced(
                f"replica {replica} incarnation {incarnation} is fenced: incarnation "
                f"{member.incarnation} took its place"
            )
        if member.state == "left":
            raise Fenced(f"replica {replica} incarnation {incarnation} has left; join again")
        self._hear(member, now)
        return member

    def _hear(self, member: Member, now: float) -> None:
        self.change(member, "live")
        member.seen_at = now

    def change(self, member: Member, state: MemberState) -> None:
        """It is live, suspect, dead or has left: nobody else changes a member's state."""
        if member.become(state):
            self._came_or_went(member)

    def set_idle(self, member: Member, is_idle: bool) -> None:
        """It asked for work, and there is none for it now; or it has some."""
        if member.is_idle != is_idle:
            member.is_idle = is_idle
            self._changed()

    def _came_or_went(self, member: Member) -> None:
        ids, one = self._present_ids, member.id
        place = bisect.bisect_left(ids, one)
        was_here = place < len(ids) and ids[place] == one
        if was_here != member.is_present:
            if was_here:
                del ids[place]
            else:
                ids.insert(place, one)
            self._present = None
        self._changed()

    def _changed(self) -> None:
        self._live = None
        self.live_version += 1

    def leave(self, replica: int, incarnation: int, stats: ReplicaStats | None) -> Member:
        """A goodbye with the last counts. Saying it again changes nothing.

        Raises:
            Fenced: unknown, or an older incarnation.
        """
        member = self._members.get(replica)
        if member is None or member.incarnation != incarnation:
            raise Fenced(f"replica {replica} incarnation {incarnation} is not a member")
        if stats is not None and member.state != "left":
            member.current = stats
        self.change(member, "left")
        return member

    def forget(self, now: float) -> list[Member]:
        """Those gone for longest, of more than are kept; nobody is let in under their ids again."""
        gone = len(self._members) - self.present_count
        if gone <= self._limits.replicas_gone_max:
            return []
        old = [
            member
            for member in self._members.values()
            if not member.is_present and now - member.seen_at >= self._limits.replica_gone_s
        ]
        old.sort(key=lambda member: member.seen_at)
        for member in (over := old[: gone - self._limits.replicas_gone_max]):
            del self._members[member.id]
            if self._nonces.get(member.nonce) == member.id:
                del self._nonces[member.nonce]
            self._owners.pop(member.owner, None)
            self.forgotten.add(member)
        return over

    @property
    def counts(self) -> list[ReplicaStats]:
        """What members counted, and at last the sum of those who are forgotten."""
        return [*(member.stats for member in self._members.values()), self.forgotten.stats]

    def known_ids(self) -> KnownIds:
        """Who is still a member, for shards: they forget the others."""
        ranges: list[tuple[int, int]] = []
        for member in self._members:
            if ranges and (ranges[-1][1] == member or len(ranges) == self._limits.id_ranges_max):
                ranges[-1] = (ranges[-1][0], member + 1)
            else:
                ranges.append((member, member + 1))
        return KnownIds(version=self.forgotten.replicas, next=self._next, ranges=ranges)

    def live_ids(self) -> LiveIds:
        """Who is present and has work, or looks for it: whom shards may wait for."""
        if self._live is None:
            ranges: list[tuple[int, int]] = []
            for one in self._present_ids:
                if self._members[one].is_idle:
                    continue
                if ranges and ranges[-1][1] == one:
                    ranges[-1] = (ranges[-1][0], one + 1)
                elif len(ranges) < self._limits.id_ranges_max:
                    ranges.append((one, one + 1))
                else:
                    break
            self._live = LiveIds(version=self.live_version, next=self._next, ranges=ranges)
        return self._live

    def get(self, replica: int) -> Member | None:
        """None for an id that no member has: never given, or forgotten."""
        return self._members.get(replica)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def foremost(self, count: int, worth: Callable[[Member], Any]) -> list[Member]:
        """At most so many members, those worth the most, by id."""
        if len(self._members) <= count:
            return list(self._members.values())
        chosen = heapq.nlargest(count, self._members.values(), key=worth)
        return sorted(chosen, key=lambda member: member.id)

    def where(self, test: Callable[[Member], bool]) -> list[Member]:
        """The members that pass a test, by id."""
        return [member for member in self._members.values() if test(member)]

    @property
    def present(self) -> tuple[int, ...]:
        """Ids of live and suspect members, ascending."""
        if self._present is None:
            self._present = tuple(self._present_ids)
        return self._present

    @property
    def present_count(self) -> int:
        """How many they are."""
        return len(self._present_ids)


def _digest(owner: str) -> str:
    """What is remembered of an owner's key: enough to know it again, useless to anybody else."""
    return hashlib.sha256(owner.encode()).hexdigest() if owner else ""
