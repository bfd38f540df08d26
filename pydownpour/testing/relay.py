"""One connection through a fault proxy: two directions, each a reader and a writer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias, final

from pydownpour.testing.faults import Damage, Faults

READ_SIZE: Final = 64 * 1024
QUEUED_MAX: Final = 64
"""Chunks on their way in one direction; then the sender feels it."""

Setting: TypeAlias = "Faults | Callable[[int], Faults]"
"""Faults for every connection, or for the connection of a number (the first is 1)."""


@final
@dataclasses.dataclass
class ProxyStatistics:
    """What went through a proxy.

    Attributes:
        connections: Accepted so far.
        open: Of them, open now.
        unreachable: Of them, closed because nobody listened behind the proxy.
        resets: Broken by the proxy.
        silenced: Left half-open by the proxy.
        corrupted: Bits flipped.
        pieces: Writes made of the chunks that were read.
        bytes_to_target, bytes_to_client: Passed on.
    """

    connections: int = 0
    open: int = 0
    unreachable: int = 0
    resets: int = 0
    silenced: int = 0
    corrupted: int = 0
    pieces: int = 0
    bytes_to_target: int = 0
    bytes_to_client: int = 0


class Middle(Protocol):
    """What a connection asks of the proxy it goes through."""

    seed: int
    counts: ProxyStatistics
    to_target: Setting
    to_client: Setting

    async def wait_going(self) -> None:
        """While the proxy is paused."""

    def rewritten(self, way: str, data: bytes) -> bytes:
        """A chunk behind the middlebox."""


class _Reset(Exception):
    """This connection shall break."""


@final
class Relay:
    """A client's connection and ours to the target."""

    def __init__(
        self,
        proxy: Middle,
        number: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy, self.number = proxy, number
        self._writers = (client[1], target[1])
        self.is_silent = False
        self._ways = (
            _Way(self, client[0], target[1], "to_target"),
            _Way(self, target[0], client[1], "to_client"),
        )

    async def run(self) -> None:
        """Until both directions have ended, or the connection is broken."""
        tasks = [asyncio.create_task(part) for way in self._ways for part in way.parts()]
        try:
            await asyncio.gather(*tasks)
            for writer in self._writers:
                writer.close()
        except (_Reset, OSError):
            self.reset()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()

    def silence(self) -> None:
        """From now on nothing arrives and nobody is told."""
        if not self.is_silent:
            self.is_silent = True
            self.proxy.counts.silenced += 1

    def reset(self) -> None:
        """Both ends see ECONNRESET."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                # Closing with a linger time of zero sends RST in place of FIN.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@final
class _Way:
    """One direction of a connection: from its reader to its writer."""

    def __init__(
        self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> None:
        self._relay, self._reader, self._writer, self._name = relay, reader, writer, name
        self._queue: asyncio.Queue[tuple[float, bytes, str] | None] = asyncio.Queue(QUEUED_MAX)
        self._rng = random.Random(f"{relay.proxy.seed}/{relay.number}/{name}")
        self._setting: Setting | None = None
        self._damage: Damage

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        return self._read(), self._write()

    def _current(self) -> Damage:
        """The damage to do now: the proxy's faults may have been exchanged."""
        setting: Setting = getattr(self._relay.proxy, self._name)
        if setting is not self._setting:
            self._setting = setting
            faults = setting if isinstance(setting, Faults) else setting(self._relay.number)
            self._damage = Damage(faults, self._rng)
        return self._damage

    async def _read(self) -> None:
        proxy = self._relay.proxy
        clock = asyncio.get_running_loop().time
        while data := await self._reader.read(READ_SIZE):
            damage = self._current()
            data = proxy.rewritten(self._name, data)
            before = damage.corrupted
            passed, fate = damage.apply(data)
            proxy.counts.corrupted += damage.corrupted - before
            await self._queue.put((damage.due(clock(), len(passed)), passed, fate))
        await self._queue.put(None)

    async def _write(self) -> None:
        relay, writer = self._relay, self._writer
        clock = asyncio.get_running_loop().time
        while (item := await self._queue.get()) is not None:
            due, data, fate = item
            await asyncio.sleep(max(0.0, due - clock()))
            await self._send(data)
            if fate == "silent":
                relay.silence()
            elif fate == "reset" and not relay.is_silent:
                relay.proxy.counts.resets += 1
                raise _Reset
        if relay.is_silent:
            await asyncio.Event().wait()  # not even its end is heard
        await relay.proxy.wait_going()
        if writer.can_write_eof():
            writer.write_eof()

    async def _send(self, data: bytes) -> None:
        counts = self._relay.proxy.counts
        for piece in self._damage.pieces(data):
            await self._relay.proxy.wait_going()
            if self._relay.is_silent:
                return
            self._writer.write(piece)
            await self._writer.drain()
            counts.pieces += 1
            if self._name == "to_target":
                counts.bytes_to_target += len(piece)
            else:
                counts.bytes_to_client += len(piece)
