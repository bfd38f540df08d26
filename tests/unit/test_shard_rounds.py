"""A shard's rule at work: clocks, who is live, when a round is closed, who is woken."""

from __future__ import annotations

import asyncio
import json
import random

import numpy as np
import pytest

from pydownpour import _core
from pydownpour.errors import LimitExceeded, LocalProtocolError
from pydownpour.limits import Limits
from pydownpour.policy import Accumulate, Apply, NotYet, Policy, PushInfo, Wait
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.hard_sync import HardSync
from pydownpour.shard.rounds import Clocks, Rounds
from pydownpour.shard.switching import Ruling
from pydownpour.shard.turns import Turns
from pydownpour.wire.messages import LiveIds, PolicyEntry
from tests.fakes.policies import EveryFew

LEN, FRAGMENT_LEN = 64, 32


def store_of(lr: float = 1.0, size: int = LEN) -> _core.Shard:
    sgd = _core.Optimizer([("sgd", {"lr": lr})])
    return _core.Shard(
        len=size, stripe_len=16, fragment_len=FRAGMENT_LEN, optimizer=sgd, accumulates=True
    )


def ruling_of(policy: Policy, version: int = 1) -> Ruling:
    users = (lambda: (type(policy),)) if policy.name == "everyfew" else None
    return Ruling.of(PolicyEntry(version=version, settings=policy.to_wire()), users)


def rounds_of(policy: Policy) -> tuple[Rounds, _core.Shard]:
    store = store_of()
    return Rounds(ruling_of(policy), store, Turns()), store


class Full:
    """A store that has no room for a second fragment, twice."""

    def __init__(self, store: _core.Shard) -> None:
        self._store, self.left = store, 2

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def close_round(self, fragment: int, round: int, *, factor: float | None) -> object:
        if fragment == 1 and self.left:
            self.left -= 1
            raise LimitExceeded("no room")
        return self._store.close_round(fragment, round, factor=factor)


def live(version: int, *ranges: tuple[int, int], next_id: int = 9) -> LiveIds:
    return LiveIds(version=version, next=next_id, ranges=list(ranges))


def give(rounds: Rounds, store: _core.Shard, replica: int, value: float = -1.0) -> None:
    """A push of one value arrives, whole."""
    push = PushInfo(replica, 1, 4, 1.0, rounds.round)
    rounds.announced(push)
    for fragment in range(store.fragments):
        gradient = np.full(FRAGMENT_LEN, value, np.float32)
        store.apply(fragment, gradient, _core.DTYPE_F32, round=rounds.round)
    rounds.arrived(push)


def values(store: _core.Shard) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    read = np.empty(LEN, np.float32)
    store.read(read)
    return read


def test_clocks_agree_with_a_slow_twin() -> None:
    rng = random.Random(1)
    clocks, of, ids, least, spread = Clocks(), dict[int, int](), set[int](), 0, 0
    for _ in range(3000):
        what = rng.random()
        if what < 0.05:
            ids = set(rng.sample(range(1, 12), rng.randint(0, 8)))
            of = {one: clock for one, clock in of.items() if one in ids}
            clocks.heard(sorted(ids))
        elif what < 0.1 and (new := max(ids, default=0) + 1):
            ids.add(new)
            clocks.joined(new)
        elif what < 0.15:
            who = rng.randint(1, 12)
            of.pop(who, None)
            clocks.begins(who)
        else:
            who = rng.randint(1, 12)
            step = max(0, of.get(who, least) + rng.choice((0, 1, 1, 2, -1)))
            moves = who in ids and (who not in of or step > of[who])
            assert clocks.reached(who, step) == moves
            if moves:
                is_ahead = max(step, least) > max(of.values(), default=least)
                of[who] = max(step, least)
                if is_ahead:
                    spread = max(spread, of[who] - min(of.values()))
        assert clocks.live == tuple(sorted(ids))
        least = max(least, min(of.values(), default=0))
        most = max(of.values(), default=least)
        assert (clocks.of, clocks.least, clocks.most) == (of, least, most)
        assert clocks.spread_max == spread
        for clock in (least, least + 1, least + 3):
            behind = tuple(one for one in sorted(ids) if of.get(one, clock) < clock)
            assert clocks.behind(clock) == behind
        if what > 0.99:
            moved = Clocks()
            moved.load(clocks.least, list(clocks.of.items()))
            moved.heard(sorted(ids))
            moved.spread_max, clocks = spread, moved


