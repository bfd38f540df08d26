"""A peer that speaks to coordinator and shards by itself: frames byte by byte, raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.errors import Fenced, NotReady
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire import frames, messages
from pydownpour.wire.messages import (
    HeartbeatAnswer,
    Join,
    Joined,
    Leave,
    ShardEntry,
    ShardStats,
    Stop,
)

F32 = 1
JOINED: dict[str, list[Stranger]] = {}
"""Who joined which coordinator and has not said goodbye."""


class RawStream(StreamProtocol):
    """An upgraded connection that keeps what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = bytearray(65536)
        self.heard = bytearray()
        self._news = asyncio.Event()

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._scratch)

    def received(self, n: int) -> None:
        self.heard += self._scratch[:n]
        self._news.set()

    def lost(self, error: BaseException | None) -> None:
        self._news.set()

    async def frames(self, count: int) -> list[_core.Frame]:
        """The first ``count`` frames heard, all of them if the stream ends before."""
        while True:
            self._news.clear()
            with contextlib.suppress(Exception):
                found = _core.scan_frames(bytes(self.heard))
                if len(found) >= count or not self.is_open:
                    return found
            assert self.is_open, bytes(self.heard)
            await self._news.wait()


class Stranger:
    """Joined, but with no session: it says what the test says."""

    def __init__(self, joined: Joined, access: Access) -> None:
        self.joined, self.access = joined, access
        self.replica, self.incarnation = joined.replica, joined.incarnation
        self.secret = joined.secret

    @classmethod
    async def join(cls, url: str, access: Access | None = None, **fields: Any) -> Stranger:
        """Ask for membership as ``Join`` says, taking the job's layout unless told otherwise."""
        access = access or Access()
        async with Client(url, access=access) as client:
            wish = Join(**fields)
            while True:
                try:
                    stranger = cls(await client.post("/v1/join", wish, Joined), access)
                    JOINED.setdefault(url, []).append(stranger)
                    return stranger
                except NotReady:  # shards are still starting
                    await asyncio.sleep(0.01)

    @property
    def shard(self) -> ShardEntry:
        """The first of the job's shards."""
        return self.joined.shard_map.entries[0]

    @property
    def headers(self) -> dict[str, str]:
        """What a request to a shard says of us."""
        return {
            messages.HEADER_REPLICA: str(self.replica),
            messages.HEADER_INCARNATION: str(self.incarnation),
            messages.HEADER_SECRET: self.secret,
            messages.HEADER_EPOCH: str(self.shard.epoch),
        }

    def push(
        self,
        values: NDArray[np.float32] | list[bytes],
        *,
        number: int = 1,
        first: int = 0,
        norm: float = 0.0,
        codec: int = 0,
    ) -> bytes:
        """The frames of a push of as many fragments as there are values for, which says of itself
        that its norm is ``norm``. What a codec has made of them is given fragment by fragment."""
        length = self.joined.fragment_len
        pieces: list[Any] = (
            values
            if isinstance(values, list)
            else [values[start : start + length] for start in range(0, len(values), length)]
        )
        notice = frames.PushNotice(first_open=1, clock=1, samples=1, norm=norm)
        head = frames.push(
            replica=self.replica,
            incarnation=self.incarnation,
            push=number,
            fragment=first,
            count=len(pieces),
            notice=notice,
        )
        return head + b"".join(
            _core.encode_frame(
                kind=frames.Kind.FRAGMENT,
                codec=codec,
                dtype=F32,
                replica=self.replica,
                incarnation=self.incarnation,
                fragment=fragment,
                seq=number,
                payload=piece,
            )
            for fragment, piece in enumerate(pieces, first)
        )

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """To the first shard."""
        async with Client(self.shard.url, access=self.access) as client:
            yield client

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[RawStream]:
        """An upgraded connection to the first shard."""
        async with self.client() as client:
            stream = RawStream()
            await client.upgrade("/v1/stream", self.headers, stream)
            try:
                yield stream
            finally:
                stream.close()
                await stream.wait_closed()

    async def post(self, body: bytes) -> list[_core.Frame]:
        """POST frames to the first shard."""
        async with self.client() as client:
            return _core.scan_frames(
                await client.exchange("/v1/push", [body], self.headers, size_max=1 << 20)
            )

    async def stats(self) -> ShardStats:
        """What the first shard has counted."""
        async with self.client() as client:
            return await client.get("/v1/stats", ShardStats)


async def dismiss(url: str, access: Access | None = None) -> None:
    """Say goodbye for every stranger, since they do not, and end the job."""
    async with Client(url, access=access or Access()) as client:
        for stranger in JOINED.pop(url, []):
            joined = stranger.joined
            goodbye = Leave(
                replica=joined.replica, incarnation=joined.incarnation, secret=joined.secret
            )
            with contextlib.suppress(Fenced):  # its next life says so
                await client.post("/v1/leave", goodbye, HeartbeatAnswer)
        await client.post("/v1/stop", Stop(), HeartbeatAnswer)


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes before the peer closes; a reset is how a close looks with bytes unread."""
    with contextlib.suppress(ConnectionResetError):
        return await reader.read()
    return b""


@contextlib.asynccontextmanager
async def raw_connection(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to a URL's host and port."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
