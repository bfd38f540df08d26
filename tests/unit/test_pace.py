"""When a connection is given up: by the bytes that moved, never by how large or slow it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydownpour.net.pace import Pace


def given_up_at(pace: Pace, looks: list[tuple[float, int | None]]) -> float | None:
    """The time of the first look that gives up."""
    return next((now for now, moved in looks if pace.is_over(now, moved)), None)


def test_a_byte_now_and_then_is_enough_where_any_byte_counts() -> None:
    assert given_up_at(Pace(30.0), [(29.0 * i, i) for i in range(100)]) is None


def test_silence_is_given_up_after_the_window_and_not_before() -> None:
    looks: list[tuple[float, int | None]] = [(0.0, 5), (10.0, 6), (20.0, 6), (39.9, 6), (40.0, 6)]
    assert given_up_at(Pace(30.0), looks) == 40.0


def test_nothing_is_given_up_that_has_nothing_to_do() -> None:
    looks = [(10.0 * i, None if 2 <= i <= 9 else 7) for i in range(13)]
    assert given_up_at(Pace(30.0), looks) is None
    assert given_up_at(Pace(30.0), [*looks, (130.0, 7), (140.0, 7)]) == 130.0


def test_fewer_bytes_than_the_least_do_not_count() -> None:
    slow = [(1.0 * i, 9 * i) for i in range(200)]
    assert given_up_at(Pace(10.0, size_min=100), list(slow)) == 10.0
    assert given_up_at(Pace(10.0, size_min=90), list(slow)) is None


def test_what_was_written_but_is_still_here_is_no_step_back() -> None:
    looks: list[tuple[float, int | None]] = [(0.0, 4000), (7.5, 100), (15.0, 300), (44.0, 301)]
    assert given_up_at(Pace(30.0), looks) is None


@given(
    rate=st.integers(300, 10**9),
    every_s=st.floats(0.01, 15.0),
    size_min=st.integers(1, 16 * 1024),
)
def test_no_steady_rate_above_the_least_is_ever_given_up(
    rate: int, every_s: float, size_min: int
) -> None:
    looks = [(every_s * i, int(rate * every_s * i)) for i in range(200)]
    assert given_up_at(Pace(60.0 + 15.0, size_min), list(looks)) is None
