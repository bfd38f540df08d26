"""What the end of a replica means."""

from __future__ import annotations

import signal

import pytest

from pydownpour import limits
from pydownpour.engines.base import EXIT_CONFIG, EXIT_FAILED, EXIT_USER, Exit
from pydownpour.engines.restarts import Again, Finished, GiveUp, Restarts

KILLED = Exit(-signal.SIGKILL)
YOUNG_S = limits.RESTART_STABLE_S / 2
OLD_S = limits.RESTART_STABLE_S


def test_exit_0_is_finished() -> None:
    assert isinstance(Restarts().decide(0, Exit(0), lived_s=1.0), Finished)


def test_a_killed_replica_starts_again_and_the_reason_says_how_it_died() -> None:
    decision = Restarts().decide(3, KILLED, lived_s=OLD_S)
    assert decision == Again(limits.RESTART_BACKOFF_S, "replica 3 was killed by SIGKILL")


def test_backoff_doubles_while_it_dies_young_up_to_its_limit() -> None:
    restarts = Restarts()
    waits = []
    for _ in range(6):
        decision = restarts.decide(0, KILLED, lived_s=YOUNG_S)
        assert isinstance(decision, Again)
        waits.append(decision.after_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert waits[-1] == limits.RESTART_BACKOFF_MAX_S


def test_backoff_is_each_replica_s_own_and_starts_anew_after_a_long_life() -> None:
    restarts = Restarts()
    for _ in range(4):
        restarts.decide(0, KILLED, lived_s=YOUNG_S)
    assert restarts.decide(1, KILLED, lived_s=YOUNG_S) == Again(
        limits.RESTART_BACKOFF_S, "replica 1 was killed by SIGKILL"
    )
    old = restarts.decide(0, KILLED, lived_s=OLD_S)
    assert isinstance(old, Again)
    assert old.after_s == limits.RESTART_BACKOFF_S


def test_ten_kills_are_forgiven_and_the_budget_ends_over_all_replicas() -> None:
    restarts = Restarts()
    for crash in range(limits.RESTARTS_MAX):
        assert isinstance(restarts.decide(crash % 4, KILLED, lived_s=YOUNG_S), Again)
    decision = restarts.decide(0, KILLED, lived_s=OLD_S)
    assert isinstance(decision, GiveUp)
    assert "RESTARTS_MAX" in decision.reason
    assert str(limits.RESTARTS_MAX) in decision.reason


def test_the_same_failure_of_the_users_function_three_times_ends_the_job() -> None:
    restarts = Restarts()
    words = "ZeroDivisionError: division by zero"
    for replica in (0, 1):
        first = restarts.decide(replica, Exit(EXIT_USER), lived_s=YOUNG_S, failure=words)
        assert isinstance(first, Again)
        assert words in first.reason
    last = restarts.decide(2, Exit(EXIT_USER), lived_s=YOUNG_S, failure=words)
    assert isinstance(last, GiveUp)
    assert words in last.reason
    assert "third" in last.reason


def test_failures_far_apart_or_different_are_no_row() -> None:
    restarts = Restarts()
    for number in range(limits.RESTART_SAME_FAILURE_MAX * 2):
        decision = restarts.decide(
            0, Exit(EXIT_USER), lived_s=YOUNG_S, failure=f"OSError: {number}"
        )
        assert isinstance(decision, Again)
    for _ in range(limits.RESTART_SAME_FAILURE_MAX * 2):
        decision = restarts.decide(0, Exit(EXIT_USER), lived_s=OLD_S, failure="OSError: again")
        assert isinstance(decision, Again)


def test_a_segmentation_fault_is_the_replicas_own_and_a_lost_peer_is_not() -> None:
    restarts = Restarts()
    crashed = Exit(-signal.SIGSEGV)
    decisions = [restarts.decide(0, crashed, lived_s=0.1) for _ in range(3)]
    assert [type(decision) for decision in decisions] == [Again, Again, GiveUp]
    for _ in range(limits.RESTART_SAME_FAILURE_MAX + 1):
        lost = restarts.decide(1, Exit(EXIT_FAILED), lived_s=0.1, failure="nobody answered")
        assert isinstance(lost, Again)


def test_wrong_settings_end_the_job_at_once() -> None:
    decision = Restarts().decide(0, Exit(EXIT_CONFIG), lived_s=0.1, failure="no job in a.py")
    assert isinstance(decision, GiveUp)
    assert "no job in a.py" in decision.reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_an_exit_in_words(code: int, words: str) -> None:
    assert Exit(code).describe() == words
