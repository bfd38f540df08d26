"""How large POST bodies are: what moves in a few seconds, and never what was once too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydownpour import limits
from pydownpour.replica.pieces import RECORDS_MAX, Pieces

RECORD_SIZE = limits.DEFAULT.fragment_size + limits.HEADER_SIZE


def sizes(pieces: Pieces, *, rate: float, bodies: int) -> list[int]:
    """Records in each body, over a link of a rate."""
    found = []
    for _ in range(bodies):
        found.append(pieces.count)
        pieces.sent(pieces.count, pieces.count * RECORD_SIZE / rate)
    return found


def test_a_fast_link_soon_gets_whole_runs() -> None:
    assert sizes(Pieces(RECORD_SIZE), rate=1e9, bodies=9) == [1, 2, 4, 8, 16, 32, 64, 127, 127]


def test_a_slow_link_gets_one_record_at_a_time() -> None:
    assert sizes(Pieces(RECORD_SIZE), rate=limits.DEFAULT.link_rate_min, bodies=5) == [1] * 5


def test_a_link_in_between_gets_what_takes_a_few_seconds() -> None:
    rate = 20 * RECORD_SIZE / limits.DEFAULT.piece_s
    assert sizes(Pieces(RECORD_SIZE), rate=rate * 1.01, bodies=9)[-3:] == [20, 20, 20]


def test_a_link_that_becomes_slow_is_followed_at_once_and_one_that_breaks_sooner() -> None:
    pieces = Pieces(RECORD_SIZE)
    sizes(pieces, rate=1e9, bodies=9)
    pieces.sent(pieces.count, 400.0)
    assert pieces.count == 1
    sizes(pieces, rate=1e9, bodies=9)
    pieces.broke()
    assert pieces.count == 127 // 4


def test_the_short_last_body_of_a_push_says_nothing_about_long_ones() -> None:
    pieces = Pieces(RECORD_SIZE)
    sizes(pieces, rate=1e9, bodies=9)
    pieces.sent(1, 0.001)
    assert pieces.count == 127


def test_what_was_refused_for_its_size_is_not_tried_again() -> None:
    pieces = Pieces(RECORD_SIZE)
    sizes(pieces, rate=1e9, bodies=3)
    assert pieces.count == 8
    assert pieces.refused(8)
    assert sizes(pieces, rate=1e9, bodies=4) == [4] * 4
    assert pieces.refused(3)  # the end of a push
    assert sizes(pieces, rate=1e9, bodies=4) == [1] * 4
    assert not pieces.refused(1)


@given(
    record_size=st.integers(65, 600_000),
    steps=st.lists(
        st.one_of(st.floats(0.0, 100.0), st.just("broke"), st.just("refused")), max_size=40
    ),
)
def test_bodies_stay_within_their_bounds(record_size: int, steps: list[float | str]) -> None:
    pieces = Pieces(record_size)
    for step in steps:
        if step == "broke":
            pieces.broke()
        elif step == "refused":
            pieces.refused(pieces.count)
        else:
            pieces.sent(pieces.count, float(step))
        assert 1 <= pieces.count <= RECORDS_MAX
        assert pieces.count == 1 or pieces.count * record_size <= limits.DEFAULT.post_piece_size_max
