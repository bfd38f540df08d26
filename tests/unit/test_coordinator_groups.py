"""Which replicas reduce among themselves: groups, their numbers, and who is told what."""

from __future__ import annotations

from pydownpour.coordinator.groups import Groups
from pydownpour.coordinator.membership import Member, Membership
from pydownpour.limits import DEFAULT
from pydownpour.policy import Reduction
from pydownpour.wire.messages import Join
from pydownpour.wire.proof import Keeper

KEEPER = Keeper(bytes(32))


class Cast:
    """Members that say where they listen."""

    def __init__(self, first: int = 1) -> None:
        self.members = Membership()
        self.groups = Groups(Reduction(first=first), KEEPER)

    def join(self, url: str | None = "", owner: str = "") -> Member:
        member = self.members.register(Join(owner=owner), 0.0).member
        self.groups.told(member, url)
        return member

    @property
    def order(self) -> list[int]:
        self.groups.look(self.members)
        return [seat.id for seat in self.groups.seats]


def test_who_listens_comes_first_and_who_is_not_ready_is_not_in_it() -> None:
    cast = Cast()
    for url in ("", "http://b", None, "http://d"):
        cast.join(url)
    assert cast.order == [2, 4, 1]
    assert cast.groups.number == 1
    assert not cast.groups.look(cast.members), "nothing has changed"


def test_who_has_no_work_leaves_or_is_given_up_is_not_in_the_next() -> None:
    cast = Cast()
    members = [cast.join(f"http://{i}") for i in range(4)]
    assert cast.order == [1, 2, 3, 4]
    cast.members.set_idle(members[0], True)
    assert cast.order == [2, 3, 4]
    cast.members.change(members[1], "dead")
    assert cast.order == [3, 4]
    assert "replica 2 left out" in cast.groups.reason
    cast.members.leave(3, 1, None)
    assert cast.order == [4]
    cast.members.set_idle(members[0], False)
    assert cast.order == [1, 4]
    assert [seat.since for seat in cast.groups.seats] == [5, 1], "1 was left out in between"
    assert cast.groups.reason == "replica 1 new"


def test_another_life_is_another_member_once_it_is_ready() -> None:
    cast = Cast()
    cast.join("http://a")
    cast.join("http://b", owner="b")
    assert cast.order == [1, 2]
    again = cast.members.register(Join(owner="b"), 1.0).member
    cast.groups.told(again, "http://b2")
    assert cast.order == [1, 2]
    assert [(seat.incarnation, seat.since) for seat in cast.groups.seats] == [(1, 1), (2, 2)]


def test_the_first_group_waits_for_as_many_as_the_job_says() -> None:
    cast = Cast(first=3)
    first = cast.join("http://a")
    cast.join("http://b")
    assert cast.order == []
    assert cast.groups.message(first).number == 0
    cast.join("http://c")
    assert cast.order == [1, 2, 3]
    cast.members.change(first, "dead")
    assert cast.order == [2, 3], "later ones have whoever there is"


def test_a_connection_that_broke_makes_a_new_group_of_the_same_members_and_not_too_fast() -> None:
    cast = Cast()
    cast.join("http://a")
    cast.join("http://b")
    assert cast.order == [1, 2]
    assert not cast.groups.broke(1, 9, 0.0), "of nobody's"
    assert cast.groups.broke(1, 2, 0.0)
    assert not cast.groups.broke(1, 1, 0.0), "it was the one before"
    assert (cast.groups.number, cast.order) == (2, [1, 2])
    assert [seat.since for seat in cast.groups.seats] == [1, 1]
    assert not cast.groups.broke(2, 1, DEFAULT.heartbeat_s / 2)
    assert cast.groups.broke(2, 1, DEFAULT.heartbeat_s)


def test_each_two_share_a_secret_that_nobody_else_is_told() -> None:
    cast = Cast()
    members = [cast.join(f"http://{i}") for i in range(3)]
    assert cast.order == [1, 2, 3]
    told = [cast.groups.message(member) for member in members]
    secrets = {(m.id, to.id): to.secret for m, group in zip(members, told, strict=True)
               for to in group.members}  # fmt: skip
    assert secrets[1, 2] == secrets[2, 1]
    assert len({secrets[1, 2], secrets[1, 3], secrets[2, 3]}) == 3
    assert {group.proof for group in told} == {KEEPER.secret("group", 1, 0)}
    stranger = cast.join(None)
    assert cast.groups.message(stranger).since == 0
    assert not any(one.secret for one in cast.groups.message(stranger).members)


def test_where_nobody_listens_that_is_said() -> None:
    cast = Cast()
    alone = cast.join("")
    assert cast.order == [1]
    assert not cast.groups.message(alone).words, "one needs nobody"
    cast.join("")
    assert cast.order == [1, 2]
    assert "--advertise" in cast.groups.message(alone).words
