"""Named arrays on one line of elements, cut into stripes, fragments and shards.

Theory. A job's parameters are a mapping from names to arrays. Sorted by name and laid end to end
in C order they form one run of ``len`` elements (the *layout*). The run is cut into *stripes* of
``stripe_len`` elements and, a few stripes each, into *fragments* of ``fragment_len``, the units of
a record, numbered from 0; the last of each is shorter. Each shard owns a run of whole fragments.
The cut is made once for a job, the numbers say nothing of shards: how many there are may change.
Names are sent, numbers never assigned by order of first use, so two processes that build their
parameters in different order agree.

    arrays     |   b1   |        w1            | b2 |      w2       |
    stripes    |....|....|....|....|....|....|....|....|....|....|..|
    fragments  |    0    |    1    |    2    |    3    |    4    | 5|
    shards     |            shard 0          |       shard 1        |
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydownpour import limits
from pydownpour.errors import ConfigError, GradientMismatch, LayoutMismatch, UnsupportedArray
from pydownpour.fields import ArrayName, Count, Label, Shape, Url, Word

Flat: TypeAlias = NDArray[np.float32]
"""All elements of a layout (or of one shard), one-dimensional and contiguous."""

DTYPE_CODES: dict[str, int] = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}
"""Supported element types and their codes on the wire and in the core."""
DTYPE_SIZES: dict[str, int] = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Bytes an element takes."""

RESERVED_NAME = "__metadata__"
"""Not a parameter's name: the files parameters are written to use it."""

_WHY_NOT = {
    "parameter": {
        "i": "integers have no gradient; keep counters and tables out of the parameters",
        "u": "integers have no gradient; keep counters and tables out of the parameters",
        "b": "booleans have no gradient; keep masks out of the parameters",
        "c": "complex numbers are not supported; pass real and imaginary parts as two arrays",
        "O": "object arrays cannot travel; convert to float32",
    },
    "gradient": {
        "i": "integers are taken for a mistake; convert it with .astype(np.float32)",
        "u": "integers are taken for a mistake; convert it with .astype(np.float32)",
        "b": "booleans are taken for a mistake; convert it with .astype(np.float32)",
        "c": "complex numbers are not supported; pass real and imaginary parts as two arrays",
        "O": "object arrays cannot travel; convert to float32",
    },
}
"""What an array is called -> numpy's kind of its dtype -> why it is refused."""


class ArrayEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One named array, in the form messages carry it."""

    name: ArrayName
    shape: Shape
    dtype: Label


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of the map: it owns elements [start, start + len) of the layout."""

    index: Word
    url: Url
    start: Count
    len: Count
    epoch: Word = 1
    """Of the map in which this entry came to be. Who pushes or fetches names it, and a shard that
    serves under another answers :class:`~pydownpour.errors.WrongEpoch`."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ArraySpec:
    """One named array and the elements [start, start + len) it fills in the layout."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    len: int

    def describe(self) -> str:
        """``name float32[64, 10]``, as error messages show it."""
        return f"{self.name} {self.dtype}{list(self.shape)}"


