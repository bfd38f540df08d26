"""What the end of a replica means."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from pydownpour import limits
from pydownpour.engines.base import EXIT_CONFIG, EXIT_FAILED, EXIT_USER, Exit
from pydownpour.engines.restarts import Again, End, Finished, GiveUp, Restarts

KILLED = -signal.SIGKILL
YOUNG_S = limits.DEFAULT.restart_stable_s / 2
OLD_S = limits.DEFAULT.restart_stable_s
WORDS = "ZeroDivisionError: division by zero (digits.py:27 in train)"


def end(code: int, lived_s: float = YOUNG_S, **details: Any) -> End:
    return End(Exit(code), lived_s, **details)


def test_exit_0_with_a_goodbye_is_finished() -> None:
    assert isinstance(Restarts().decide(0, end(0), 0.0), Finished)


def test_exit_0_without_a_goodbye_is_a_crash_that_says_so() -> None:
    restarts = Restarts()
    decisions = [restarts.decide(0, end(0, goodbye=False), 0.0) for _ in range(3)]
    assert [type(decision) for decision in decisions] == [Again, Again, GiveUp]
    assert "ended with exit code 0 without a word, as os._exit does" in decisions[0].reason


def test_a_killed_replica_starts_again_and_the_reason_says_how_it_died() -> None:
    decision = Restarts().decide(3, end(KILLED, OLD_S), 0.0)
    assert decision == Again(limits.DEFAULT.restart_backoff_s, "replica 3 was killed by SIGKILL")


def test_backoff_doubles_while_it_dies_young_up_to_its_limit() -> None:
    restarts = Restarts()
    waits = []
    for _ in range(6):
        decision = restarts.decide(0, end(KILLED, worked=True), 0.0)
        assert isinstance(decision, Again)
        waits.append(decision.after_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert waits[-1] == limits.DEFAULT.restart_backoff_max_s


def test_backoff_is_each_replica_s_own_and_starts_anew_after_a_long_life() -> None:
    restarts = Restarts()
    for _ in range(4):
        restarts.decide(0, end(KILLED), 0.0)
    assert restarts.decide(1, end(KILLED), 0.0) == Again(
        limits.DEFAULT.restart_backoff_s, "replica 1 was killed by SIGKILL"
    )
    old = restarts.decide(0, end(KILLED, OLD_S), 0.0)
    assert isinstance(old, Again)
    assert old.after_s == limits.DEFAULT.restart_backoff_s


@pytest.mark.parametrize("places", [1, 4])
def test_crashes_that_a_restart_cured_are_forgiven_however_many(places: int) -> None:
    restarts = Restarts()
    for crash in range(10 * limits.DEFAULT.restarts_max):
        decision = restarts.decide(crash % places, end(KILLED, worked=True), now=crash * 2.0)
        assert isinstance(decision, Again)


def test_ten_kills_before_any_work_are_forgiven_and_the_eleventh_in_the_window_is_not() -> None:
    restarts = Restarts()
    for crash in range(limits.DEFAULT.restarts_max):
        assert isinstance(restarts.decide(2, end(KILLED), now=crash * 4.5), Again)
    decision = restarts.decide(2, end(KILLED), now=limits.DEFAULT.restarts_max * 4.5)
    assert isinstance(decision, GiveUp)
    assert "crash number 11 within 120 s and nothing was done between them" in decision.reason
    assert "restarts_max" in decision.reason


def test_the_window_slides_and_is_each_place_s_own() -> None:
    restarts = Restarts()
    step_s = limits.DEFAULT.restart_window_s / limits.DEFAULT.restarts_max
    for crash in range(5 * limits.DEFAULT.restarts_max):
        assert isinstance(restarts.decide(0, end(KILLED), now=crash * step_s * 1.01), Again)
    for place in range(64):
        for _ in range(limits.DEFAULT.restarts_max):
            assert isinstance(restarts.decide(100 + place, end(KILLED), 0.0), Again)


def test_the_same_failure_of_the_users_function_three_times_ends_the_job() -> None:
    restarts = Restarts()
    for replica in (0, 1):
        first = restarts.decide(replica, end(EXIT_USER, failure=WORDS, unit="at unit 5"), 0.0)
        assert isinstance(first, Again)
        assert f"replica {replica} ended with exit code 3 at unit 5: {WORDS}" in first.reason
    last = restarts.decide(2, end(EXIT_USER, failure=WORDS), 0.0)
    assert isinstance(last, GiveUp)
    assert WORDS in last.reason
    assert "third" in last.reason


def test_failures_far_apart_or_different_are_no_row() -> None:
    restarts = Restarts()
    for number in range(limits.DEFAULT.restart_same_failure_max * 2):
        decision = restarts.decide(0, end(EXIT_USER, failure=f"OSError: {number}"), 0.0)
        assert isinstance(decision, Again)
    restarts = Restarts()
    for number in range(limits.DEFAULT.restart_same_failure_max * 2):
        now = number * limits.DEFAULT.restart_window_s / 4
        decision = restarts.decide(0, end(EXIT_USER, OLD_S, failure="OSError: again"), now)
        assert isinstance(decision, Again)


def test_where_units_are_skipped_the_coordinator_counts_and_not_the_engine() -> None:
    restarts = Restarts()
    for number in range(10 * limits.DEFAULT.restarts_max):
        raised = end(EXIT_USER, failure=WORDS, unit="at unit 5", cured_by_skipping=True)
        assert isinstance(restarts.decide(0, raised, number * 0.1), Again)


def test_a_segmentation_fault_is_the_replicas_own_and_a_lost_peer_is_not() -> None:
    restarts = Restarts()
    crashed = end(-signal.SIGSEGV, 0.1)
    decisions = [restarts.decide(0, crashed, 0.0) for _ in range(3)]
    assert [type(decision) for decision in decisions] == [Again, Again, GiveUp]
    for _ in range(limits.DEFAULT.restart_same_failure_max + 1):
        lost = restarts.decide(1, end(EXIT_FAILED, 0.1, failure="nobody answered"), 0.0)
        assert isinstance(lost, Again)


@pytest.mark.parametrize("code", [1, 2, 7, 130])
def test_a_process_that_ends_itself_without_a_word_is_not_tried_twenty_times(code: int) -> None:
    restarts = Restarts()
    decisions = [restarts.decide(0, end(code, goodbye=False), 0.0) for _ in range(3)]
    assert [type(decision) for decision in decisions] == [Again, Again, GiveUp]
    assert f"exit code {code} without a word" in decisions[0].reason


def test_wrong_settings_end_the_job_at_once() -> None:
    decision = Restarts().decide(0, end(EXIT_CONFIG, failure="no job in a.py"), 0.0)
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
