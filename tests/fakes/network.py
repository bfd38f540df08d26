"""Two hosts of the simulated network, a process on each, and a protocol that notes all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import random
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.network.network import Network
from pydownpour.sim.network.transport import SimTransport
from pydownpour.sim.trace import Trace

T = TypeVar("T")
LATENCY_S = 0.25
STEADY = LinkModel(latency_s=LATENCY_S, jitter=0.0, bytes_per_s=math.inf)
"""Binary fractions, so that times come out exactly."""
PORT = 80


class End(asyncio.Protocol):
    """Notes what its end of a connection is told, and when."""

    transport: SimTransport

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.pieces: list[tuple[float, bytes]] = []
        self.told: list[tuple[float, str]] = []
        self.half_open = False
        self.pauses_after_each = False

    @property
    def got(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def words(self) -> list[str]:
        """What it was told, without the times."""
        return [what for _, what in self.told]

    def note(self, what: str) -> None:
        self.told.append((self._loop.now, what))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(SimTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((self._loop.now, data))
        if self.pauses_after_each:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.note("eof")
        return self.half_open

    def connection_lost(self, error: Exception | None) -> None:
        self.note(code(error) if error else "lost")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")


class Net:
    """Two hosts with a process on each; the one there listens."""

    def __init__(self, here: LinkModel = STEADY, there: LinkModel = STEADY, seed: int = 0) -> None:
        self.loop = SimLoop(events_max=1_000_000, virtual_s_max=1e6)
        self.network = Network(self.loop, random.Random(seed), Trace())
        self.here = SimProcess("here", 1, self.network.add_host("here", here))
        self.there = SimProcess("there", 2, self.network.add_host("there", there))
        self.accepted: list[End] = []
        self.server = self.run(self.there, self.loop.create_server(self._accept, port=PORT))

    def close(self) -> None:
        self.loop.close()

    def _accept(self) -> End:
        self.accepted.append(End(self.loop))
        return self.accepted[-1]

    def run(self, process: SimProcess, work: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(work, context=process.context.copy())
        return self.loop.run_until_complete(task)

    def wait(self, seconds: float = 10.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    async def open(self, name: str = "there", port: int = PORT) -> End:
        """As aiohttp connects: names, then a socket, then a transport for it."""
        ((_, _, _, _, address),) = await self.loop.getaddrinfo(name, port)
        with socket.socket() as sock:
            await self.loop.sock_connect(sock, address)
            _, end = await self.loop.create_connection(lambda: End(self.loop), sock=sock)
        return cast(End, end)

    def connect(self) -> tuple[End, End]:
        client = self.run(self.here, self.open())
        return client, self.accepted[-1]


def made(
    here: LinkModel = STEADY, there: LinkModel = STEADY, seed: int = 0
) -> contextlib.closing[Net]:
    return contextlib.closing(Net(here, there, seed))


def code(error: BaseException | None) -> str:
    """The name of an error's number."""
    assert isinstance(error, OSError)
    return errno.errorcode[error.errno or 0]