@final
@dataclasses.dataclass(frozen=True)
class Layout:
    """The arrays of a job in canonical order.

    Attributes:
        arrays: One spec per array, sorted by name, covering [0, len) without holes.
        len: Elements in all.
        fingerprint: SHA-256 over names, shapes and dtypes, in hex: equal layouts, equal prints.
    """

    arrays: tuple[ArraySpec, ...]
    len: int
    fingerprint: str

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Layout:
        """The layout of a mapping from names to arrays (anything numpy can read).

        Raises:
            ConfigError: no arrays, no elements, or a name that is not a non-empty string.
            UnsupportedArray: an array of integers, booleans, complex numbers or objects, a masked
                one, or a dict of arrays.
        """
        return cls.from_entries(
            ArrayEntry(name=name, shape=array.shape, dtype=array.dtype.name)
            for name, array in arrays_of(parameters).items()
        )

    @classmethod
    def from_entries(cls, entries: Iterable[ArrayEntry]) -> Layout:
        """The layout that ``entries()`` described, for example from a join message."""
        listed = list(entries)
        for entry in listed:
            _check_entry(entry)
        if not listed:
            raise ConfigError("parameters is empty: there is nothing to train")
        if len(listed) > limits.LAYOUT_ARRAYS_MAX:
            raise ConfigError(
                f"{len(listed)} parameter arrays, the limit is {limits.LAYOUT_ARRAYS_MAX} "
                "(LAYOUT_ARRAYS_MAX); pack small ones together"
            )
        specs, start = [], 0
        digest = hashlib.sha256()
        for entry in sorted(listed, key=lambda e: e.name):
            length = math.prod(entry.shape)
            specs.append(ArraySpec(entry.name, tuple(entry.shape), entry.dtype, start, length))
            digest.update(f"{len(entry.name)}:{entry.name} {entry.dtype} {entry.shape}\n".encode())
            start += length
            if start > limits.LAYOUT_LEN_MAX:
                raise ConfigError(
                    f"the parameters up to {specs[-1].describe()} have more elements than "
                    f"{limits.LAYOUT_LEN_MAX} (LAYOUT_LEN_MAX)"
                )
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            raise ConfigError("two parameters have the same name")
        if start == 0:
            raise ConfigError(
                f"all {len(specs)} parameter arrays have zero elements: there is nothing to train"
            )
        return cls(tuple(specs), start, digest.hexdigest())

    def entries(self) -> list[ArrayEntry]:
        """The arrays' names, shapes and dtypes, as messages carry them."""
        return [ArrayEntry(name=s.name, shape=s.shape, dtype=s.dtype) for s in self.arrays]

    def check_same(self, theirs: Layout, *, whose: str = "the replica") -> None:
        """Raise LayoutMismatch naming the first array that differs from the job's (self)."""
        if self.fingerprint == theirs.fingerprint:
            return
        ours_by_name = {spec.name: spec for spec in self.arrays}
        theirs_by_name = {spec.name: spec for spec in theirs.arrays}
        for name in sorted(ours_by_name.keys() | theirs_by_name.keys()):
            ours, other = ours_by_name.get(name), theirs_by_name.get(name)
            if ours is None:
                assert other is not None
                raise LayoutMismatch(
                    f"{whose} has a parameter the job does not: {other.describe()}; the job's "
                    "parameters are fixed when it starts, so add it to the job file and start anew",
                    expected=None,
                    actual=other.describe(),
                    array=name,
                )
            if other is None:
                raise LayoutMismatch(
                    f"{whose} lacks the job's parameter {ours.describe()}",
                    expected=ours.describe(),
                    actual=None,
                    array=name,
                )
            if (ours.shape, ours.dtype) != (other.shape, other.dtype):
                raise LayoutMismatch(
                    f"parameter {name!r} is {other.describe()} at {whose}, but "
                    f"{ours.describe()} in the job",
                    expected=ours.describe(),
                    actual=other.describe(),
                    array=name,
                )
        raise LayoutMismatch(f"{whose} has another fingerprint but equal arrays: versions differ")

    def zeros(self) -> Flat:
        """A flat float32 array of ``len`` zeros."""
        return np.zeros(self.len, np.float32)

    def views(self, flat: Flat) -> dict[str, NDArray[np.float32]]:
        """Writable float32 views into ``flat``, one per array, in its shape."""
        return {s.name: flat[s.start : s.start + s.len].reshape(s.shape) for s in self.arrays}

    def declared(self, flat: Flat) -> dict[str, NDArray[Any]]:
        """The arrays of ``flat`` in their declared dtypes: views where that is float32."""
        return {
            name: view if spec.dtype == "float32" else view.astype(numpy_dtype(spec.dtype))
            for spec, (name, view) in zip(self.arrays, self.views(flat).items(), strict=True)
        }

    def check_names(self, arrays: Mapping[str, Any]) -> None:
        """Raise GradientMismatch unless ``arrays`` has exactly the layout's names."""
        if len(arrays) == len(self.arrays) and all(s.name in arrays for s in self.arrays):
            return
        ours = {s.name for s in self.arrays}
        missing, added = sorted(ours - set(arrays)), sorted(set(arrays) - ours, key=str)
        words = []
        if missing:
            words.append(f"missing {', '.join(map(repr, missing[:5]))}")
        if added:
            words.append(
                f"not in the job {', '.join(map(repr, added[:5]))} (the parameters of a job are "
                "fixed when it starts)"
            )
        nested = next((name for name in added if isinstance(arrays[name], Mapping)), None)
        if nested is not None:
            words.append(_nested_words(nested, arrays[nested]))
        raise GradientMismatch(
            f"expected a gradient for each of {len(self.arrays)} arrays: {'; '.join(words)}"
        )

    @staticmethod
    def shape_error(spec: ArraySpec, shape: tuple[int, ...]) -> GradientMismatch:
        """The error for a gradient of the right name and the wrong shape."""
        return GradientMismatch(
            f"gradient {spec.name!r} has shape {list(shape)}, its parameter has {list(spec.shape)}",
            expected=list(spec.shape),
            actual=list(shape),
            array=spec.name,
        )


