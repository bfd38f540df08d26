"""A hand-made coordinator around the product's real shard and session.

The coordinator lives in the measuring process, says what it must for one shard to load and for
replicas to join, and is silent afterwards: heartbeats come once an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.bench.children import Child
from pydownpour.codecs import Codec
from pydownpour.layout import ArrayEntry, Flat, Layout, ShardEntry, partition
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.net.server import Call, FrameBody, Route, Server
from pydownpour.optimizers import Part
from pydownpour.policy.downpour import Downpour
from pydownpour.replica.coordination import Coordination
from pydownpour.replica.encoded import EncodedPush, Encoder
from pydownpour.replica.pushes import Push
from pydownpour.replica.session import Session
from pydownpour.wire import messages
from pydownpour.wire.frames import Age
from pydownpour.wire.messages import (
    HeartbeatAnswer,
    JobLayout,
    Join,
    Joined,
    ShardAssigned,
    ShardHello,
    ShardMap,
)
from pydownpour.wire.proof import KEY_SIZE, Keeper

SILENT_S = 3600.0
"""Between two heartbeats: none falls into a measurement."""
INITIAL_PIECE_LEN = 1 << 18
KEEPER = Keeper(bytes(KEY_SIZE))
"""The cluster is nobody else's: its key need not be secret."""


SEQ, SEQ_AT = struct.Struct("<Q"), 24
CRC, CRC_AT = struct.Struct("<I"), 60
"""Where a frame's header has its number, and its own checksum."""


@final
class Cluster:
    """One job with one shard.

    Args:
        layout: Its parameters; all start at 1.
        optimizer: The shard's.
        codec: How gradients travel, if not as they are.
    """

    def __init__(self, layout: Layout, optimizer: Part, codec: Codec | None = None) -> None:
        self.layout, self.optimizer = layout, optimizer
        self.codec = None if codec is None else codec.entry()
        self.policy = Downpour(push_every=1, fetch_every=1 << 30, overlap=False, local_rate=0.0)
        self.partition = partition(layout.len, 1)
        self.shard_url = ""
        self.has_shard = asyncio.Event()
        self._replicas = 0

    def routes(self) -> list[Route]:
        """What a coordinator answers."""
        return [
            Route("POST", "/v1/shard", self._shard),
            Route("GET", "/v1/initial", self._initial),
            Route("GET", "/v1/layout", self._layout),
            Route("POST", "/v1/join", self._join),
            Route("POST", "/v1/heartbeat", self._running),
            Route("POST", "/v1/leave", self._running),
        ]

    async def _shard(self, call: Call) -> ShardAssigned:
        self.shard_url = messages.decode(ShardHello, call.body).url
        self.has_shard.set()
        return ShardAssigned(
            index=0,
            incarnation=1,
            secret=KEEPER.secret("shard", 0, 1),
            key=KEEPER.text(),
            shards=1,
            epoch=1,
            start=0,
            len=self.layout.len,
            stripe_len=self.partition.stripe_len,
            fragment_len=self.partition.fragment_len,
            fingerprint=self.layout.fingerprint,
            optimizer=self.optimizer.parts(),
            codec=self.codec,
            policy=self.policy.to_wire(),
            heartbeat_s=SILENT_S,
            job="bench",
        )

    async def _initial(self, call: Call) -> FrameBody:
        left = self.layout.len

        def produce() -> list[NDArray[Any]] | None:
            nonlocal left
            count = min(left, INITIAL_PIECE_LEN)
            left -= count
            return [np.ones(count, "<f4")] if count else None

        return FrameBody(produce)

    async def _layout(self, call: Call) -> JobLayout:
        return JobLayout(arrays=self.layout.entries())

    async def _join(self, call: Call) -> Joined:
        messages.decode(Join, call.body)
        self._replicas += 1
        return self.joined(self._replicas)

    def joined(self, replica: int) -> Joined:
        """What a replica's join is answered: one replica, one shard."""
        entry = ShardEntry(index=0, url=self.shard_url, start=0, len=self.layout.len)
        return Joined(
            replica=replica,
            incarnation=1,
            secret=KEEPER.secret("replica", replica, 1),
            protocol=messages.PROTOCOL,
            stripe_len=self.partition.stripe_len,
            fragment_len=self.partition.fragment_len,
            shard_map=ShardMap(epoch=1, entries=[entry], fragments=self.partition.fragment_count),
            fingerprint=self.layout.fingerprint,
            policy=self.policy.to_wire(),
            optimizer=self.optimizer.parts(),
            codec=self.codec,
            work=None,
            wire_dtype="float32",
            heartbeat_s=SILENT_S,
            lease_s=SILENT_S,
            job="bench",
        )

    async def _running(self, call: Call) -> HeartbeatAnswer:
        return HeartbeatAnswer(state="running")


