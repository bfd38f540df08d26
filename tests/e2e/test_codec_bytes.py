"""Encoded records at a real shard, as they should be and as no honest replica sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import _core, limits
from pydownpour.codecs import compiled
from pydownpour.errors import ConfigError
from pydownpour.wire.frames import Code, Kind
from tests.e2e.stage import Stage
from tests.e2e.stranger import Stranger, dismiss
from tests.reference.codecs import Array, Int8

LENGTH = 1000
TWIN = Int8(64)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A job with a codec and one shard, and a member that does nothing."""
    quick = limits.Limits(heartbeat_s=0.05)  # its end is heard of sooner
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        codec=dp.Int8(block=64),
    )
    async with Stage(job, tmp_path / "run", shards=1, limits=quick) as stage:
        await Stranger.join(stage.url, codecs=_core.codecs())
        yield stage
        await dismiss(stage.url)


def gradient(seed: int) -> Array:
    values: Array = np.random.default_rng(seed).standard_normal(LENGTH).astype("f4")
    return values


def encoded(stranger: Stranger, values: Array) -> list[bytes]:
    """Fragment by fragment, by the twin."""
    length = stranger.joined.fragment_len
    return [TWIN.encode(values[start : start + length]) for start in range(0, LENGTH, length)]


@pytest.mark.parametrize("transport", ["stream", "post"])
async def test_a_shard_applies_what_the_bytes_decode_to(stage: Stage, transport: str) -> None:
    stranger = await Stranger.join(stage.url, codecs=_core.codecs())
    assert compiled(stranger.joined.codec) is not None
    pieces = encoded(stranger, gradient(1))
    body = stranger.push(pieces, codec=TWIN.number)
    if transport == "post":
        answers = await stranger.post(body + body)  # the second is the first again
    else:
        async with stranger.stream() as stream:
            stream.write(body + body)
            answers = await stream.frames(2)
    assert [(answer.kind, answer.count) for answer in answers] == [(Kind.ACK, len(pieces))] * 2
    stats = await stranger.stats()
    assert (stats.lsn, stats.records_duplicate) == (len(pieces), len(pieces))
    length = stranger.joined.fragment_len
    assert stats.memory["decoded"] == 4 * length
    decoded = [
        TWIN.decode(piece, min(length, LENGTH - i * length)) for i, piece in enumerate(pieces)
    ]
    async with dp.join(stage.url) as replica:
        np.testing.assert_array_equal(replica.parameters["w"], 0 - np.concatenate(decoded))


async def test_what_is_no_encoding_is_refused_in_words(stage: Stage) -> None:
    stranger = await Stranger.join(stage.url, codecs=_core.codecs())
    data = encoded(stranger, gradient(2))[0]
    bad_scale = np.array([np.nan], "<f4").tobytes() + data[4:]
    cases = [
        (data + b"\0", 1, Code.LENGTH, "refused (length)"),
        (data[:-1], 1, Code.LENGTH, "refused (length)"),
        (b"", 1, Code.LENGTH, "refused (length)"),
        (data, 2, Code.UNSUPPORTED, "refused (unsupported)"),
        (bad_scale, 1, Code.NON_FINITE, "64 NaN or infinite values, the first at element 0"),
    ]
    for payload, codec, code, words in cases:
        (refused, *_) = await stranger.post(stranger.push([payload], codec=codec))
        assert (refused.kind, refused.aux) == (Kind.REFUSE, code)
        assert words in refused.payload.decode()
    stats = await stranger.stats()
    assert (stats.lsn, stats.records_refused) == (0, len(cases))


async def test_who_cannot_encode_is_not_let_in(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"by int8\(block=64\), the replica knows zip"):
        await Stranger.join(stage.url, codecs=["zip"])
