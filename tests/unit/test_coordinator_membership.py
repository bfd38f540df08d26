"""Ids, incarnations and shard places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import limits
from pydownpour.coordinator.membership import Member, Membership
from pydownpour.coordinator.places import Places
from pydownpour.errors import ConfigError, Fenced, LimitExceeded, NotReady, RemoteProtocolError
from pydownpour.layout import partition
from pydownpour.wire.messages import Join, MemberState, ReplicaStats, ShardHello, ShardStats
from tests.fakes.coordination import histogram


def join(*, name: str = "", owner: str = "", nonce: str = "") -> Join:
    return Join(name=name, owner=owner, nonce=nonce)


def test_ids_start_at_one_and_are_never_given_twice() -> None:
    members = Membership()
    first = members.register(join(), 0.0).member
    members.leave(first.id, 1, None)
    second = members.register(join(), 0.0).member
    assert (first.id, second.id) == (1, 2)
    assert [m.name for m in members] == ["replica-1", "replica-2"]


def test_coming_back_is_a_new_incarnation_that_fences_the_old() -> None:
    members = Membership()
    members.register(join(name="a", owner="key"), 0.0)
    again = members.register(join(owner="key"), 1.0)
    assert again.rejoined
    assert (again.member.id, again.member.incarnation, again.member.joins) == (1, 2, 2)
    assert again.member.name == "a"
    with pytest.raises(Fenced, match="incarnation 2 took its place"):
        members.check(1, 1, 1.0)
    assert members.check(1, 2, 1.0) is again.member


def test_a_join_whose_answer_was_lost_is_answered_alike() -> None:
    members = Membership()
    first = members.register(join(nonce="x"), 0.0)
    again = members.register(join(nonce="x"), 1.0)
    assert again.repeated
    assert again.member is first.member
    assert again.member.incarnation == 1
    assert not members.register(join(nonce="y"), 1.0).repeated


def test_after_a_goodbye_the_same_process_may_join_anew() -> None:
    members = Membership()
    members.register(join(nonce="x"), 0.0)
    members.leave(1, 1, None)
    again = members.register(join(nonce="x"), 1.0)
    assert not again.repeated
    assert again.member.id == 2


def test_an_older_incarnations_nonce_opens_nothing() -> None:
    members = Membership()
    members.register(join(nonce="x", owner="key"), 0.0)
    members.register(join(nonce="y", owner="key"), 1.0)
    stray = members.register(join(nonce="x"), 2.0)
    assert not stray.repeated
    assert stray.member.id == 2


def test_an_id_is_given_again_only_to_who_shows_its_owner_s_key() -> None:
    members = Membership()
    victim = members.register(join(name="honest", owner="key"), 0.0).member
    for other in ("", "Key", "key ", victim.owner):
        joined = members.register(join(name="honest", owner=other), 0.0)
        assert not joined.rejoined
        assert joined.member.id != victim.id
    assert (victim.incarnation, victim.state) == (1, "live")
    assert members.register(join(owner="key"), 1.0).member is victim
    assert [m.id for m in members] == [1, 2, 3, 4, 5], "always ascending"


def test_who_is_present_follows_every_change() -> None:
    members = Membership()
    one, two = (members.register(join(owner=key), 0.0).member for key in "ab")
    assert list(members.present) == [1, 2]
    members.change(one, "suspect")
    assert list(members.present) == [1, 2]
    members.change(one, "dead")
    assert list(members.present) == [2]
    members.check(one.id, one.incarnation, 1.0)
    assert list(members.present) == [1, 2]
    members.leave(two.id, two.incarnation, None)
    assert list(members.present) == [1]
    members.register(join(owner="b"), 2.0)
    assert list(members.present) == [1, 2]


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["live", "dead", "left"]))))
def test_who_is_present_is_whoever_is_live(changes: list[tuple[int, MemberState]]) -> None:
    members = Membership()
    for _ in range(6):
        members.register(join(), 0.0)
    for number, state in changes:
        member = members.get(number)
        assert member is not None
        if (member.state, state) != ("left", "dead"):
            members.change(member, state)
        assert list(members.present) == [m.id for m in members.where(lambda m: m.is_present)]
        assert members.present_count == len(members.present)


def test_that_one_comes_or_goes_costs_no_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = Membership()
    for _ in range(300):
        members.register(join(), 0.0)
    is_present, looks = Member.is_present.fget, list[int]()  # type: ignore[attr-defined]

    def looked(self: Member) -> bool:
        looks.append(self.id)
        return bool(is_present(self))

    monkeypatch.setattr(Member, "is_present", property(looked))
    for number in range(1, 101):
        members.leave(number, 1, None)
        assert members.present_count == len(members.present) == 300 - number
    assert looks == list(range(1, 101))


@pytest.mark.parametrize("name", ["a" * 65, "a b", "../x", "é", "a/b", "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match="must be 1 to 64 of the characters"):
        Membership().register(join(name=name), 0.0)


def test_too_many_replicas() -> None:
    members = Membership(limits.Limits(replicas_max=2))
    members.register(join(), 0.0)
    members.register(join(owner="key"), 0.0)
    with pytest.raises(LimitExceeded, match="replicas_max"):
        members.register(join(), 0.0)
    assert members.register(join(owner="key"), 0.0).rejoined, "an old id is still welcome"


def test_counts_add_up_over_incarnations() -> None:
    members = Membership()
    member = members.register(join(owner="key"), 0.0).member
    member.current = ReplicaStats(
        steps=5, staleness=histogram(0, 0, 0, 2), loss=9.0, waited_work_s=1.5
    )
    members.register(join(owner="key"), 1.0)
    assert member.stats.steps == 5
    member.current = ReplicaStats(steps=2, staleness=histogram(2, 2, 2, 2), loss=1.0)
    assert member.stats.steps == 7
    assert member.stats.staleness == histogram(0, 0, 0, 2, 2, 2, 2, 2)
    assert member.stats.loss == 1.0
    assert member.stats.waited_work_s == 1.5


def test_who_left_or_never_came_is_fenced_and_goodbye_may_be_repeated() -> None:
    members = Membership()
    members.register(join(), 0.0)
    members.leave(1, 1, ReplicaStats(steps=3))
    members.leave(1, 1, ReplicaStats(steps=0))
    assert members.where(lambda m: m.state == "left")[0].stats.steps == 3
    with pytest.raises(Fenced, match="has left"):
        members.check(1, 1, 0.0)
    for number in (2, 0):
        with pytest.raises(Fenced, match="never joined"):
            members.check(number, 1, 0.0)
    with pytest.raises(Fenced, match="not a member"):
        members.leave(1, 2, None)


def new_places(count: int = 2) -> Places:
    return Places(partition(1000, count))


def hello(nonce: str, index: int | None = None) -> ShardHello:
    return ShardHello(url=f"http://{nonce}", nonce=nonce, index=index)


def test_shards_get_free_places_or_the_wanted_one() -> None:
    places = new_places(3)
    assert places.place(hello("b", 1), 0.0, running=False)[0].index == 1
    assert places.place(hello("a"), 0.0, running=False)[0].index == 0
    assert places.waiting_for() == "shard 2 to start and shards 0, 1 to load parameters"
    assert places.place(hello("a"), 1.0, running=False) == (places.get(0), True)
    assert [e.start for e in places.entries] == [s.start for s in places]


def test_a_place_that_is_taken() -> None:
    places = new_places()
    places.place(hello("a", 0), 0.0, running=False)
    with pytest.raises(NotReady, match=r"shard 0 .* has that place; it was last heard 1.5 s ago"):
        places.place(hello("x", 0), 1.5, running=False)
    with pytest.raises(ConfigError, match="has that place"):
        places.place(hello("x", 0), 1.5, running=True)
    with pytest.raises(ConfigError, match=r"outside this job of 2 shards \(0 to 1\)"):
        places.place(hello("x", 2), 0.0, running=False)
    places.place(hello("b"), 1.0, running=False)
    with pytest.raises(NotReady, match=r"2 shards are all there; shard 0 .* last heard 2.0 s ago"):
        places.place(hello("x"), 2.0, running=False)
    with pytest.raises(ConfigError, match="2 shards are all there; start its coordinator with mo"):
        places.place(hello("x"), 2.0, running=True)


def test_ready_once_and_dead_for_good_only_when_it_may_hold_updates() -> None:
    places = new_places()
    places.place(hello("a", 0), 0.0, running=False)
    assert places.heard(0, ShardStats(ready=False), 0.0)[1] is False
    assert places.heard(0, ShardStats(ready=True), 0.0)[1] is True
    assert places.heard(0, ShardStats(ready=True), 0.0)[1] is False
    assert places.lost(0, holds_updates=False).state == "missing"
    with pytest.raises(Fenced, match="lost its place"):
        places.heard(0, None, 0.0)
    assert places.place(hello("b", 0), 0.0, running=False)[0].state == "loading"
    assert places.lost(0, holds_updates=True).state == "dead"
    with pytest.raises(RemoteProtocolError, match="no shard 7"):
        places.heard(7, None, 0.0)


def test_a_shard_that_never_loads_is_overdue() -> None:
    places = new_places()
    places.place(hello("a", 0), 0.0, running=False)
    assert places.overdue(limits.DEFAULT.join_patience_s - 1) == []
    assert [s.index for s in places.overdue(limits.DEFAULT.join_patience_s)] == [0]


def test_of_those_who_are_gone_the_oldest_become_a_sum() -> None:
    members = Membership(limits.Limits(replicas_gone_max=2))
    for now in range(6):
        member = members.register(join(owner=f"key {now}", nonce=f"n{now}"), float(now)).member
        member.current = ReplicaStats(steps=10 + now, samples=1, staleness=histogram(now), loss=0.5)
        member.rss_peak_bytes = now
    for replica in (1, 2, 4, 5):
        members.leave(replica, 1, None)
    assert members.forget(100.0) == [], "they are kept for a while, however many they are"
    members.change(members.where(lambda m: m.id == 6)[0], "dead")
    forgotten = members.forget(limits.DEFAULT.replica_gone_s + 2.0)
    assert [member.id for member in forgotten] == [1, 2]
    assert [member.id for member in members] == [3, 4, 5, 6]
    assert members.forgotten.replicas == 2
    assert members.forgotten.stats.steps == 21
    assert members.forgotten.stats.staleness == histogram(0, 1)
    assert members.forgotten.rss_peak_bytes == 1
    assert sum(counts.steps for counts in members.counts) == sum(range(10, 16))
    ids = members.known_ids()
    assert (ids.version, ids.next, ids.ranges) == (2, 7, [(3, 7)])
    with pytest.raises(Fenced, match="replica 2 is gone for long and forgotten"):
        members.check(2, 1, 0.0)
    again = members.register(join(owner="key 0", nonce="n0"), 200.0)
    assert (again.repeated, again.rejoined, again.member.id) == (False, False, 7)


def test_more_ranges_than_fit_are_joined_which_only_keeps_somebody_longer() -> None:
    members = Membership(limits.Limits(replicas_gone_max=0, id_ranges_max=2))
    for _ in range(9):
        members.register(join(), 0.0)
    for replica in (2, 4, 6, 8):
        members.leave(replica, 1, None)
    assert len(members.forget(1000.0)) == 4
    assert members.known_ids().ranges == [(1, 2), (3, 10)]


def test_the_nonce_of_a_later_member_is_not_forgotten_with_an_earlier_one() -> None:
    members = Membership(limits.Limits(replicas_gone_max=0))
    members.register(join(nonce="x"), 0.0)
    members.leave(1, 1, None)
    members.register(join(nonce="x"), 0.0)
    assert [member.id for member in members.forget(1000.0)] == [1]
    assert members.register(join(nonce="x"), 1000.0).repeated


def test_shards_are_told_who_is_there_and_has_work() -> None:
    members = Membership()
    for _ in range(5):
        members.register(join(), 0.0)
    first = members.live_ids()
    assert (first.next, first.ranges) == (6, [(1, 6)])
    assert members.live_ids() is first
    idle = members.get(3)
    assert idle is not None
    members.set_idle(idle, True)
    members.leave(5, 1, None)
    second = members.live_ids()
    assert (second.ranges, second.version > first.version) == ([(1, 3), (4, 5)], True)
    members.set_idle(idle, False)
    assert members.live_ids().ranges == [(1, 5)]


def test_of_too_many_ranges_the_first_are_told() -> None:
    """Nobody waits for those that are not: better than for somebody who is gone."""
    members = Membership(limits.Limits(id_ranges_max=2))
    for _ in range(7):
        members.register(join(), 0.0)
    for gone in (2, 4, 6):
        members.leave(gone, 1, None)
    assert members.live_ids().ranges == [(1, 2), (3, 4)]
