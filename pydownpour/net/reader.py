"""Read a job's parameters without being one of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from pydownpour import _core, limits
from pydownpour.errors import DownpourError, PeerLost, TransportError
from pydownpour.layout import Flat, Layout, raw
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.wire import messages
from pydownpour.wire.frames import FETCH_BEGINS, Kind
from pydownpour.wire.messages import ShardEntry
from pydownpour.wire.proof import READER


async def read_parameters(
    shards: Sequence[ShardEntry],
    layout: Layout,
    *,
    access: Access,
    fragment_len: int,
    secret: str,
) -> Flat:
    """Fetch the whole of a job's parameters over GET, from all shards at once.

    Shapes:
        returns: (layout.len,) float32. Each fragment is whole; fragments may differ in age.

    Raises:
        TransportError: a shard cannot be reached.
        AuthError: the secret is not a reader's.
        WrongEpoch: a shard has moved, or is about to.
    """
    flat = layout.zeros()
    read = _reading(flat, access, fragment_len, _headers(layout, secret))
    tasks = [asyncio.ensure_future(read(entry)) for entry in shards]
    try:
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return flat


async def read_what_answers(
    shards: Sequence[ShardEntry],
    layout: Layout,
    *,
    access: Access,
    fragment_len: int,
    secret: str,
) -> tuple[Flat, dict[int, DownpourError]]:
    """As :func:`read_parameters`, of those shards that can be read.

    Shapes:
        returns: (layout.len,) float32, NaN where nothing could be read; and by the index of a
            shard why it could not.
    """
    flat = layout.zeros()
    flat.fill(np.nan)
    read = _reading(flat, access, fragment_len, _headers(layout, secret))
    failures: dict[int, DownpourError] = {}

    async def attempt(entry: ShardEntry) -> None:
        try:
            await read(entry)
        except DownpourError as error:
            failures[entry.index] = error
            flat[entry.start : entry.start + entry.len] = np.nan

    await asyncio.gather(*map(attempt, shards))
    return flat, failures


def _headers(layout: Layout, secret: str) -> dict[str, str]:
    return {
        messages.HEADER_REPLICA: str(READER),
        messages.HEADER_INCARNATION: str(READER),
        messages.HEADER_SECRET: secret,
        messages.HEADER_FINGERPRINT: layout.fingerprint,
    }


def _reading(
    flat: Flat, access: Access, fragment_len: int, headers: dict[str, str]
) -> Callable[[ShardEntry], Coroutine[Any, Any, None]]:
    """Reads one shard into its place."""

    async def read(entry: ShardEntry) -> None:
        values = flat[entry.start : entry.start + entry.len]
        named, first = {**headers, messages.HEADER_EPOCH: str(entry.epoch)}, 0
        async with Client(entry.url, access=access) as client:
            while True:
                inlet = _inlet(values, fragment_len)
                try:
                    await receive(client, values, named, inlet=inlet, since=0, first=first)
                    return
                except TransportError:
                    landed, behind = inlet.landed()
                    if not landed:
                        raise
                # On a slow link it would never come whole: what has landed is kept.
                first = behind
                await asyncio.sleep(limits.BACKOFF_MIN_S)

    return read


def _inlet(values: Flat, fragment_len: int) -> _core.ReplicaInlet:
    inlet = _core.ReplicaInlet(
        len=len(values), fragment_len=fragment_len, control_size_max=limits.CONTROL_SIZE_MAX
    )
    inlet.set_target(values, np.zeros(-(-len(values) // fragment_len), np.uint64))
    return inlet


async def receive(
    client: Client,
    values: Flat,
    headers: dict[str, str],
    *,
    inlet: _core.ReplicaInlet,
    since: int,
    first: int = 0,
    heard: Callable[[int], None] = lambda size: None,
    begins: Callable[[int], None] = lambda lsn: None,
) -> int:
    """GET what changed at one shard after LSN ``since`` into ``values``, the inlet's target.

    Args:
        client: Of the shard.
        values: Its elements.
        headers: Beside the usual ones.
        inlet: A fresh one. When the answer is cut off, ``landed`` says where to go on.
        since: The LSN that ``values`` are at; 0 asks for everything.
        first: The first fragment wanted.
        heard: Told the bytes of each piece that comes.
        begins: Told the LSN at the beginning of an answer that takes long.

    Returns:
        The LSN at the beginning of the answer.

    Raises:
        PeerLost: the answer ended early.
        RemoteProtocolError: it is malformed.
    """
    buffers = (memoryview(inlet), raw(values))
    lsn: int | None = None
    async for chunk in client.chunks(f"/v1/fetch?since={since}&first={first}", headers):
        heard(len(chunk))
        rest = memoryview(chunk)
        while rest:
            which, start, stop = inlet.window()
            n = min(stop - start, len(rest))
            buffers[which][start : start + n] = rest[:n]
            rest = rest[n:]
            frame = inlet.advance(n)
            while frame is not None:
                if frame.kind == Kind.FETCHED and frame.flags & FETCH_BEGINS:
                    begins(frame.version)
                elif frame.kind == Kind.FETCHED:
                    lsn = frame.version
                frame = inlet.advance(0)
    if lsn is None:
        raise PeerLost(f"{client.url}: a fetch ended without its last frame", peer=client.url)
    return lsn