def _check_entry(entry: ArrayEntry) -> None:
    """Raise if there can be no such array."""
    name = entry.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"parameter names must be non-empty strings, not {name!r}")
    if name == RESERVED_NAME:
        raise ConfigError(
            f"a parameter cannot be called {RESERVED_NAME!r}: the safetensors format "
            "keeps that name for itself"
        )
    if len(name) > limits.ARRAY_NAME_LEN_MAX:
        raise ConfigError(
            f"parameter {name[:40]!r}... has a name of {len(name)} characters, "
            f"the limit is {limits.ARRAY_NAME_LEN_MAX} (ARRAY_NAME_LEN_MAX)"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"parameter {name!r} has a name that is no text: {error}") from error
    if entry.dtype not in DTYPE_CODES:
        raise UnsupportedArray(f"parameter {name!r} has dtype {entry.dtype}")
    if len(entry.shape) > limits.ARRAY_RANK_MAX or any(e < 0 for e in entry.shape):
        raise ConfigError(f"parameter {name!r} has shape {list(entry.shape)}")


@final
@dataclasses.dataclass(frozen=True)
class Partition:
    """How a layout is cut into shards: stripe and fragment lengths and each shard's elements."""

    stripe_len: int
    fragment_len: int
    starts: tuple[int, ...]
    """First element of each shard, and the end: always at the start of a fragment."""
    lens: tuple[int, ...]

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.starts)

    @property
    def fragment_count(self) -> int:
        """Fragments of the whole layout."""
        return self.fragments(self.shards - 1).stop

    def fragments(self, shard: int) -> range:
        """The fragments of the layout that one shard owns."""
        return fragments_of(self.starts[shard], self.lens[shard], self.fragment_len)


