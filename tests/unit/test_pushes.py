"""Which records of a push are to be sent, and which are settled, under any order of answers."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pydownpour import _core
from pydownpour.replica.encoded import EncodedPush
from pydownpour.replica.pushes import Base, Portion, Push
from pydownpour.wire import frames


def make_portion(count: int) -> Portion:
    """A push's records at a shard that owns the fragments from 11 on."""
    push = Push(1, EncodedPush(64, 64, 1), Base(rounds=(4,)), 1, 1, 0.0)
    return Portion(push, range(11, 11 + count))


def runs(portion: Portion) -> Iterator[tuple[int, int]]:
    """Send everything there is to send."""
    while (run := portion.next_run()) is not None:
        portion.send(*run)
        yield run


@given(
    count=st.integers(1, 40),
    answers=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 20)), max_size=12),
)
def test_settling_agrees_with_a_set(count: int, answers: list[tuple[int, int]]) -> None:
    portion, model = make_portion(count), set(range(11, 11 + count))
    for fragment, length in answers:
        expected = model & set(range(fragment, fragment + length))
        assert portion.settle(fragment, length) == len(expected)
        model -= expected
        assert portion.open == len(model)
        settled = {fragment for fragment in range(11, 11 + count) if portion.is_settled(fragment)}
        assert settled == set(range(11, 11 + count)) - model


@given(
    count=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["send", "settle", "again"]), st.integers(0, 45), st.integers(0, 9)
        ),
        max_size=20,
    ),
)
def test_what_is_to_be_sent_agrees_with_sets(count: int, steps: list[tuple[str, int, int]]) -> None:
    portion, all_of_it = make_portion(count), set(range(11, 11 + count))
    to_send, on_way = set(all_of_it), set[int]()
    for what, index, length in steps:
        fragment = 11 + index
        some = set(range(fragment, fragment + length)) & all_of_it
        if what == "settle":
            portion.settle(fragment, length)
            to_send -= some
            on_way -= some
        elif what == "again":
            portion.take_back(fragment, length)
            to_send |= some & on_way
            on_way -= some
        elif (run := portion.next_run()) is not None:
            assert run[0] == min(to_send)
            assert set(range(run[0], sum(run))) <= to_send
            assert sum(run) not in to_send
            portion.send(*run)
            on_way |= set(range(run[0], sum(run)))
            to_send -= on_way
        assert (portion.next_run() is None) == (not to_send)


def test_a_new_connection_sends_again_what_has_no_answer_and_nothing_else() -> None:
    portion = make_portion(6)
    assert list(runs(portion)) == [(11, 6)]
    portion.settle(11, 2)
    portion.settle(14, 1)
    assert portion.sent == 6
    portion.rewind()
    assert list(runs(portion)) == [(13, 1), (15, 2)]
    notice = portion.notice(13, shard=0)
    assert (notice.first_open, notice.round) == (13, 4)


def test_a_record_that_was_turned_down_is_sent_again_and_no_other() -> None:
    portion = make_portion(6)
    portion.send(11, 4)
    portion.take_back(12, 2)
    portion.take_back(15, 2)  # not sent yet: nothing changes
    assert list(runs(portion)) == [(12, 2), (15, 2)]


def test_only_a_record_that_was_sent_before_can_be_a_duplicate() -> None:
    portion = make_portion(6)
    portion.send(11, 4)
    portion.settle(11, 1)
    assert portion.in_doubt(11, 6) == 0
    portion.rewind()
    assert portion.in_doubt(11, 6) == 3, "12, 13 and 14 may have been applied"
    assert list(runs(portion)) == [(12, 5)]
    assert (portion.in_doubt(11, 1), portion.in_doubt(12, 3), portion.in_doubt(15, 2)) == (0, 3, 0)
    portion.rewind()
    assert portion.in_doubt(11, 6) == 5


@given(count=st.integers(1, 40), left_out=st.sets(st.integers(0, 60)))
def test_what_a_push_leaves_out_is_settled_and_never_sent(count: int, left_out: set[int]) -> None:
    encoded = EncodedPush(128 * 60, 128, 60)
    sizes = [0 if fragment in left_out else 64 + fragment for fragment in range(60)]
    encoded.encoded([sum(sizes[: fragment + 1]) for fragment in range(60)])
    assert encoded.payload_size == sum(set(range(60)) - left_out)
    portion = Portion(Push(1, encoded, Base(rounds=(4,)), 1, 1, 0.0), range(11, 11 + count))
    there = [fragment for fragment in range(11, 11 + count) if fragment not in left_out]
    assert portion.open == len(there)
    sent = [fragment for first, n in runs(portion) for fragment in range(first, first + n)]
    assert sent == there
    for fragment in there:
        assert not portion.is_settled(fragment)
        assert len(encoded.frames(fragment, 1)) == 64 + fragment
    portion.rewind()
    assert [f for first, n in runs(portion) for f in range(first, first + n)] == there
    assert portion.settle(11, count) == len(there)
    assert portion.open == 0


def test_a_record_that_stands_for_the_last_is_sent_whole_where_there_is_none() -> None:
    encoded = EncodedPush(192 * 20, 192, 20)
    push = Push(3, encoded, Base(rounds=(4,)), 1, 1, 0.0)
    push.again = memoryview(frames.again(replica=1, incarnation=2, push=3, versions=range(20)))
    portion = Portion(push, range(11, 17))
    assert list(runs(portion)) == [(11, 6)]
    said = _core.scan_frames(portion.frames(11, 6))
    told = [(f.fragment, f.seq, f.version, f.flags, f.length) for f in said]
    assert told == [(11 + i, 3, 11 + i, frames.AGAIN, 0) for i in range(6)]
    portion.settle(11, 1)
    portion.send_whole(11, 1)  # said too late: it has its answer
    portion.send_whole(13, 2)
    assert [portion.is_again(f) for f in range(11, 17)] == [True, True, False, False, True, True]
    assert list(runs(portion)) == [(13, 2)]
    assert portion.frames(13, 2) == encoded.frames(13, 2)
    # Another connection: each as it was, in runs of one kind.
    portion.rewind()
    assert list(runs(portion)) == [(12, 1), (13, 2), (15, 2)]
    assert portion.in_doubt(13, 2) == 2
