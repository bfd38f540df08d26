"""Failure detection: when silence is believed, and when the coordinator doubts itself."""

from __future__ import annotations

import pytest

from pydownpour.coordinator.detector import Detector, Role, Watched


def detector(*watched: Watched, now: float = 0.0) -> Detector:
    made = Detector(suspect_s=2.0, dead_s=3.0, mass_silence_s=60.0)
    for who in watched:
        made.seen(who, now)
    return made


def replicas(*ids: int) -> list[Watched]:
    return [("replica", number) for number in ids]


def states(made: Detector, now: float) -> list[tuple[Role, int, str]]:
    return [(*change.who, change.state) for change in made.judge(now).changes]


def test_silence_makes_suspect_then_dead_and_says_how_long() -> None:
    made = detector(*replicas(1, 2, 3))
    for now in (1.9, 2.0, 3.0):
        made.seen(("replica", 2), now)
        made.seen(("replica", 3), now)
        if now == 1.9:
            assert states(made, now) == []
        elif now == 2.0:
            assert states(made, now) == [("replica", 1, "suspect")]
            assert states(made, now) == [], "said once"
        else:
            (change,) = made.judge(now).changes
            assert change.state == "dead"
            assert change.reason == "no sign of life for 3.0 s, the limit is 3 s"


def test_a_suspect_that_speaks_is_live_again() -> None:
    made = detector(*replicas(1, 2))
    made.seen(("replica", 2), 2.0)
    states(made, 2.0)
    assert made.seen(("replica", 1), 2.5)
    assert states(made, 3.0) == []


@pytest.mark.parametrize("others", [[("shard", 0)], [("shard", 0), ("replica", 2)], []])
def test_a_lone_death_is_noticed_in_the_smallest_jobs(others: list[Watched]) -> None:
    made = detector(("replica", 1), *others)
    for who in others:
        made.seen(who, 3.0)
    assert states(made, 3.0) == [("replica", 1, "dead")]


def test_when_more_than_half_fall_silent_nothing_changes_and_it_says_so() -> None:
    made = detector(*replicas(1, 2, 3, 4), ("shard", 0))
    for who in (("replica", 4), ("shard", 0)):
        made.seen(who, 3.0)
    verdict = made.judge(3.0)
    assert verdict.changes == ()
    assert "3 of 5 roles fell silent at once" in verdict.reason
    assert "coordinator itself" in verdict.reason


def test_exactly_half_is_believed() -> None:
    made = detector(*replicas(1, 2, 3, 4))
    for number in (3, 4):
        made.seen(("replica", number), 3.0)
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
    for now in (7.0, 8.0):
        made.seen(("replica", 1), now)
        made.seen(("replica", 2), now)
    assert states(made, 7.5) == [("shard", 0, "suspect")]
    assert states(made, 8.25) == [("shard", 0, "dead")]


def test_the_coordinators_own_stall_is_nobodys_fault() -> None:
    made = detector(("replica", 1), ("shard", 0))
    made.seen(("shard", 0), 11.0)  # already heard after the gap
    made.forgive(10.0, 11.0)
    assert states(made, 11.5) == []
    made.seen(("shard", 0), 13.0)
    assert states(made, 13.0) == [("replica", 1, "dead")]


def test_forgiving_never_credits_the_future() -> None:
    made = detector(("replica", 1), ("shard", 0), now=11.0)
    made.forgive(10.0, 11.0)
    made.seen(("shard", 0), 14.0)
    assert states(made, 14.0) == [("replica", 1, "dead")]


def test_the_forgotten_are_not_judged() -> None:
    made = detector(*replicas(1, 2))
    made.forget(("replica", 1))
    made.seen(("replica", 2), 9.0)
    assert states(made, 9.0) == []
