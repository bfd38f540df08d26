"""Read a job's parameters without being one of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from pydownpour import _core, limits
from pydownpour.errors import RemoteProtocolError
from pydownpour.layout import Flat, Layout, raw
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.wire import messages
from pydownpour.wire.frames import Kind
from pydownpour.wire.messages import ShardEntry
from pydownpour.wire.proof import READER


async def read_parameters(
    shards: Sequence[ShardEntry],
    layout: Layout,
    *,
    access: Access,
    fragment_len: int,
    secret: str,
    epoch: int = 1,
) -> Flat:
    """Fetch the whole of a job's parameters over GET, from all shards at once.

    Shapes:
        returns: (layout.len,) float32. Each fragment is whole; fragments may differ in age.

    Raises:
        TransportError: a shard cannot be reached.
        AuthError: the secret is not a reader's.
        Fenced: the shard map is of another epoch.
    """
    flat = layout.zeros()
    headers = {
        messages.HEADER_REPLICA: str(READER),
        messages.HEADER_INCARNATION: str(READER),
        messages.HEADER_SECRET: secret,
        messages.HEADER_EPOCH: str(epoch),
        messages.HEADER_FINGERPRINT: layout.fingerprint,
    }

    async def read(entry: ShardEntry) -> None:
        values = flat[entry.start : entry.start + entry.len]
        async with Client(entry.url, access=access) as client:
            await receive(client, values, headers, fragment_len=fragment_len, since=0)

    tasks = [asyncio.ensure_future(read(entry)) for entry in shards]
    try:
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return flat


async def receive(
    client: Client,
    values: Flat,
    headers: dict[str, str],
    *,
    fragment_len: int,
    since: int,
    inlet: _core.ReplicaInlet | None = None,
) -> tuple[int, int]:
    """GET what changed at one shard after LSN ``since`` into ``values``.

    Returns:
        (LSN the values are now up to, bytes received).

    Raises:
        RemoteProtocolError: the answer ended early or is malformed.
    """
    if inlet is None:
        fragments = -(-len(values) // fragment_len)
        inlet = _core.ReplicaInlet(
            len=len(values), fragment_len=fragment_len, control_size_max=limits.CONTROL_SIZE_MAX
        )
        inlet.set_target(values, np.zeros(fragments, np.uint64))
    buffers = (memoryview(inlet), raw(values))
    lsn: int | None = None
    received = 0
    async for chunk in client.chunks(f"/v1/fetch?since={since}", headers):
        received += len(chunk)
        rest = memoryview(chunk)
        while rest:
            which, start, stop = inlet.window()
            n = min(stop - start, len(rest))
            buffers[which][start : start + n] = rest[:n]
            rest = rest[n:]
            frame = inlet.advance(n)
            while frame is not None:
                if frame.kind == Kind.FETCHED:
                    lsn = frame.version
                frame = inlet.advance(0)
    if lsn is None:
        raise RemoteProtocolError(f"{client.url}: a fetch ended without its last frame")
    return lsn, received