def fragments_of(start: int, length: int, fragment_len: int) -> range:
    """The layout's fragments of ``length`` elements from ``start`` on, the last maybe in part."""
    return range(start // fragment_len, -(-(start + length) // fragment_len))


def partition(
    length: int,
    shards: int,
    *,
    fragment_len: int | None = None,
    fragment_size: int = limits.DEFAULT.fragment_size,
) -> Partition:
    """Cut ``length`` elements into ``shards`` runs of whole fragments, as equal as these allow.

    Fragments have ``fragment_size`` bytes of float32, and less (halved until it fits) for
    small models, so that each shard has at least ``limits.FRAGMENTS_PER_SHARD_WANTED`` and the
    largest stays within 1.25x of the mean. A job that goes on with other shards keeps its
    ``fragment_len``, for that is part of every record's identity.

    Raises:
        ConfigError: more shards than fragments.
    """
    if shards < 1:
        raise ConfigError(f"shards={shards} must be at least 1")
    if shards > limits.SHARDS_MAX:
        raise ConfigError(f"shards={shards} must be at most {limits.SHARDS_MAX} (SHARDS_MAX)")
    if fragment_len is None:
        fragment_len = fragment_size // 4
        wanted = shards * limits.FRAGMENTS_PER_SHARD_WANTED
        while fragment_len > limits.FRAGMENT_LEN_MIN and (-(-length // fragment_len) < wanted):
            fragment_len //= 2
    fragments = -(-length // fragment_len)
    if fragments < shards:
        raise ConfigError(
            f"{shards} shards, but {length} parameters fill only {fragments} "
            f"fragment{'s' if fragments != 1 else ''} of {fragment_len} elements, and a shard has "
            f"at least one; use at most {fragments} shard{'s' if fragments != 1 else ''}"
        )
    stripe_len = min(limits.STRIPE_LEN_MAX, fragment_len)
    bounds = [min(i * fragments // shards * fragment_len, length) for i in range(shards)] + [length]
    starts = tuple(bounds[:-1])
    lens = tuple(b - a for a, b in itertools.pairwise(bounds))
    return Partition(stripe_len, fragment_len, starts, lens)


def partition_of(shards: Sequence[ShardEntry], stripe_len: int, fragment_len: int) -> Partition:
    """The partition a shard map describes.

    Raises:
        ConfigError: the shards leave a hole or overlap, or share a fragment.
    """
    ordered = sorted(shards, key=lambda s: s.start)
    end = 0
    for entry in ordered:
        if entry.start != end or entry.len <= 0:
            raise ConfigError(f"shard map has a hole or overlap at element {end}")
        if entry.start % fragment_len:
            raise ConfigError(
                f"shard map has a cut at element {end}, within a fragment of {fragment_len}"
            )
        end += entry.len
    return Partition(
        stripe_len, fragment_len, tuple(s.start for s in ordered), tuple(s.len for s in ordered)
    )


def arrays_of(parameters: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Parameters as arrays of dtypes that can be trained; an array itself is not copied.

    Raises:
        ConfigError: not a mapping.
        UnsupportedArray: with the reason in words.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigError(
            f"parameters must be a mapping from names to arrays, not a {type(parameters).__name__}"
        )
    arrays = {name: as_array(name, value) for name, value in parameters.items()}
    for name, array in arrays.items():
        supported_dtype(name, array)
    return arrays


def as_array(name: str, value: Any, what: str = "parameter") -> NDArray[Any]:
    """What numpy reads from a value of any kind.

    Args:
        name: Whose it is.
        value: An array itself is not copied.
        what: "parameter" or "gradient": what messages call it.

    Raises:
        UnsupportedArray: a masked array, a dict, None, or something numpy cannot read.
    """
    if type(value) is np.ndarray:
        return value
    why = ""
    if isinstance(value, np.ma.MaskedArray):
        why = "is a masked array, and its mask would be lost; fill it: .filled(0)"
    elif isinstance(value, Mapping):
        why = f"is a {type(value).__name__}: {_nested_words(name, value)}"
    elif value is None:
        why = "is None"
    if why:
        raise UnsupportedArray(f"{what} {name!r} {why}", array=name)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedArray(
            f"{what} {name!r} is a {type(value).__name__} that numpy cannot read as an array: "
            f"{error}",
            array=name,
        ) from error


def _nested_words(name: str, value: Mapping[Any, Any]) -> str:
    inner = next(iter(value), "w")
    return f"names are flat; join them with dots, {f'{name}.{inner}'!r} for [{name!r}][{inner!r}]"


def supported_dtype(name: str, array: NDArray[Any], what: str = "parameter") -> str:
    """The dtype's name, if its elements can be trained.

    Raises:
        UnsupportedArray: with the reason in words.
    """
    dtype = array.dtype.name
    if dtype in DTYPE_CODES:
        return dtype
    why = _WHY_NOT[what].get(array.dtype.kind, f"supported are {', '.join(DTYPE_CODES)}")
    raise UnsupportedArray(f"{what} {name!r} has dtype {dtype}: {why}", array=name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of one of ours.

    Raises:
        ConfigError: bfloat16, and the package that brings it is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        bfloat16: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ConfigError(
            "the job has bfloat16 arrays, which numpy reads only with the package ml_dtypes: "
            "pip install ml_dtypes"
        ) from error
    return bfloat16


def raw(array: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array, also for dtypes without a buffer protocol (bfloat16)."""
    return array.reshape(-1).view(np.uint8).data