@final
class Running:
    """A cluster whose shard is up: its coordinator's URL and its shard's process."""

    def __init__(self, cluster: Cluster, url: str, shard: Child) -> None:
        self.cluster, self.url, self.shard = cluster, url, shard


@contextlib.asynccontextmanager
async def running(
    layout: Layout, optimizer: Part, codec: Codec | None = None
) -> AsyncIterator[Running]:
    """Start a coordinator here and a shard in a process of its own."""
    cluster = Cluster(layout, optimizer, codec)
    async with (
        Server(cluster.routes(), bind=Bind(), access=Access(), name="bench") as server,
        Child("shard", coordinator=server.url) as shard,
    ):
        await cluster.has_shard.wait()
        yield Running(cluster, server.url, shard)


def one_array(length: int) -> Layout:
    """The layout of one float32 array of ``len`` elements."""
    return Layout.from_entries([ArrayEntry(name="w", shape=(length,), dtype="float32")])


@final
class Pusher:
    """A replica without a training function: a session, and pushes of one buffer."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self.session, self.layout = session, layout
        self.encoder = Encoder(layout, session.joined, leaves_out=True)
        self.gradient: Flat = np.full(layout.len, 1e-3, np.float32)
        self._base = session.fetcher.base()
        self._pushes: deque[Push] = deque()
        """Those whose memory no later one has; the oldest first."""
        self._count = 0

    async def push(self) -> None:
        """Push the gradient, and wait until it is acknowledged."""
        await self.session.outbox.all_settled(self.start_push())

    async def push_anew(self) -> None:
        """The same, encoding it each time, as a training loop does."""
        room = self._pushes.popleft().encoded if self._pushes else self.encoder.room()
        index = self._send(self._encode(room, self._count + 1))
        await self.session.outbox.all_settled(index)

    def bytes_sent(self) -> int:
        """On the wire, with every frame."""
        return sum(link.traffic()[0] for link in self.session.links)

    def start_push(self) -> int:
        """Push the gradient; returns the push's index."""
        return self._send(self._encoded(self._count + 1))

    def _send(self, encoded: EncodedPush) -> int:
        self._count = index = self._count + 1
        push = Push(
            index=index,
            encoded=encoded,
            base=self._base,
            clock=index,
            samples=1,
            norm=1.0,
        )
        self._pushes.append(push)
        self.session.outbox.push(push)
        return index

    def _encoded(self, index: int) -> EncodedPush:
        """The gradient, encoded once; memory of a settled push only gets another number."""
        if not (self._pushes and self._pushes[0].is_settled):
            return self._encode(self.encoder.room(), index)
        room = self._pushes.popleft().encoded
        view = room.frames(0, room.fragments)
        for at in range(0, room.fragments * room.stride, room.stride):
            SEQ.pack_into(view, at + SEQ_AT, index)
            CRC.pack_into(view, at + CRC_AT, _core.crc32c(view[at : at + CRC_AT]))
        return room

    def _encode(self, room: EncodedPush, index: int) -> EncodedPush:
        _ = self.encoder.encode(
            self.encoder.whole(self.gradient),
            room,
            push=index,
            base=self._base.versions,
            first=0,
            count=room.fragments,
        )
        return room

    async def fetch_all(self) -> None:
        """Fetch every fragment, whatever is known already."""
        for link in self.session.links:
            link.known = Age()
        await self.session.fetcher.fetch()


@contextlib.asynccontextmanager
async def pushing(url: str, layout: Layout, *, fallback: bool = False) -> AsyncIterator[Pusher]:
    """Join a bench cluster with a bare session on the running loop.

    Args:
        url: The coordinator's.
        layout: The job's.
        fallback: POST and GET in place of the stream.
    """
    access = Access()
    async with Client(url, access=access) as client:
        request = Join(nonce=secrets.token_hex(8))
        joined = await client.post("/v1/join", request, Joined)
        session = Session(Coordination(client, joined, layout), access, random.Random(1))
        for link in session.links:
            link.fallback = fallback
        async with session.taking_part():
            yield Pusher(session, layout)
