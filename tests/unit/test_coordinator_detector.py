"""Failure detection: when silence is believed, and when the coordinator doubts itself."""

from __future__ import annotations

import pytest

from pydownpour.coordinator.detector import Detector, Role, Watched
from pydownpour.limits import Limits

BEAT_S = 0.5


def detector(*watched: Watched, now: float = 0.0) -> Detector:
    made = Detector(Limits(suspect_s=2.0, dead_s=3.0, mass_silence_s=60.0, deaf_s=1.0))
    for who in watched:
        made.seen(who, now)
    return made


def beat(made: Detector, *whom: Watched, since: float, until: float) -> None:
    """Each sends a heartbeat every half second, the last one at ``until``."""
    for step in range(int((until - since) / BEAT_S), -1, -1):
        for who in whom:
            made.seen(who, until - step * BEAT_S)


def replicas(*ids: int) -> list[Watched]:
    return [("replica", number) for number in ids]


def states(made: Detector, now: float) -> list[tuple[Role, int, str]]:
    return [(*change.who, change.state) for change in made.judge(now).changes]


def test_silence_makes_suspect_then_dead_and_says_how_long() -> None:
    made = detector(*replicas(1, 2, 3))
    beat(made, *replicas(2, 3), since=0.0, until=1.9)
    assert states(made, 1.9) == []
    assert states(made, 2.0) == [("replica", 1, "suspect")]
    assert states(made, 2.0) == [], "said once"
    beat(made, *replicas(2, 3), since=1.9, until=3.0)
    (change,) = made.judge(3.0).changes
    assert change.state == "dead"
    assert change.reason == "no sign of life for 3.0 s, the limit is 3 s"


def test_a_suspect_that_speaks_is_live_again() -> None:
    made = detector(*replicas(1, 2))
    beat(made, ("replica", 2), since=0.0, until=2.0)
    assert states(made, 2.0) == [("replica", 1, "suspect")]
    assert made.seen(("replica", 1), 2.5)
    assert states(made, 3.0) == []


@pytest.mark.parametrize("others", [[("shard", 0)], [("shard", 0), ("replica", 2)], []])
def test_a_lone_death_is_noticed_in_the_smallest_jobs(others: list[Watched]) -> None:
    made = detector(("replica", 1), *others)
    beat(made, *others, since=0.0, until=3.0)
    assert states(made, 3.0) == [("replica", 1, "dead")]


def test_when_more_than_half_fall_silent_nothing_changes_and_it_says_so() -> None:
    made = detector(*replicas(1, 2, 3, 4), ("shard", 0))
    beat(made, ("replica", 4), ("shard", 0), since=0.0, until=3.0)
    verdict = made.judge(3.0)
    assert verdict.changes == ()
    assert "3 of 5 roles fell silent at once" in verdict.reason
    assert "coordinator itself" in verdict.reason


def test_exactly_half_is_believed() -> None:
    made = detector(*replicas(1, 2, 3, 4))
    beat(made, *replicas(3, 4), since=0.0, until=3.0)
    assert states(made, 3.0) == [("replica", 1, "dead"), ("replica", 2, "dead")]


def test_doubt_ends_when_they_speak_again_and_does_not_add_up() -> None:
    made = detector(*replicas(1, 2, 3))
    assert made.judge(5.0).reason
    for number in (1, 2, 3):
        made.seen(("replica", number), 6.0)
    assert not made.judge(6.0).reason
    assert made.judge(60.0).reason, "a new doubt has its whole minute"
    assert made.judge(119.0).reason
    assert states(made, 120.0) == [(*who, "dead") for who in replicas(1, 2, 3)]


def test_who_is_last_to_return_from_the_coordinators_outage_has_its_time_anew() -> None:
    made = detector(*replicas(1, 2), ("shard", 0))
    assert made.judge(5.0).reason
    made.seen(("replica", 1), 5.1)
    made.seen(("replica", 2), 5.1)
    assert states(made, 5.25) == [], "the shard was silent for as long as nobody could be heard"
    beat(made, *replicas(1, 2), since=5.1, until=7.5)
    assert states(made, 7.5) == [("shard", 0, "suspect")]
    beat(made, *replicas(1, 2), since=7.5, until=8.25)
    assert states(made, 8.25) == [("shard", 0, "dead")]


def test_silence_does_not_count_while_nobody_can_be_heard() -> None:
    made = detector(*replicas(1, 2, 3), ("shard", 0))
    beat(made, *replicas(1, 2, 3), since=0.0, until=1.5)  # the shard's last beats got lost, and
    assert states(made, 1.75) == []  # while it tries again the coordinator is cut off
    assert "none of 4 roles was heard for 2.0 s" in made.judge(3.5).reason
    beat(made, *replicas(1, 2), since=3.9, until=4.0)
    assert states(made, 4.0) == [], "without the gap it was silent for 1.5 s"
    beat(made, *replicas(1, 2, 3), since=4.0, until=7.0)
    assert states(made, 7.0) == [("shard", 0, "dead")], "but not for ever"


def test_a_single_role_has_nobody_to_vouch_for_it() -> None:
    assert states(detector(("shard", 0)), 3.0) == [("shard", 0, "dead")]


def test_the_coordinators_own_stall_is_nobodys_fault() -> None:
    made = detector(("replica", 1), ("shard", 0))
    made.seen(("shard", 0), 11.0)  # already heard after the gap
    made.forgive(10.0, 11.0)
    assert states(made, 11.5) == []
    beat(made, ("shard", 0), since=11.0, until=13.5)
    assert states(made, 13.5) == [("replica", 1, "suspect")]
    beat(made, ("shard", 0), since=13.5, until=14.0)
    assert states(made, 14.0) == [("replica", 1, "dead")]


def test_forgiving_never_credits_the_future() -> None:
    made = detector(("replica", 1), ("shard", 0), now=11.0)
    made.forgive(10.0, 11.0)
    beat(made, ("shard", 0), since=11.0, until=14.0)
    assert states(made, 14.0) == [("replica", 1, "dead")]


def test_the_forgotten_are_not_judged() -> None:
    made = detector(*replicas(1, 2))
    made.forget(("replica", 1))
    made.seen(("replica", 2), 9.0)
    assert states(made, 9.0) == []