async def test_a_round_is_closed_when_the_last_live_replica_has_given() -> None:
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 3)))
    give(rounds, store, 1, -2.0)
    await asyncio.sleep(0)
    assert (rounds.round, store.version(0)) == (0, 0)
    assert rounds.waits_for(1, 0) == Wait("round 0 waits for {on}", on=(2,))
    give(rounds, store, 2, -4.0)
    await asyncio.sleep(0)
    assert (rounds.round, rounds.closed, store.version(0)) == (1, 1, 1)
    np.testing.assert_array_equal(values(store), 3.0)
    assert rounds.waits_for(1, 0) is None


async def test_whoever_is_gone_is_waited_for_no_more_and_whoever_waits_is_woken() -> None:
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 4)))
    woken = asyncio.Event()
    rounds.waiting["reader"] = woken.set
    give(rounds, store, 1)
    give(rounds, store, 3)
    await asyncio.sleep(0)
    assert woken.is_set()  # something moved, and it still waits
    assert rounds.waits_for(1, 0) == Wait("round 0 waits for {on}", on=(2,))
    rounds.heard(live(2, (1, 2), (3, 4)))
    await asyncio.sleep(0)
    assert rounds.round == 1


async def test_before_the_coordinators_first_word_nothing_is_closed() -> None:
    rounds, store = rounds_of(HardSync())
    give(rounds, store, 1)
    await asyncio.sleep(0)
    assert rounds.round == 0
    rounds.heard(live(1, (1, 2)))
    await asyncio.sleep(0)
    assert rounds.round == 1


async def test_a_newcomer_is_live_before_the_coordinator_says_so() -> None:
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 2), next_id=2))
    rounds.joined(2, anew=False)
    rounds.joined(1, anew=True)
    assert rounds.view.live == (1, 2)
    give(rounds, store, 1)
    await asyncio.sleep(0)
    assert rounds.round == 0
    rounds.heard(live(2, (1, 2), next_id=3))  # it came, and has no work
    await asyncio.sleep(0)
    assert rounds.round == 1


async def test_a_fetch_waits_for_clocks_but_not_for_the_gone() -> None:
    rounds, _ = rounds_of(EveryFew())
    rounds.heard(live(1, (1, 3)))
    for replica, clock in ((2, 3), (1, 5)):
        rounds.finished(replica, clock)
    assert rounds.waits_for(0, 4) == Wait("{on} to finish 4 steps", on=(2,))
    assert (rounds.waits_for(0, 3), rounds.shown.least_clock) == (None, 3)
    assert await rounds.reached(1, 0, 4, 0.001) == "replica 2 to finish 4 steps"
    waiting = asyncio.create_task(rounds.reached(1, 0, 4, 60.0))
    await asyncio.sleep(0)
    rounds.finished(2, 4)
    assert await waiting == ""
    assert rounds.waiting == {}


async def test_what_is_open_at_the_end_is_applied() -> None:
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 9)))
    await rounds.finish()
    assert rounds.round == 0  # nothing was open
    give(rounds, store, 1, -2.0)
    await rounds.finish()
    np.testing.assert_array_equal(values(store), 2.0)
    assert rounds.round == 1


async def test_a_round_for_which_there_is_no_block_is_closed_a_moment_later() -> None:
    store = store_of()
    full = Full(store)
    rounds = Rounds(ruling_of(HardSync()), full, Turns())  # type: ignore[arg-type]
    rounds.heard(live(1, (1, 2)))
    give(rounds, store, 1, -2.0)
    await asyncio.sleep(0)
    assert (rounds.round, store.version(0), store.version(1)) == (0, 1, 0)
    assert rounds.announced(PushInfo(1, 2, 4, 1.0, 0)) == NotYet("round 0 to be applied")
    async with asyncio.timeout(60):
        while rounds.round == 0:
            await asyncio.sleep(0.01)
    assert (store.version(0), store.version(1), full.left) == (1, 1, 0)


async def test_a_sum_that_is_not_finite_is_dropped_and_the_next_round_opens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds, store = rounds_of(HardSync(combine="sum"))
    rounds.heard(live(1, (1, 3)))
    give(rounds, store, 1, -3e38)
    give(rounds, store, 2, -3e38)
    await asyncio.sleep(0)
    assert (rounds.round, rounds.dropped) == (1, 2)
    assert "round 0, fragment 0: " in caplog.text
    np.testing.assert_array_equal(values(store), 0.0)


def test_whoever_begins_or_comes_back_is_waited_for_from_the_least_clock_on() -> None:
    """Nobody makes up for steps that others did while it was not there."""
    clocks = Clocks()
    clocks.heard((1, 2))
    clocks.reached(1, 0)
    clocks.reached(2, 0)
    clocks.reached(1, 7)
    clocks.reached(2, 6)
    clocks.joined(3)
    assert clocks.behind(7) == (2,), "who has told nothing yet is not waited for"
    clocks.reached(3, 0)
    assert (clocks.of[3], clocks.behind(7)) == (6, (2, 3))
    clocks.heard((1,))
    assert (clocks.least, clocks.of) == (7, {1: 7})
    clocks.heard((1, 2))
    clocks.reached(2, 6)
    assert clocks.of == {1: 7, 2: 7}
    clocks.reached(1, 9)
    clocks.begins(2)
    assert clocks.least == 9, "a new life has done nothing yet"
    clocks.reached(2, 0)
    assert clocks.of[2] == 9
    clocks.heard(())
    assert clocks.least == 9


