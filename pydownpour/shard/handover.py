"""A shard moves to another process: no push is lost, and none is applied by both.

    new process                     coordinator                 old process
    hello, with a ticket ---------> a successor, not more
                         <--------- source, secret
                                    the next heartbeat's
                                    answer: gives, secret ----> remembers it
    POST /v1/give ------------------------------------------->  gives: it takes nothing any more,
                                                                and answers "wrong epoch" alone
                         <------------------------------------- counts and sizes
    GET /v1/state ------------------------------------------->  windows, versions, LSN; the planes
    heartbeat: ready ------------->  the place is the new one's,
                                     in a map of the next epoch
                         <---------- serves under that epoch    fenced, with the newest map: says so
                                                                to whoever asks, and ends

The new process has everything when its own journal has it, too, as safe as the job asks. There is
no moment in which both serve. The old one stops before it gives, and the new one begins
when the coordinator has said that the place is its own. One that is not heard for
``handover_silence_s`` before that is given up for ever: it is fenced, and the old one, which is
told to give no more, goes on. A record that was cut off at the old one is sent to the new one under
its identity; the windows that came with the state tell it what was applied there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np

from pydownpour.errors import RemoteProtocolError
from pydownpour.layout import raw
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.server import FrameBody
from pydownpour.shard.filling import PIECE_LEN, Filling
from pydownpour.shard.state import Shard
from pydownpour.wire import messages
from pydownpour.wire.messages import Contents, Give, Source

PART_SIZE: Final = 4 * PIECE_LEN
"""Bytes of an answer that are made at a time."""


@final
class Giving:
    """What a shard has, at the moment it stopped.

    Args:
        shard: Gives, from now on.
    """

    def __init__(self, shard: Shard) -> None:
        shard.give()
        self._shard = shard
        self._state = shard.store.export_state()

    def contents(self) -> Contents:
        return Contents(
            state_size=len(self._state),
            planes=self._shard.store.planes,
            history=self._shard.store.history,
            counts=self._shard.statistics(),
            ids_version=self._shard.ids_version,
            rounds=json.dumps(self._shard.rounds.export()),
        )

    def state(self) -> FrameBody:
        """LSN, versions, windows, open rounds: small beside the planes."""
        return self._body(self._pieces_of_state())

    def plane(self, plane: int, start: int) -> FrameBody:
        """Elements of a plane from ``start`` on, little-endian float32.

        Raises:
            RemoteProtocolError: there is no such plane.
        """
        store = self._shard.store
        if plane > store.planes + store.history:
            raise RemoteProtocolError(
                f"no plane {plane}; the optimizer keeps {store.planes} beside the parameters, and "
                f"{store.history} past versions"
            )
        return self._body(self._pieces_of_plane(plane, start))

    def _body(self, pieces: Iterator[Any]) -> FrameBody:
        def produce() -> list[Any] | None:
            if self._shard.state != "giving":
                raise ConnectionResetError("this shard gives no more")
            piece = next(pieces, None)
            return None if piece is None else [piece]

        return FrameBody(produce)

    def _pieces_of_state(self) -> Iterator[memoryview]:
        whole = memoryview(self._state)
        for at in range(0, len(whole), PART_SIZE):
            yield whole[at : at + PART_SIZE]

    def _pieces_of_plane(self, plane: int, start: int) -> Iterator[memoryview]:
        store = self._shard.store
        for at in range(start, store.len, PIECE_LEN):
            piece = np.empty(min(PIECE_LEN, store.len - at), np.float32)
            store.read_plane(plane, piece, at)
            yield raw(piece.astype("<f4", copy=False))


@final
class TakingOver:
    """What a shard has, on its way into another process's store.

    Args:
        shard: The new process's, empty.
        source: Who gives.
        access: Token and TLS.

    Attributes:
        loaded: Elements that have come, of all planes.
    """

    def __init__(self, shard: Shard, source: Source, access: Access) -> None:
        self._shard, self._source, self._access = shard, source, access
        shard.rounds.stop()
        planes = 1 + shard.store.planes + shard.store.history
        self._planes = [Filling(shard.store, plane) for plane in range(planes)]

    @property
    def loaded(self) -> int:
        """Elements in the store, of all planes."""
        return sum(plane.loaded for plane in self._planes)

    async def go_on(self) -> None:
        """Get what is missing; when it is as safe here as the job asks, we are prepared to serve.

        Before that the other process has what was acknowledged.
        """
        secret = self._source.secret
        headers, give = {messages.HEADER_SECRET: secret}, Give(secret=secret)
        async with Client(
            self._source.url, access=self._access, limits=self._shard.limits
        ) as client:
            contents = await client.post("/v1/give", give, Contents)
            store = self._shard.store
            if (contents.planes, contents.history) != (store.planes, store.history):
                raise RemoteProtocolError(
                    f"{client.url} has {contents.planes} planes of state and {contents.history} "
                    f"past versions, our optimizer {store.planes} and {store.history}"
                )
            for number, plane in enumerate(self._planes):
                await plane.go_on(client, f"/v1/state?plane={number}", headers)
            state = bytearray()
            async for chunk in client.chunks("/v1/state", headers):
                state += chunk
                if len(state) > contents.state_size:
                    raise RemoteProtocolError(
                        f"{client.url} said {contents.state_size} bytes of state, and sends more"
                    )
        self._adopt(contents, state)
        gate, lsn = self._shard.gate, self._shard.store.lsn
        gate.on_base(lsn)
        await gate.reached(lsn)
        self._shard.become("prepared")

    def _adopt(self, contents: Contents, state: bytearray) -> None:
        """Know who has had what applied, and count on."""
        self._shard.store.import_state([state])
        self._shard.rounds.load(json.loads(contents.rounds))
        self._shard.goes_on_from(contents)
