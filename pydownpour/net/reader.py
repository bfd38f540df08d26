"""Read a job's parameters without being one of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from pydownpour import _core
from pydownpour.errors import DownpourError, PeerLost, TransportError
from pydownpour.layout import Flat, Layout, fragments_of, raw
from pydownpour.limits import CONTROL_SIZE_MAX, DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.wire import messages
from pydownpour.wire.frames import FETCH_BEGINS, Age, Kind
from pydownpour.wire.messages import ShardEntry
from pydownpour.wire.proof import READER


async def read_parameters(
    shards: Sequence[ShardEntry],
    layout: Layout,
    *,
    access: Access,
    fragment_len: int,
    secret: str,
    last: bool = False,
    limits: Limits = DEFAULT,
) -> Flat:
    """Fetch the whole of a job's parameters over GET, from all shards at once.

    Args:
        shards: All of the job's.
        layout: Its layout.
        access: Token and TLS.
        fragment_len: As it is cut.
        secret: A reader's.
        last: Nobody will push any more: open rounds are closed first.
        limits: Of the connections.

    Shapes:
        returns: (layout.len,) float32. Each fragment is whole; fragments may differ in age.

    Raises:
        TransportError: a shard cannot be reached.
        AuthError: the secret is not a reader's.
        WrongEpoch: a shard has moved, or is about to.
    """
    flat = layout.zeros()
    query = "&last=1" if last else ""
    read = _reading(flat, access, fragment_len, _headers(layout, secret), query, limits)
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
    limits: Limits = DEFAULT,
) -> tuple[Flat, dict[int, DownpourError]]:
    """As :func:`read_parameters`, for the last time, of those shards that can be read.

    Shapes:
        returns: (layout.len,) float32, NaN where nothing could be read; and by the index of a
            shard why it could not.
    """
    flat = layout.zeros()
    flat.fill(np.nan)
    read = _reading(flat, access, fragment_len, _headers(layout, secret), "&last=1", limits)
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
    flat: Flat,
    access: Access,
    fragment_len: int,
    headers: dict[str, str],
    query: str,
    limits: Limits,
) -> Callable[[ShardEntry], Coroutine[Any, Any, None]]:
    """Reads one shard into its place."""

    async def read(entry: ShardEntry) -> None:
        values = flat[entry.start : entry.start + entry.len]
        named, first = {**headers, messages.HEADER_EPOCH: str(entry.epoch)}, 0
        async with Client(entry.url, access=access, limits=limits) as client:
            while True:
                inlet = _inlet(entry, values, fragment_len)
                try:
                    await receive(
                        client, values, named, inlet=inlet, since=0, first=first, query=query
                    )
                    return
                except TransportError:
                    landed, behind = inlet.landed()
                    if not landed:
                        raise
                # On a slow link it would never come whole: what has landed is kept.
                first = behind
                await asyncio.sleep(client.limits.backoff_min_s)

    return read


def _inlet(entry: ShardEntry, values: Flat, fragment_len: int) -> _core.ReplicaInlet:
    fragments = fragments_of(entry.start, entry.len, fragment_len)
    inlet = _core.ReplicaInlet(
        len=entry.len,
        fragment_len=fragment_len,
        first_fragment=fragments.start,
        control_size_max=CONTROL_SIZE_MAX,
    )
    inlet.set_target(values, np.zeros(len(fragments), np.uint64))
    return inlet


async def receive(
    client: Client,
    values: Flat,
    headers: dict[str, str],
    *,
    inlet: _core.ReplicaInlet,
    since: int,
    first: int = 0,
    query: str = "",
    heard: Callable[[int], None] = lambda size: None,
    begins: Callable[[Age], None] = lambda age: None,
    waits: Callable[[_core.Frame], None] = lambda frame: None,
) -> Age | None:
    """GET what changed at one shard after LSN ``since`` into ``values``, the inlet's target.

    Args:
        client: Of the shard.
        values: Its elements.
        headers: Beside the usual ones.
        inlet: A fresh one. When the answer is cut off, ``landed`` says where to go on.
        since: The LSN that ``values`` are at; 0 asks for everything.
        first: The first fragment wanted.
        query: More of the request's.
        heard: Told the bytes of each piece that comes.
        begins: Told the age at the beginning of an answer that takes long.
        waits: Gets the VIEW that says for whom the answer waits.

    Returns:
        The age at the beginning of the answer; None if it waits for others.

    Raises:
        PeerLost: the answer ended early.
        RemoteProtocolError: it is malformed.
    """
    buffers = (memoryview(inlet), raw(values))
    age: Age | None = None
    is_held = False
    async for chunk in client.chunks(f"/v1/fetch?since={since}&first={first}{query}", headers):
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
                    begins(Age.of(frame))
                elif frame.kind == Kind.FETCHED:
                    age = Age.of(frame)
                elif frame.kind == Kind.VIEW:
                    is_held = True
                    waits(frame)
                frame = inlet.advance(0)
    if age is None and not is_held:
        raise PeerLost(f"{client.url}: a fetch ended without its last frame", peer=client.url)
    return age