async def test_a_large_round_is_closed_in_as_many_turns_as_it_takes() -> None:
    """A turn closes as much as its budget allows; pushes wait, and fetches are told for what."""
    count = 200
    store = store_of(size=count * FRAGMENT_LEN)
    turns = Turns(Limits(turn_events_max=16, stream_events_max=4))
    rounds = Rounds(ruling_of(HardSync()), store, turns)
    rounds.heard(live(1, (1, 2)))
    give(rounds, store, 1, -2.0)
    woken: list[int] = []
    rounds.waiting["reader"] = lambda: woken.append(rounds.round)
    closed = [0]
    while rounds.round == 0:
        await asyncio.sleep(0)
        closed.append(sum(store.version(fragment) for fragment in range(count)))
        if 0 < closed[-1] < count:
            assert rounds.announced(PushInfo(1, 2, 4, 1.0, 0)) == NotYet("round 0 to be applied")
            assert rounds.waits_for(1, 0) == Wait("round 0 to be applied")
            assert woken == [0], "while it goes on there is nothing new for anybody"
    assert max(np.diff(closed)) <= 4
    assert len(closed) >= count / 4
    assert woken[-1] == 1
    assert (rounds.waits_for(1, 0), closed[-1]) == (None, count)


async def test_a_round_that_is_being_closed_moves_with_its_shard() -> None:
    small = Limits(turn_events_max=2, stream_events_max=1)
    old, store = Rounds(ruling_of(HardSync()), store_of(), Turns(small)), store_of()
    old._store = store
    old.heard(live(1, (1, 2)))
    give(old, store, 1, -2.0)
    await asyncio.sleep(0)
    assert (store.version(0), store.version(1), old.round) == (1, 0, 0)
    old.stop()
    new = Rounds(ruling_of(HardSync()), store, Turns(small))
    new.stop()
    new.load(old.export())
    await asyncio.sleep(0.01)
    assert (store.version(1), old.round, new.round) == (0, 0, 0), "neither has the shard"
    new.heard(live(1, (1, 2)))
    new.go_on()
    while new.round == 0:
        await asyncio.sleep(0)
    assert (store.version(0), store.version(1), old.round) == (1, 1, 0)


async def test_the_last_round_is_closed_before_the_last_read_however_large_it_is() -> None:
    store = store_of(size=50 * FRAGMENT_LEN)
    rounds = Rounds(ruling_of(HardSync()), store, Turns(Limits(turn_events_max=2)))
    rounds.heard(live(1, (1, 9)))
    give(rounds, store, 1, -2.0)
    await rounds.finish()
    assert rounds.round == 1
    assert [store.version(fragment) for fragment in range(50)] == [1] * 50
    assert rounds.waiting == {}


async def test_at_a_newer_policy_what_is_open_is_one_update_and_the_count_goes_on() -> None:
    rounds, store = rounds_of(HardSync(combine="sum"))
    rounds.heard(live(1, (1, 3)))
    give(rounds, store, 1, -2.0)
    heard: list[str] = []
    rounds.on_event = lambda event, push: heard.append(event)
    rounds.go_over(PolicyEntry(version=3, settings=Downpour().to_wire()))
    rounds.go_over(PolicyEntry(version=2, settings=HardSync().to_wire()))  # an older one
    assert rounds.round == 0, "between two records, not within one"
    await asyncio.sleep(0)
    np.testing.assert_array_equal(values(store), 2.0)
    assert (rounds.policy.version, rounds.round, rounds.switches) == (3, 1, 1)
    assert heard == ["switching", "closing", "switched"]
    assert rounds.announced(PushInfo(2, 1, 4, 1.0, 0)) == Apply()
    rounds.go_over(PolicyEntry(version=4, settings=HardSync(combine="sum").to_wire()))
    await asyncio.sleep(0)
    assert rounds.announced(PushInfo(2, 1, 4, 1.0, 1)) == Accumulate(1), "it has not gone back"
    give(rounds, store, 1, -1.0)
    give(rounds, store, 2, -1.0)
    await asyncio.sleep(0)
    np.testing.assert_array_equal(values(store), 4.0)
    assert rounds.closed == 2


