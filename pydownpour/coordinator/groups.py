"""Which replicas reduce among themselves: a value with a number, replaced as a whole. Pure.

A group names its members in an order, and where each can be reached; members of one group agree on
who sends what to whom, because they have the same value. It changes when somebody comes, goes or is
given up, has no work or has some again, and when a connection between two members broke: a group's
connections live as long as it does, so then the same members make a new one.

Members that listen come first, by id, and then those that only call others.
"""

from __future__ import annotations

import dataclasses
from typing import final

from pydownpour.coordinator.membership import Member, Membership
from pydownpour.limits import DEFAULT, Limits
from pydownpour.policy import Reduction
from pydownpour.policy.base import replicas
from pydownpour.wire.messages import Group, GroupMember
from pydownpour.wire.proof import Keeper


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """One member of a group: who it is, where it listens ("": nowhere), and since which group."""

    id: int
    incarnation: int
    url: str
    since: int


@final
class Groups:
    """The newest group of one job.

    Args:
        reduction: How replicas reduce; None: they do not.
        keeper: Of the replicas' secrets.
        limits: How many members a group has at most, and how fast one follows another.

    Attributes:
        number: Of the newest; 0 before the first.
        seats: Its members, in their order.
        reason: Why it has taken the place of the one before, in words.
    """

    def __init__(
        self, reduction: Reduction | None, keeper: Keeper, limits: Limits = DEFAULT
    ) -> None:
        self._reduction, self._limits = reduction, limits
        self._keeper, self._pairs = keeper, keeper.derive("pairs of replicas")
        self.number = 0
        self.seats: tuple[Seat, ...] = ()
        self.reason = ""
        self._told: dict[int, tuple[int, str]] = {}
        """What each replica has said of where it listens, and in which incarnation."""
        self._seen: tuple[int, int] = (-1, -1)
        self._tellings = 0
        self._broken_at: float | None = None

    def told(self, member: Member, url: str | None) -> None:
        """A replica says where it listens; None: it is not ready to reduce."""
        said = (member.incarnation, url) if url is not None else None
        if said is not None and self._told.get(member.id) != said:
            self._told[member.id] = said
            self._tellings += 1

    def broke(self, number: int, replica: int, now: float) -> bool:
        """A member says that a connection of a group broke: another group, if it is the newest."""
        due = self._broken_at is None or now - self._broken_at >= self._limits.heartbeat_s
        if number != self.number or not due or replica not in {seat.id for seat in self.seats}:
            return False
        self._broken_at = now
        self._replace(self.seats, f"a connection of replica {replica} to another one broke")
        return True

    def look(self, members: Membership) -> bool:
        """Whether another group has taken the place of the last one."""
        seen = (members.live_version, self._tellings)
        if self._reduction is None or seen == self._seen:
            return False
        self._seen = seen
        self._told = {one: said for one, said in self._told.items() if members.get(one)}
        ready = [
            Seat(member.id, *self._told[member.id], 0)
            for one in members.present
            if (member := members.get(one)) is not None
            and not member.is_idle
            and self._told.get(one, (0, ""))[0] == member.incarnation
        ]
        if not self.number and len(ready) < self._reduction.first:
            return False
        ready.sort(key=lambda seat: (not seat.url, seat.id))
        seats = tuple(ready[: self._limits.group_members_max])
        before = {(seat.id, seat.incarnation, seat.url): seat.since for seat in self.seats}
        keys = [(seat.id, seat.incarnation, seat.url) for seat in seats]
        if keys == list(before):
            return False
        gone = sorted({one for one, *_ in before} - {one for one, *_ in keys})
        new = sorted({one for one, *_ in keys} - {one for one, *_ in before})
        words = [f"{replicas(gone)} left out"] * bool(gone) + [f"{replicas(new)} new"] * bool(new)
        self._replace(
            [
                dataclasses.replace(seat, since=before.get(key, self.number + 1))
                for seat, key in zip(seats, keys, strict=True)
            ],
            ", ".join(words) or "somebody has come back or listens elsewhere",
        )
        return True

    def _replace(self, seats: tuple[Seat, ...] | list[Seat], why: str) -> None:
        self.number += 1
        self.seats, self.reason = tuple(seats), why

    def message(self, member: Member) -> Group:
        """The newest group as one replica is told of it: with secrets that are its own."""
        mine = [seat for seat in self.seats if seat.id == member.id]
        words = ""
        if len(self.seats) > 1 and not self.seats[0].url:
            words = (
                "replicas reduce among themselves, and none of them listens: start one with "
                "--advertise URL, where the others reach it, or on the coordinator's machine"
            )
        return Group(
            number=self.number,
            since=mine[0].since if mine else 0,
            proof=self._keeper.secret("group", self.number, 0),
            members=[
                GroupMember(
                    id=seat.id,
                    incarnation=seat.incarnation,
                    url=seat.url,
                    secret=self._secret(seat, member) if mine else "",
                )
                for seat in self.seats
            ],
            words=words,
        )

    def _secret(self, seat: Seat, member: Member) -> str:
        """What two members show each other: nobody else has it, and no other life of either."""
        one, other = sorted([(seat.id, seat.incarnation), (member.id, member.incarnation)])
        return self._pairs.secret(f"pair {one[0]}.{one[1]}", *other)
