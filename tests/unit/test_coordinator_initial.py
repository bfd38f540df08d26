"""Initial parameters go to shards piece by piece, from the arrays that the job declares."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour.coordinator import initial
from pydownpour.coordinator.initial import InitialParameters
from pydownpour.errors import ConfigError
from pydownpour.layout import Layout


def parameters_of(arrays: dict[str, Any]) -> InitialParameters:
    return InitialParameters(Layout.of(arrays), arrays)


def values(found: list[memoryview]) -> list[float]:
    return [float(v) for piece in found for v in np.frombuffer(piece, "<f4")]


BASE = np.arange(48, dtype=np.float64).reshape(6, 8)
ARRAYS: dict[str, Any] = {
    "a": np.float32(7.0) * np.ones((), np.float32),
    "b": np.zeros((3, 0), np.float32),
    "c": np.arange(20, dtype=np.float32).reshape(4, 5),
    "d": BASE,
    "e": np.asfortranarray(BASE.astype(np.float32)),
    "f": BASE.astype(np.float16)[::2, ::3],
    "g": np.zeros(0, np.float32),
    "h": BASE.astype(">f4"),
}


@given(cut=st.lists(st.integers(0, 185), min_size=2, max_size=2), piece=st.integers(1, 64))
def test_pieces_are_the_arrays_end_to_end_whatever_the_cuts(cut: list[int], piece: int) -> None:
    whole = np.concatenate([np.ravel(a).astype(np.float32) for a in ARRAYS.values()])
    start, stop = sorted(min(c, len(whole)) for c in cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initial, "PIECE_LEN", piece)
        found = list(parameters_of(ARRAYS).pieces(start, stop))
    assert values(found) == whole[start:stop].tolist()
    assert all(len(p) <= 4 * piece for p in found)


def test_many_readers_share_one_copy_and_a_shard_reads_once_at_a_time() -> None:
    array = np.arange(3 * initial.PIECE_LEN + 5, dtype=np.float32)
    parameters = parameters_of({"w": array})
    moves: list[int] = []
    bodies = [
        parameters.body(shard, 0, len(array), functools.partial(moves.append, shard))
        for shard in range(20)
    ]
    for body in bodies:
        buffers = body.produce()
        assert buffers is not None
        (piece,) = buffers
        assert np.shares_memory(np.frombuffer(piece, np.uint8), array)
        assert len(piece) == 4 * initial.PIECE_LEN
    assert moves == list(range(20))
    again = parameters.body(3, 0, len(array), lambda: None)
    with pytest.raises(ConnectionResetError, match="shard 3 reads by a newer connection"):
        bodies[3].produce()
    assert len(list(iter(again.produce, None))) == 4
    assert bodies[4].produce() is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_named(value: float) -> None:
    last = np.zeros(initial.PIECE_LEN + 2)
    last[-1] = value
    with pytest.raises(ConfigError, match=r"parameter bad float64\[\d+\] holds NaN, infinite or"):
        parameters_of({"a": np.zeros(2, np.float32), "bad": last})