async def test_a_record_for_a_round_that_a_switch_has_ended_is_turned_down() -> None:
    """Its push was announced, and nothing of it had come."""
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 3)))
    decision = rounds.announced(PushInfo(1, 1, 4, 1.0, 0))
    assert decision == Accumulate(0)
    rounds.go_over(PolicyEntry(version=2, settings=Downpour().to_wire()))
    await asyncio.sleep(0)
    assert (rounds.round, rounds.closed) == (1, 0), "the round was empty: no update"
    with pytest.raises(LocalProtocolError, match="at round 1"):
        store.apply(0, np.ones(FRAGMENT_LEN, np.float32), _core.DTYPE_F32, round=0)
    assert rounds.announced(PushInfo(1, 1, 4, 1.0, 0)) == Apply()


async def test_nobody_waits_at_a_gate_of_another_policy_than_the_shard_s() -> None:
    rounds, store = rounds_of(HardSync())
    rounds.heard(live(1, (1, 3)))
    give(rounds, store, 1)
    woken = asyncio.Event()
    rounds.waiting["reader"] = woken.set
    assert rounds.waits_for(1, 0, policy=1, replica=1) == Wait("round 0 waits for {on}", on=(2,))
    assert rounds.waits_for(1, 0, policy=2, replica=1) is None, "it has gone over before us"
    assert rounds.waits_for(1, 0, policy=1, replica=2) is None, "the round waits for that one"
    rounds.go_over(PolicyEntry(version=2, settings=Downpour().to_wire()))
    await asyncio.sleep(0)
    assert woken.is_set()
    assert rounds.waits_for(9, 9, policy=1, replica=1) is None, "it has not heard of it yet"
    assert rounds.waits_for(9, 0, policy=2, replica=1) is None, "nobody closes rounds"


async def test_a_round_without_room_is_closed_before_the_policy_changes() -> None:
    store = store_of()
    full = Full(store)
    rounds = Rounds(ruling_of(HardSync()), full, Turns())  # type: ignore[arg-type]
    rounds.heard(live(1, (1, 3)))
    give(rounds, store, 1, -2.0)
    rounds.go_over(PolicyEntry(version=2, settings=Downpour().to_wire()))
    await asyncio.sleep(0)
    assert (rounds.policy.version, store.version(0), store.version(1)) == (1, 1, 0)
    assert isinstance(rounds.announced(PushInfo(2, 1, 4, 1.0, 0)), NotYet)
    while rounds.policy.version == 1:
        await asyncio.sleep(0.01)
    np.testing.assert_array_equal(values(store), 2.0)
    assert rounds.closed == 1


async def test_accumulators_are_made_when_a_policy_needs_them_and_not_before() -> None:
    sgd = _core.Optimizer([("sgd", {"lr": 1.0})])
    store = _core.Shard(len=LEN, stripe_len=16, fragment_len=FRAGMENT_LEN, optimizer=sgd)
    rounds = Rounds(ruling_of(Downpour()), store, Turns())
    rounds.go_over(PolicyEntry(version=2, settings=Downpour(push_every=2).to_wire()))
    await asyncio.sleep(0)
    assert (rounds.policy.version, store.memory()["accumulators"]) == (2, 0)
    rounds.go_over(PolicyEntry(version=3, settings=HardSync().to_wire()))
    await asyncio.sleep(0)
    assert (rounds.policy.version, store.memory()["accumulators"]) == (3, 4 * LEN)


async def test_a_policy_that_this_process_does_not_know_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds, _ = rounds_of(HardSync())
    rounds.go_over(PolicyEntry(version=2, settings={"name": "theirs"}))
    await asyncio.sleep(0)
    assert rounds.policy.version == 1
    assert "version 2 of the job's policy is not obeyed: unknown policy 'theirs'" in caplog.text


async def test_another_process_goes_on_under_the_policy_that_the_first_obeyed() -> None:
    rounds, store = rounds_of(Downpour())
    rounds.heard(live(1, (1, 3)))
    rounds.go_over(PolicyEntry(version=5, settings=HardSync().to_wire()))
    await asyncio.sleep(0)
    give(rounds, store, 1, -2.0)
    rounds.stop()
    rounds.go_over(PolicyEntry(version=6, settings=Downpour().to_wire()))  # it will hear of it
    other = store_of()
    after = Rounds(ruling_of(Downpour(), version=6), other, Turns())
    other.import_state([store.export_state()])
    after.load(json.loads(json.dumps(rounds.export())))
    assert (after.policy, after.round) == (rounds.policy, 0)
    assert after.policy == PolicyEntry(version=5, settings=HardSync().to_wire())
    after.heard(live(1, (1, 3)))
    after.go_over(PolicyEntry(version=6, settings=Downpour().to_wire()))
    await asyncio.sleep(0)
    np.testing.assert_array_equal(values(other), 2.0)
    assert after.policy.version == 6
