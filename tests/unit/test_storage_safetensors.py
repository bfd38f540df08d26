"""safetensors: what we write others read, and nothing malformed is taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from pydownpour.errors import CheckpointError, ConfigError
from pydownpour.layout import ArrayEntry, Flat, Layout
from pydownpour.limits import DEFAULT, Limits
from pydownpour.storage import safetensors as written_by
from pydownpour.storage.safetensors import FORMAT_NAMES, check_layout, decode, encode


def layout(*arrays: tuple[str, tuple[int, ...], str]) -> Layout:
    return Layout.from_entries(
        ArrayEntry(name=name, shape=shape, dtype=dtype) for name, shape, dtype in arrays
    )


def written(made: Layout, flat: Flat, **metadata: str) -> bytes:
    return b"".join(encode(made, flat, metadata))


def ramp(made: Layout) -> Flat:
    return np.arange(made.len, dtype=np.float32) - 2.5


MIXED = layout(
    ("half", (3,), "float16"),
    ("scalar", (), "float32"),
    ("wide", (2, 2), "float64"),
    ("empty", (0, 4), "float32"),
    ("weights", (4, 2), "float32"),
)


def test_the_reference_reader_reads_every_dtype_shape_and_the_metadata() -> None:
    flat = ramp(MIXED)
    data = written(MIXED, flat, job="digits", lsn="7,9")
    read = safetensors.numpy.load(data)
    views = MIXED.views(flat)
    assert set(read) == set(views)
    for spec in MIXED.arrays:
        assert read[spec.name].dtype.name == spec.dtype
        assert read[spec.name].shape == spec.shape
        np.testing.assert_array_equal(read[spec.name], views[spec.name])
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"job": "digits", "lsn": "7,9"}


@pytest.mark.parametrize("piece", [1, 2, 3, 1 << 20])
def test_what_has_to_be_converted_is_not_converted_whole(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = ramp(MIXED)
    whole = written(MIXED, flat)
    monkeypatch.setattr(written_by, "PIECE_LEN", piece)
    pieces = list(encode(MIXED, flat, {}))
    assert b"".join(pieces) == whole
    assert max(map(len, pieces[1:])) <= 8 * piece
    shared = [p for p in pieces[1:] if np.shares_memory(np.frombuffer(p, np.uint8), flat)]
    assert sum(map(len, shared)) == 4 * (1 + 8), "float32 is written from where it lies"


def test_every_array_starts_aligned_to_its_element() -> None:
    data = written(MIXED, ramp(MIXED))
    begin = 8 + int.from_bytes(data[:8], "little")
    assert begin % 8 == 0
    header = json.loads(data[8:begin])
    for spec in MIXED.arrays:
        size = np.dtype(spec.dtype).itemsize
        assert header[spec.name]["data_offsets"][0] % size == 0


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    made = layout(("b", (5,), "bfloat16"))
    # 1 + 1/256 and 1 + 3/256 lie halfway between two neighbours.
    flat = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf], np.float32)
    data = written(made, flat)
    _, tensors = decode(data)
    assert tensors["b"].values.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x7F80]
    assert tensors["b"].float32().tolist() == [1.0, 1.0, 1.015625, -0.0, np.inf]
    assert tensors["b"].dtype == "bfloat16"
    ((_, theirs),) = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    assert theirs["dtype"] == "BF16"


names = st.text(min_size=1, max_size=8)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.dictionaries(names, st.tuples(shapes, st.sampled_from(sorted(FORMAT_NAMES)))))
def test_round_trip(arrays: dict[str, tuple[tuple[int, ...], str]]) -> None:
    arrays = {**arrays, "always": ((2,), "float32")}
    arrays.pop("__metadata__", None)
    made = layout(*((name, shape, dtype) for name, (shape, dtype) in arrays.items()))
    flat = ramp(made)
    metadata, tensors = decode(written(made, flat, lsn="1"))
    assert metadata == {"lsn": "1"}
    assert tensors.keys() == arrays.keys()
    for name, view in made.views(flat).items():
        assert tensors[name].dtype == arrays[name][1]
        # Multiples of one half below 256 are exact in every dtype, bfloat16 has 8 bits.
        np.testing.assert_array_equal(tensors[name].float32(), view)


def packed(header: Any, body: bytes = b"", *, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too few"),
        (b"\0" * 7, "too few"),
        (packed(b"", size=DEFAULT.stored_header_size_max + 1), "stored_header_size_max"),
        (packed(b"{}", size=3), "header of 3 bytes in a file of 10"),
        (packed(b"[]"), "not a JSON object"),
        (packed(b" {}"), "not a JSON object"),
        (packed(b'{"a":'), "bad header"),
        (packed(b'{"a\xff":1}'), "bad header"),
        (packed(b'{"a":' * 100_000), "bad header"),
        (packed(b'{"a":{},"a":{}}'), "'a' occurs twice"),
        (packed({"a": {"dtype": "F32", "dtyp": 1, "shape": []}}), "must have dtype"),
        (packed({"a": 3}), "must have dtype"),
        (packed({"a": entry(0, 8, dtype="I64")}, b"\0" * 8), "dtype 'I64'"),
        (packed({"a": entry(0, 8, dtype=["F32"])}, b"\0" * 8), "dtype"),
        (packed({"a": entry(0, 8, shape=[-2])}, b"\0" * 8), "lists of sizes"),
        (packed({"a": entry(0, 8, shape=[2.0])}, b"\0" * 8), "lists of sizes"),
        (packed({"a": entry(0, 8, shape=[True, 2])}, b"\0" * 8), "lists of sizes"),
        (packed({"a": entry(0, 8, shape="2")}, b"\0" * 8), "lists of sizes"),
        (packed({"a": entry(0, 8, shape=[1 << 62, 1 << 62])}, b"\0" * 8), "takes"),
        (packed({"a": entry(0, 8, shape=[3])}, b"\0" * 8), "takes 12 bytes, its place has 8"),
        (packed({"a": entry(8, 0, shape=[])}, b"\0" * 8), "not a begin and an end"),
        (packed({"a": {**entry(0, 8), "data_offsets": [0]}}, b"\0" * 8), "not a begin"),
        (packed({"a": entry(4, 8)}, b"\0" * 8), "hole at byte 0"),
        (packed({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12), "overlap at byte 4"),
        (packed({"a": entry(0, 4), "b": entry(8, 12)}, b"\0" * 12), "hole at byte 4"),
        (packed({"a": entry(0, 8)}, b"\0" * 7), "ends at byte 8 of only 7"),
        (packed({"a": entry(0, 8)}, b"\0" * 9), "1 bytes after the last array"),
        (packed({"__metadata__": {"a": 1}}), "text to text"),
        (packed({"__metadata__": "x"}), "text to text"),
    ],
)
def test_malformed_files_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=r"here\.bin: ") as caught:
        decode(data, path="here.bin")
    assert words in str(caught.value)


@given(st.data())
def test_no_damage_is_read_as_something_else(data: st.DataObject) -> None:
    """Any cut or flipped header byte is either refused or still describes whole, equal arrays."""
    good = written(MIXED, ramp(MIXED), job="x")
    end = 8 + int.from_bytes(good[:8], "little")
    bad = bytearray(good)
    if data.draw(st.booleans(), "cut"):
        del bad[data.draw(st.integers(0, len(good) - 1), "length") :]
    else:
        at = data.draw(st.integers(0, end - 1), "at")
        bad[at] ^= 1 << data.draw(st.integers(0, 7), "bit")
    try:
        _, tensors = decode(bytes(bad))
    except CheckpointError:
        return
    assert len(bad) == len(good)
    assert sum(t.values.nbytes for t in tensors.values()) == len(good) - end


def test_a_header_beyond_the_limit_is_not_written_nor_read() -> None:
    small = Limits(stored_header_size_max=100)
    with pytest.raises(CheckpointError, match="5 arrays need a header of"):
        b"".join(encode(MIXED, ramp(MIXED), {}, limits=small))
    with pytest.raises(CheckpointError, match=r"the limit is 100 \(stored_header_size_max\)"):
        decode(written(MIXED, ramp(MIXED)), limits=small)


def test_a_layout_whose_header_could_not_be_written_is_refused_with_the_numbers() -> None:
    size = int.from_bytes(written(MIXED, ramp(MIXED))[:8], "little")
    check_layout(MIXED, limits=Limits(stored_header_size_max=size + 9, stored_metadata_size_max=9))
    words = r"5 arrays need a header of \d{3} bytes in a safetensors file, the limit is \d{3} "
    with pytest.raises(ConfigError, match=words):
        check_layout(MIXED, limits=Limits(stored_header_size_max=size, stored_metadata_size_max=9))
