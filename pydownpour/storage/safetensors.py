"""The safetensors format: parameters anybody can read, and nothing but parameters.

    8 bytes   header length n, little-endian
    n bytes   JSON: {"__metadata__": {...}, name: {"dtype", "shape", "data_offsets"}, ...}
    rest      the elements, little-endian, C order, without holes or overlaps

Source: the format's own description (github.com/huggingface/safetensors). Written here are F32,
F64, F16 and BF16 only. As its authors do, wider elements come first, so that every array starts
aligned to its element; the header is padded with spaces to 8 bytes.

The reader is strict: it refuses what the format forbids (overlaps, holes, repeated names, offsets
beyond the end, shapes that do not multiply out) and what we have no use for. It never allocates
from an unchecked number.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.errors import CheckpointError, ConfigError
from pydownpour.layout import DTYPE_CODES, DTYPE_SIZES, ArraySpec, Layout, raw
from pydownpour.limits import DEFAULT, Limits

FORMAT_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16"}
"""Our dtype names -> the format's."""
_OUR_NAMES = {theirs: ours for ours, theirs in FORMAT_NAMES.items()}
_NUMPY = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}

PIECE_LEN: Final = 1 << 20
"""Elements written at once: what has to be converted is not converted whole."""

Values: TypeAlias = NDArray[np.float32]


@final
@dataclasses.dataclass(frozen=True)
class Tensor:
    """One array of a file.

    Attributes:
        dtype: Our name of its elements.
        values: The elements in its shape; bfloat16 as raw 16-bit words, numpy has no such type.
    """

    dtype: str
    values: NDArray[Any]

    def float32(self) -> Values:
        """The values as float32, whatever they are stored as."""
        if self.dtype != "bfloat16":
            return self.values.astype(np.float32)
        return (self.values.astype(np.uint32) << 16).view(np.float32)


def encode(
    layout: Layout, flat: Values, metadata: Mapping[str, str], *, limits: Limits = DEFAULT
) -> Iterator[memoryview]:
    """The file of a layout's parameters, piece by piece, each array in its declared dtype.

    Args:
        layout: Names, shapes, dtypes.
        flat: All elements of the layout, float32.
        metadata: Text only, as the format demands.
        limits: ``stored_header_size_max``.

    Raises:
        CheckpointError: the header would exceed ``stored_header_size_max``.
    """
    text = _header_text(layout, metadata)
    text += b" " * (-len(text) % 8)
    if len(text) > limits.stored_header_size_max:
        raise CheckpointError(_too_long(layout, len(text), limits.stored_header_size_max))
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for spec in _stored_order(layout):
        for start in range(spec.start, spec.start + spec.len, PIECE_LEN):
            stop = min(start + PIECE_LEN, spec.start + spec.len)
            yield _stored(flat[start:stop], spec.dtype)


def check_layout(layout: Layout, *, limits: Limits = DEFAULT) -> None:
    """Raise if a layout's arrays could never be written: better before the training than after.

    Raises:
        ConfigError: their header would exceed ``stored_header_size_max``, or leave less of it than
            ``stored_metadata_size_max``.
    """
    size = len(_header_text(layout, {}))
    room = limits.stored_header_size_max - limits.stored_metadata_size_max
    if size > room:
        raise ConfigError(_too_long(layout, size, room))


def _too_long(layout: Layout, size: int, size_max: int) -> str:
    return (
        f"{len(layout.arrays)} arrays need a header of {size} bytes in a safetensors file, the "
        f"limit is {size_max} (stored_header_size_max); use shorter names, or pack small arrays "
        "together"
    )


def _stored_order(layout: Layout) -> list[ArraySpec]:
    return sorted(layout.arrays, key=lambda spec: (-DTYPE_SIZES[spec.dtype], spec.name))


def _header_text(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for spec in _stored_order(layout):
        begin, end = end, end + spec.len * DTYPE_SIZES[spec.dtype]
        header[spec.name] = {
            "dtype": FORMAT_NAMES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (begin, end),
        }
    return msgspec.json.encode(header)


def _stored(values: Values, dtype: str) -> memoryview:
    if dtype == "bfloat16":
        words = np.empty(values.shape, np.uint16)
        _core.cast(raw(values), DTYPE_CODES["float32"], raw(words), DTYPE_CODES["bfloat16"])
        return raw(words.astype("<u2", copy=False))
    return raw(values.astype(_NUMPY[dtype], copy=False))


def decode(
    data: bytes, *, path: str = "the file", limits: Limits = DEFAULT
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and arrays of a file's bytes.

    Raises:
        CheckpointError: the bytes are not such a file; the message says where they go wrong.
    """
    header, body = _header(data, path, limits.stored_header_size_max)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map text to text")
    entries = sorted(
        ((name, _entry(name, value, path)) for name, value in header.items()),
        key=lambda item: (item[1].begin, item[1].end),
    )
    tensors: dict[str, Tensor] = {}
    at = 0
    for name, entry in entries:
        if entry.begin != at:
            kind = "hole" if entry.begin > at else "overlap"
            raise CheckpointError(f"{path}: {kind} at byte {min(at, entry.begin)} before {name!r}")
        if entry.end > len(body):
            raise CheckpointError(
                f"{path}: array {name!r} ends at byte {entry.end} of only {len(body)}"
            )
        elements = np.frombuffer(body[entry.begin : entry.end], _NUMPY[entry.dtype])
        tensors[name] = Tensor(entry.dtype, elements.reshape(entry.shape))
        at = entry.end
    if at != len(body):
        raise CheckpointError(f"{path}: {len(body) - at} bytes after the last array")
    return metadata, tensors


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _header(data: bytes, path: str, size_max: int) -> tuple[dict[str, Any], memoryview]:
    if len(data) < 8:
        raise CheckpointError(f"{path}: {len(data)} bytes are too few for a header")
    size = int.from_bytes(data[:8], "little")
    if size > size_max:
        raise CheckpointError(
            f"{path}: header of {size} bytes, the limit is {size_max} (stored_header_size_max)"
        )
    if 8 + size > len(data):
        raise CheckpointError(f"{path}: header of {size} bytes in a file of {len(data)}")
    text = data[8 : 8 + size]
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: bad header: {error}") from error
    return header, memoryview(data)[8 + size :]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; a name that occurs twice would hide one of its values."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice")
    return members


def _entry(name: str, value: Any, path: str) -> _Entry:
    where = f"{path}: array {name!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} must have dtype, shape and data_offsets")
    dtype = _OUR_NAMES.get(value["dtype"] if isinstance(value["dtype"], str) else "")
    if dtype is None:
        raise CheckpointError(
            f"{where} has dtype {value['dtype']!r}; read are {', '.join(_OUR_NAMES)}"
        )
    shape, offsets = value["shape"], value["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n < 1 << 63 for n in numbers
        ):
            raise CheckpointError(f"{where}: shape and data_offsets must be lists of sizes")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {offsets} are not a begin and an end")
    size = math.prod(shape) * DTYPE_SIZES[dtype]
    if size != offsets[1] - offsets[0]:
        raise CheckpointError(
            f"{where}: shape {shape} of {value['dtype']} takes {size} bytes, its place has "
            f"{offsets[1] - offsets[0]}"
        )
    return _Entry(dtype, tuple(shape), offsets[0], offsets[1])
