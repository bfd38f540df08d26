"""Waits as events: each is news once, whatever heartbeat is lost or comes twice."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydownpour.coordinator.waits import WaitNews
from pydownpour.limits import DEFAULT
from pydownpour.waits import WaitEntry, Waits, WaitsEntry
from pydownpour.wire.messages import Heartbeat, ShardStats
from tests.fakes.coordination import Cast

LONG = DEFAULT.wait_notable_s


class Teller:
    """One shard's waits, and who hears of them."""

    def __init__(self, **limits: Any) -> None:
        self.limits = dataclasses.replace(DEFAULT, **limits)
        self.waits, self.news = Waits(self.limits), WaitNews(self.limits)
        self.now = 0.0

    def entry(self) -> WaitsEntry:
        return self.waits.entry(lambda: self.now)

    def heard(self, entry: WaitsEntry | None = None) -> list[tuple[str, int, float]]:
        """What is new: (event, whose, how long)."""
        found = self.news.heard(0, entry or self.entry(), self.now)
        return [(event, fields["replica"], fields["seconds"]) for event, fields in found]


def test_a_wait_is_an_event_when_it_is_notable_and_when_it_ends() -> None:
    teller = Teller()
    teller.waits.held("a", 1, (2,), "round 3 waits for replica 2", 0.0)
    teller.now = LONG - 0.1
    assert teller.heard() == []
    teller.now = LONG
    (wait,) = teller.news.heard(5, teller.entry(), teller.now)
    assert wait == (
        "wait",
        {"shard": 5, "replica": 1, "on": [2], "seconds": LONG,
         "reason": "round 3 waits for replica 2"},
    )  # fmt: skip
    assert teller.heard() == [("wait", 1, LONG)], "another shard's is another one"
    teller.now += 9.0
    assert teller.heard() == []
    teller.waits.let_go("a", 1, teller.now)
    assert teller.heard() == [("wait over", 1, LONG + 9.0)]
    assert teller.heard() == []


def test_what_comes_twice_or_not_at_all_is_told_once() -> None:
    teller = Teller()
    for number in range(3):
        teller.waits.held("a", 1, (2,), "", teller.now)
        teller.now += LONG + number
        teller.waits.let_go("a", 1, teller.now)
    entry = teller.entry()
    assert teller.heard(entry) == [("wait over", 1, LONG + number) for number in range(3)]
    assert teller.heard(entry) == []


def test_a_wait_whose_end_is_not_told_lasted_at_least_as_long_as_was_seen() -> None:
    """Its shard has none of it any more: others have ended since, or its process was replaced."""
    teller = Teller()
    teller.waits.held("a", 1, (2,), "", 0.0)
    teller.now = LONG
    assert teller.heard() == [("wait", 1, LONG)]
    ((event, fields),) = teller.news.heard(0, WaitsEntry(), teller.now)
    assert (event, fields["seconds"], fields["at_least"]) == ("wait over", LONG, True)


def test_events_are_bounded_in_rate_and_the_next_says_how_many_are_missing() -> None:
    teller = Teller(wait_events_max=2, wait_events_s=100.0)
    told = []
    for number in range(60):
        teller.now = 5.0 * number
        teller.waits.held("a", 1, (2,), "", teller.now)
        teller.waits.let_go("a", 1, teller.now + LONG)
        told += [fields for _, fields in teller.news.heard(0, teller.entry(), teller.now)]
    assert len(told) == 6
    assert [fields.get("not_told") for fields in told] == [None, None, 18, None, 18, None]


def test_a_job_s_events_have_them() -> None:
    cast = Cast()
    cast.shards_ready()
    cast.job.take_events(cast.now)
    wait = WaitEntry(1, 1, [2], LONG, "round 0 waits for replica 2")
    stats = ShardStats(index=0, ready=True, waits=WaitsEntry(count=1, open_count=1, open=[wait]))
    place = cast.job.places.get(0)
    beat = Heartbeat(
        role="shard", id=0, incarnation=place.incarnation, shard=stats,
        secret=cast.job.keeper.secret("shard", 0, place.incarnation),
    )  # fmt: skip
    cast.job.heartbeat(beat, cast.now)
    (event,) = cast.job.take_events(cast.now)
    assert (event["event"], event["shard"], event["on"]) == ("wait", 0, [2])
