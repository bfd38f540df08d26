"""Encoded records at a real shard, as they should be and as no honest replica sends them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import _core, limits
from pydownpour.codecs import Codec, compiled
from pydownpour.errors import ConfigError
from pydownpour.wire.frames import Code, Kind
from tests.e2e.stage import Stage
from tests.e2e.stranger import Stranger, dismiss
from tests.reference.codecs import Array, Int8

LENGTH = 1000
TWIN = Int8(64)


@contextlib.asynccontextmanager
async def staged(codec: Codec, folder: Path) -> AsyncIterator[Stage]:
    """A job with a codec and one shard, and a member that does nothing."""
    quick = limits.Limits(heartbeat_s=0.05)  # its end is heard of sooner
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)}, optimizer=dp.SGD(lr=1.0), codec=codec
    )
    async with Stage(job, folder, shards=1, limits=quick) as stage:
        await Stranger.join(stage.url, codecs=_core.codecs())
        yield stage
        await dismiss(stage.url)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """With int8."""
    async with staged(dp.Int8(block=64), tmp_path / "run") as stage:
        yield stage


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


async def test_quanta_that_cannot_be_are_refused_and_those_that_can_are_applied_once(
    tmp_path: Path,
) -> None:
    async with staged(dp.Threshold(tau=2.0), tmp_path / "run") as stage:
        stranger = await Stranger.join(stage.url, codecs=_core.codecs())
        length = stranger.joined.fragment_len

        def words(*of: int) -> bytes:
            return np.array(of, "<u4").tobytes()

        wrong = [
            words(length), words(2**32 - 1), words(5, 5), words(5, 5 + 2**31), words(9, 3),
            words(5) + b"\0", b"\xff" * (length // 4), b"\0" * (length // 4 + 1),
        ]  # fmt: skip
        for payload in wrong:
            (refused, *_) = await stranger.post(stranger.push([payload], codec=2))
            assert (refused.kind, refused.aux) == (Kind.REFUSE, Code.LENGTH), payload[:12]
        good = stranger.push([words(5, 7 + 2**31)], codec=2)
        for _ in range(2):
            (ack, *_) = await stranger.post(good)
            assert (ack.kind, ack.count) == (Kind.ACK, 1)
        stats = await stranger.stats()
        assert (stats.lsn, stats.records_refused) == (1, len(wrong))
        async with dp.join(stage.url) as replica:
            (places,) = np.nonzero(replica.parameters["w"])
            assert places.tolist() == [5, 7]
            assert replica.parameters["w"][places].tolist() == [-2.0, 2.0]


async def test_who_cannot_encode_is_not_let_in(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"by int8\(block=64\), the replica knows zip"):
        await Stranger.join(stage.url, codecs=["zip"])
