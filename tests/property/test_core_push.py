"""A push is encoded as its slow twin does it, whatever the arrays, the cut and the dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pydownpour import _core, errors
from tests.reference import push as slow

CODES = {"float32": 1, "float64": 2, "float16": 3}
ODD = st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 65504.0, 7e4, 3e38, 1e300, 1e-8, 1e-45])
Gradients = list[NDArray[Any] | None]


@st.composite
def gradients(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], Gradients]:
    shapes, arrays = [], []
    for _ in range(draw(st.integers(1, 6))):
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
        dtype = draw(st.sampled_from(sorted(CODES)))
        length = int(np.prod(shape, dtype=int))
        values = draw(
            st.lists(st.one_of(st.floats(-10, 10), ODD), min_size=length, max_size=length)
        )
        with np.errstate(over="ignore"):
            array = np.array(values, np.float64).astype(dtype).reshape(shape)
        shapes.append(shape)
        arrays.append(None if draw(st.integers(0, 5)) == 0 else array)
    return shapes, arrays


def taken(gather: _core.Gather, arrays: Gradients) -> _core.Arrays:
    """The arrays, by the way that is open to them."""
    plain = gather.plain(arrays)
    assert (plain is None) == any(array is None for array in arrays)
    codes = [1 if array is None else CODES[array.dtype.name] for array in arrays]
    flat = [None if array is None else array.reshape(-1) for array in arrays]
    return plain or gather.mixed(flat, codes)


def found(encoded: _core.Encoded) -> slow.Found:
    return slow.Found(
        encoded.bad,
        encoded.first_bad,
        encoded.overflowed,
        encoded.first_overflowed,
        encoded.underflowed,
        encoded.squares,
    )


def frames_of(length: int, fragment_len: int, dtype: int) -> tuple[int, NDArray[np.uint8]]:
    """How many, and room for them."""
    count = -(-length // fragment_len)
    size = count * _core.HEADER_SIZE + length * np.dtype(slow.WIRE[dtype]).itemsize
    return count, np.zeros(size, np.uint8)


@settings(deadline=None)
@given(
    given_=gradients(),
    fragment_len=st.integers(1, 40),
    dtype=st.sampled_from(sorted(slow.WIRE)),
    data=st.data(),
)
def test_encoding_agrees_with_the_twin(
    given_: tuple[list[tuple[int, ...]], Gradients], fragment_len: int, dtype: int, data: Any
) -> None:
    shapes, arrays = given_
    gather = _core.Gather(shapes)
    lens = [int(np.prod(shape, dtype=int)) for shape in shapes]
    with np.errstate(over="ignore"):
        values = slow.gather(arrays, lens)
    assert gather.len == len(values)
    count, room = frames_of(len(values), fragment_len, dtype)
    versions = np.arange(5, 5 + count, dtype=np.uint64)
    who = {"replica": 3, "incarnation": 4, "push": 9}
    expected, says = slow.encode(
        values, dtype=dtype, fragment_len=fragment_len, versions=versions.tolist(), **who
    )
    mine = taken(gather, arrays)
    settings_: Any = {"dtype": dtype, "fragment_len": fragment_len, "versions": versions, **who}
    assert found(mine.encode(room, first=0, count=count, **settings_)) == says
    assert room.tobytes() == expected

    # In any order, piece by piece, the same bytes.
    room[...] = 0
    cut = data.draw(st.integers(0, count))
    pieces = [
        mine.encode(room, first=cut, count=count - cut, **settings_),
        mine.encode(room, first=0, count=cut, **settings_),
    ]
    assert room.tobytes() == expected
    assert sum(piece.bad for piece in pieces) == says.bad
    assert sum(piece.underflowed for piece in pieces) == says.underflowed

    bad, first, _ = mine.check(fragment_len)
    assert (bad, first) == (says.bad, says.first_bad)


@settings(deadline=None)
@given(given_=gradients())
def test_arrays_add_up_and_step_as_their_run_does(
    given_: tuple[list[tuple[int, ...]], Gradients],
) -> None:
    shapes, arrays = given_
    lens = [int(np.prod(shape, dtype=int)) for shape in shapes]
    mine = taken(_core.Gather(shapes), arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        values = slow.gather(arrays, lens)
        start = np.linspace(-1, 1, len(values), dtype=np.float32)
        target = start.copy()
        mine.accumulate(target, overwrite=False)
        np.testing.assert_array_equal(target, start + values)
        mine.step(target, 0.5)
        np.testing.assert_array_equal(target, (start + values) - np.float32(0.5) * values)
        mine.accumulate(target, overwrite=True)
        np.testing.assert_array_equal(target, values)


def test_what_does_not_fit_is_refused_and_nothing_is_written() -> None:
    gather = _core.Gather([(3,), (2, 2)])
    arrays = [np.ones(3, np.float32), np.ones((2, 2), np.float32)]
    assert gather.plain(arrays[:1]) is None
    assert gather.plain([arrays[0], arrays[0]]) is None
    assert gather.plain([arrays[0], arrays[1].T[:, ::-1]]) is None, "not contiguous"
    assert gather.plain([arrays[0], arrays[1].astype(">f4")]) is None
    assert gather.plain([arrays[0], arrays[1].astype(np.int32)]) is None
    with pytest.raises(errors.ParameterError, match="1 arrays, 1 dtypes"):
        gather.mixed(arrays[:1], [1])
    with pytest.raises(errors.ParameterError, match="array 1 has 3 elements of its dtype, not 4"):
        gather.mixed([arrays[0], arrays[0]], [1, 1])
    taken_ = gather.plain(arrays)
    assert taken_ is not None
    count, room = frames_of(7, 4, 1)
    good: Any = {
        "dtype": 1, "fragment_len": 4, "first": 0, "count": count, "replica": 1, "incarnation": 1,
        "push": 1, "versions": np.zeros(count, np.uint64),
    }  # fmt: skip
    wrong: list[dict[str, Any]] = [
        {"first": 1}, {"count": 3}, {"versions": np.zeros(3, np.uint64)}, {"push": 0},
        {"fragment_len": 0}, {"dtype": 9}, {"residual": np.zeros(7, np.float32)},
        {"codec": _core.Codec("int8", {"block": 256.0})},
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(errors.ParameterError):
            taken_.encode(room, **{**good, **change})
    with pytest.raises(errors.ParameterError, match=r"frames of 7 elements have \d+ bytes"):
        taken_.encode(room[:-1], **good)
    assert not room.any()
    with pytest.raises(errors.ParameterError, match="share memory"):
        taken_.step(arrays[0], 1.0)
    assert taken_.overlaps(arrays[1])
    assert not taken_.overlaps(room)


def test_a_codec_s_frames_decode_to_the_gradient_but_for_the_residual() -> None:
    codec = _core.Codec("int8", {"block": 16.0})
    length, fragment_len, count = 100, 40, 3
    gradient = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    arrays = _core.Gather([(length,)]).plain([gradient])
    assert arrays is not None
    sizes = [codec.size_max(n) for n in (40, 40, 20)]
    room = np.zeros(sum(sizes) + count * _core.HEADER_SIZE, np.uint8)
    residual = np.zeros(length, np.float32)
    more: Any = {
        "dtype": 1,
        "fragment_len": fragment_len,
        "replica": 1,
        "incarnation": 1,
        "push": 2,
    }
    versions = np.zeros(count, np.uint64)
    says = arrays.encode(
        room, first=0, count=count, versions=versions, codec=codec, residual=residual, **more
    )
    assert (says.bad, says.overflowed) == (0, 0)
    frames = _core.scan_frames(room)
    assert [(frame.codec, frame.length) for frame in frames] == [(codec.number, s) for s in sizes]
    decoded = np.zeros(length, np.float32)
    for frame in frames:
        start = frame.fragment * fragment_len
        codec.decode(frame.payload, decoded[start : start + fragment_len])
    np.testing.assert_array_equal(decoded + residual, gradient)

    # What cannot be encoded moves nothing of the residual, in no fragment.
    before = residual.copy()
    gradient[90] = np.nan
    says = arrays.encode(
        room, first=0, count=count, versions=versions, codec=codec, residual=residual, **more
    )
    assert (says.overflowed, says.first_overflowed) == (1, 90)
    np.testing.assert_allclose(residual, before, rtol=1e-5, atol=1e-6)


def test_a_codec_s_frames_lie_close_and_what_says_nothing_may_be_left_out() -> None:
    codec = _core.Codec("threshold", {"tau": 1.0})
    length, fragment_len, count = 100, 20, 5
    gradient = np.zeros(length, np.float32)
    gradient[[5, 61]] = 1.5, -1.5  # of fragments 0 and 3
    gradient[80:] = 4.0  # all of fragment 4
    gradient[40:60] = 0.25
    arrays = _core.Gather([(length,)]).plain([gradient])
    assert arrays is not None
    sizes, head = [4, 0, 0, 4, 5], _core.HEADER_SIZE
    for leaves_out in (False, True):
        room = np.zeros(count * (head + codec.size_max(fragment_len)), np.uint8)
        residual = np.zeros(length, np.float32)
        found = arrays.encode(
            room, dtype=1, fragment_len=fragment_len, first=0, count=count, replica=1,
            incarnation=1, push=2, versions=np.arange(5, dtype=np.uint64), codec=codec,
            residual=residual, leaves_out=leaves_out,
        )  # fmt: skip
        sent = [size > 0 or not leaves_out for size in sizes]
        ends = np.cumsum((head + np.array(sizes)) * sent)
        assert found.ends == list(ends)
        assert found.squares == 22
        frames = _core.scan_frames(room[: ends[-1]])
        assert [frame.fragment for frame in frames] == list(np.flatnonzero(sent))
        decoded = np.zeros(length, np.float32)
        for frame in frames:
            assert frame.version == frame.fragment
            start = frame.fragment * fragment_len
            codec.decode(frame.payload, decoded[start : start + fragment_len])
        np.testing.assert_array_equal(decoded + residual, gradient)

    # What cannot be encoded gives back what those before it took, the left out among them.
    before, gradient[90] = residual.copy(), 1e9
    found = arrays.encode(
        room, dtype=1, fragment_len=fragment_len, first=0, count=count, replica=1, incarnation=1,
        push=3, versions=np.zeros(5, np.uint64), codec=codec, residual=residual, leaves_out=True,
    )  # fmt: skip
    assert (found.overflowed, found.first_overflowed) == (1, 90)
    np.testing.assert_array_equal(residual, before)
