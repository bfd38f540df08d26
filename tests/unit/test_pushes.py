"""Which records of a push are settled, under any order of answers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydownpour.replica.pushes import Part, Push


def make_part(count: int, first_seq: int = 11) -> Part:
    push = Push(1, np.zeros(4, np.float32), memoryview(b""), (), 1, 1, 0.0)
    return Part(push, first_seq, count, memoryview(b""))


@given(
    count=st.integers(1, 40),
    answers=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 20)), max_size=12),
)
def test_settling_agrees_with_a_set(count: int, answers: list[tuple[int, int]]) -> None:
    part, model = make_part(count), set(range(11, 11 + count))
    for seq, length in answers:
        expected = model & set(range(seq, seq + length))
        assert part.settle(seq, length) == len(expected)
        model -= expected
        assert part.open == len(model)
        assert part.first_open == (min(model) - 11 if model else count)


def test_a_new_connection_sends_again_from_the_first_open_record() -> None:
    part = make_part(5)
    part.sent = 5
    part.settle(11, 2)
    part.settle(14, 1)
    part.rewind()
    assert part.sent == 2
    assert part.notice(13).first_incomplete == 13
