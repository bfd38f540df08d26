"""A plane of a shard's store, filled from another process, over as many connections as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np

from pydownpour import _core, limits
from pydownpour.errors import PeerLost, RemoteProtocolError
from pydownpour.layout import raw
from pydownpour.net.client import Client

PIECE_LEN: Final = 4 * limits.STRIPE_LEN_MAX
"""Elements taken at a time: whole stripes, 256 KiB. A shard may be most of what its machine has
memory for; and a connection that breaks costs at most so much."""


@final
class Filling:
    """One plane that comes as little-endian float32.

    Args:
        store: Before its first record.
        plane: 0 for the parameters, then the optimizer's state.

    Attributes:
        loaded: Elements in the store.
    """

    def __init__(self, store: _core.Shard, plane: int = 0) -> None:
        self._store, self._plane = store, plane
        self.loaded = 0

    async def go_on(self, client: Client, path: str, headers: Mapping[str, str]) -> None:
        """Get what is missing. What a broken connection began of a piece comes again.

        Args:
            client: Of who has the elements.
            path: Ends with a query; the first element wanted is added to it.
            headers: Beside the usual ones.

        Raises:
            PeerLost: the answer ended early; what came of it is kept.
            RemoteProtocolError: it has more elements than the plane.
        """
        store = self._store
        if self.loaded == store.len:
            return
        piece = np.empty(min(store.len - self.loaded, PIECE_LEN), "<f4")
        target, filled = raw(piece), 0
        async for chunk in client.chunks(f"{path}&start={self.loaded}", headers):
            rest = memoryview(chunk)
            while rest and self.loaded < store.len:
                count = min(len(rest), len(target) - filled)
                target[filled : filled + count] = rest[:count]
                rest, filled = rest[count:], filled + count
                if filled == len(target):
                    values = piece.astype(np.float32, copy=False)
                    store.load_plane(self._plane, values, self.loaded)
                    self.loaded, filled = self.loaded + len(piece), 0
                    piece = piece[: store.len - self.loaded]
                    target = raw(piece)
            if rest:
                raise RemoteProtocolError(
                    f"{client.url} sent more than the {store.len} float32 elements asked for"
                )
        if self.loaded < store.len:
            raise PeerLost(
                f"{client.url} ended within element {self.loaded + filled // 4} of {store.len}",
                peer=client.url,
            )
