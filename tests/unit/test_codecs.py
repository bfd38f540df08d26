"""The descriptions of codecs: frozen, bounded, and what the core has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pydownpour import Int8, _core
from pydownpour.codecs import CODECS, Codec, compiled
from pydownpour.errors import ConfigError


def test_every_codec_of_the_core_has_one_description() -> None:
    assert [codec.name for codec in CODECS] == _core.codecs()


@pytest.mark.parametrize("kind", CODECS)
def test_a_description_is_frozen_compiles_and_is_readable(kind: type[Codec]) -> None:
    codec = kind()
    first = dataclasses.fields(codec)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(codec, first, 1)
    assert codec == kind()
    assert hash(codec) == hash(kind())
    fast = compiled(codec.entry())
    assert fast is not None
    assert (fast.name, fast.number > 0) == (codec.name, True)
    assert codec.describe().startswith(f"{codec.name}({first}=")
    assert codec.name.capitalize() in (kind.__name__, kind.__name__.lower())


def test_no_codec_is_none() -> None:
    assert compiled(None) is None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (0, "int8: block=0 must be at least 1"),
        (100, "block is 100, must be a multiple of 16 from 16 to 65536"),
        (65552, "from 16 to 65536"),
        (2.5, "must be a whole number"),
        (True, "must be a whole number"),
        ("256", "must be a whole number"),
    ],
)
def test_blocks_that_cannot_be(block: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Int8(block=block)


def test_numpy_numbers_become_python_ones() -> None:
    codec = Int8(np.int64(32))  # type: ignore[arg-type]
    assert type(codec.block) is int
    assert codec.describe() == "int8(block=32)"
