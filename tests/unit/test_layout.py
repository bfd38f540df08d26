"""Layouts and partitions: names to elements, elements to stripes, stripes to shards."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour import limits
from pydownpour.errors import ConfigError, GradientMismatch, LayoutMismatch, UnsupportedArray
from pydownpour.layout import Layout, ShardEntry, partition, partition_of, raw

ARRAYS = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(4), "a": np.float16(2.0)}


def test_arrays_are_laid_out_by_name_whatever_their_order() -> None:
    one, two = Layout.of(ARRAYS), Layout.of(dict(reversed(ARRAYS.items())))
    assert one == two
    assert [(s.name, s.start, s.len) for s in one.arrays] == [
        ("a", 0, 1),
        ("b", 1, 4),
        ("w", 5, 12),
    ]
    assert one.len == 17


def test_entries_round_trip() -> None:
    layout = Layout.of(ARRAYS)
    assert Layout.from_entries(layout.entries()) == layout


def test_views_are_writable_and_declared_arrays_have_their_dtypes() -> None:
    layout = Layout.of(ARRAYS)
    flat = np.arange(layout.len, dtype=np.float32)
    views = layout.views(flat)
    assert [views[s.name].shape for s in layout.arrays] == [s.shape for s in layout.arrays]
    views["w"][1, 2] = -1.0
    assert -1.0 in flat
    declared = layout.declared(flat)
    assert {name: array.dtype.name for name, array in declared.items()} == {
        "a": "float16",
        "b": "float64",
        "w": "float32",
    }
    assert declared["w"].base is flat
    assert all(np.array_equal(declared[name], views[name]) for name in views)


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros(2, np.int64), "integers have no gradient"),
        (np.zeros(2, np.uint8), "integers have no gradient"),
        (np.zeros(2, bool), "booleans"),
        (np.zeros(2, complex), "complex"),
        (np.array([object()]), "object"),
        (np.array(["x"]), "supported are"),
    ],
)
def test_arrays_that_cannot_be_trained_are_refused_with_the_reason(array: Any, word: str) -> None:
    with pytest.raises(UnsupportedArray, match=word) as caught:
        Layout.of({"good": np.zeros(1), "bad": array})
    assert "'bad'" in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({}, "empty"),
        ({"z": np.zeros((0, 4))}, "zero elements"),
        ({"": np.zeros(1)}, "non-empty"),
        ({"__metadata__": np.zeros(1)}, "keeps that name"),
        ([np.zeros(1)], "mapping"),
    ],
)
def test_impossible_parameters_say_why(parameters: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Layout.of(parameters)


def test_mismatch_names_the_first_array_that_differs() -> None:
    job = Layout.of({"a": np.zeros(2, np.float32), "b": np.zeros((2, 3), np.float32)})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": np.zeros(2, np.float32)}, "lacks the job's parameter b float32"),
        ({**{s.name: np.zeros(s.shape, s.dtype) for s in job.arrays}, "c": 1.0}, "add it to the"),
        ({"a": np.zeros(2, np.float32), "b": np.zeros((3, 2), np.float32)}, r"\[3, 2\] at the rep"),
        ({"a": np.zeros(2), "b": np.zeros((2, 3), np.float32)}, "'a' is a float64"),
    ]
    for theirs, words in cases:
        with pytest.raises(LayoutMismatch, match=words):
            job.check_same(Layout.of(theirs))
    job.check_same(Layout.from_entries(job.entries()))


def test_gradients_of_other_names_are_named() -> None:
    layout = Layout.of({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(GradientMismatch, match="missing 'b'"):
        layout.check_names({"a": np.zeros(2)})
    with pytest.raises(GradientMismatch, match="not in the job 'c'"):
        layout.check_names({"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)})


@given(length=st.integers(1, 3_000_000), shards=st.integers(1, 24))
def test_partition_covers_everything_once_in_whole_balanced_fragments(
    length: int, shards: int
) -> None:
    if -(-length // limits.FRAGMENT_LEN_MIN) < shards:
        with pytest.raises(ConfigError, match=f"{shards} shards"):
            partition(length, shards)
        return
    cut = partition(length, shards)
    assert cut.starts[0] == 0
    assert sum(cut.lens) == length
    fragments = [fragment for shard in range(shards) for fragment in cut.fragments(shard)]
    assert fragments == list(range(-(-length // cut.fragment_len)))
    for start, size, after in zip(cut.starts, cut.lens, (*cut.starts[1:], length), strict=True):
        assert size > 0
        assert start + size == after
        assert start % cut.fragment_len == 0
    counts = [len(cut.fragments(shard)) for shard in range(shards)]
    assert max(counts) - min(counts) <= 1
    assert cut.fragment_len % cut.stripe_len == 0
    assert cut.fragment_len * 4 <= limits.DEFAULT.fragment_size
    if cut.fragment_len > limits.FRAGMENT_LEN_MIN:
        assert min(counts) >= limits.FRAGMENTS_PER_SHARD_WANTED
        assert max(cut.lens) <= 1.25 * length / shards + cut.fragment_len


def test_large_models_have_fragments_of_full_size_and_a_given_length_is_kept() -> None:
    for shards in (1, 4, 100):
        cut = partition(42_000_000, shards)
        assert (cut.stripe_len, cut.fragment_len) == (16_384, 65_536)
    small = partition(5000, 2)
    assert (small.fragment_len, small.stripe_len) == (512, 512)
    cut = partition(5000, 5, fragment_len=small.fragment_len)
    assert cut.fragment_len == 512
    assert [cut.fragments(shard) for shard in range(5)] == [
        range(0, 2), range(2, 4), range(4, 6), range(6, 8), range(8, 10)
    ]  # fmt: skip


def test_more_shards_than_fragments_says_how_many_would_do() -> None:
    with pytest.raises(ConfigError, match=r"3 shards, but 20 parameters fill only 2 fragments"):
        partition(20, 3)
    with pytest.raises(ConfigError, match=r"11 shards, .* use at most 10 shards"):
        partition(5000, 11, fragment_len=512)
    with pytest.raises(ConfigError, match="at least 1"):
        partition(20, 0)


def test_a_shard_map_with_a_hole_or_a_cut_fragment_is_refused() -> None:
    good = [
        ShardEntry(index=1, url="b", start=32, len=8),
        ShardEntry(index=0, url="a", start=0, len=32),
    ]
    assert partition_of(good, 16, 32).lens == (32, 8)
    with pytest.raises(ConfigError, match="element 32"):
        partition_of([good[1], ShardEntry(index=1, url="b", start=48, len=8)], 16, 16)
    with pytest.raises(ConfigError, match="cut at element 32, within a fragment of 64"):
        partition_of(good, 16, 64)


def test_raw_gives_the_bytes_themselves() -> None:
    array = np.arange(6, dtype=np.float32)
    view = raw(array)
    assert view.nbytes == 24
    view[:4] = b"\0\0\200?"
    assert array[0] == 1.0
