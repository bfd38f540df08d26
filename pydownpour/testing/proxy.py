"""A TCP proxy on loopback that misbehaves as networks do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from pydownpour.errors import ClosedError, ConfigError
from pydownpour.testing.faults import Faults
from pydownpour.testing.relay import ProxyStatistics, Relay, Setting

__all__ = ["FaultProxy", "ProxyStatistics"]

NO_FAULTS: Final = Faults()


@final
class FaultProxy:
    """Passes connections to a listening socket on, damaged; an async context manager.

    Args:
        target: Where to: ``"127.0.0.1:7000"`` or ``"http://127.0.0.1:7000"``.
        faults: Of both directions; :class:`Faults`, or a function of the connection's number
            (the first is 1) that returns some.
        to_target: Of the client's bytes, in place of ``faults``.
        to_client: Of the target's bytes, in place of ``faults``.
        rewrite: What a middlebox does to each chunk of the client's bytes, before anything else.
        seed: Of everything random. What arrives in one chunk is up to the kernel, so runs with one
            seed are alike, not equal; the simulator is for equal ones.

    Attributes:
        to_target, to_client: The faults, live: assign others and running connections change, too.
        address, url: Where clients go, once it listens.

    Example::

        bad = Faults(latency_s=0.05, reset_after=(0, 1 << 20))
        async with FaultProxy(server_url, bad) as proxy:
            ...                            # clients connect to proxy.url
            proxy.to_client = Faults()     # this direction is well again
            print(proxy.statistics())
    """

    def __init__(
        self,
        target: str,
        faults: Setting = NO_FAULTS,
        *,
        to_target: Setting | None = None,
        to_client: Setting | None = None,
        rewrite: Callable[[bytes], bytes] | None = None,
        seed: int = 0,
    ) -> None:
        scheme, _, address = target.rpartition("://")
        self._scheme = scheme or "http"
        self._target = _parsed(address.rstrip("/"))
        self.to_target: Setting = faults if to_target is None else to_target
        self.to_client: Setting = faults if to_client is None else to_client
        self.seed = seed
        self.counts = ProxyStatistics()
        self._rewriters: Mapping[str, Callable[[bytes], bytes]] = (
            {} if rewrite is None else {"to_target": rewrite}
        )
        self._server: asyncio.Server | None = None
        self._port = 0
        self._going = asyncio.Event()
        self._going.set()
        self._relays: dict[Relay, None] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def __aenter__(self) -> FaultProxy:
        await self.accept()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """``127.0.0.1:port``, once it listens."""
        if not self._port:
            raise ClosedError(
                "the proxy does not listen yet; use it as: async with FaultProxy(...)"
            )
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``, with the target's scheme if it had one."""
        return f"{self._scheme}://{self.address}"

    def statistics(self) -> ProxyStatistics:
        """What went through so far."""
        return dataclasses.replace(self.counts, open=len(self._relays))

    # -- what can be done to all connections -------------------------------------------------------

    def pause(self) -> None:
        """Hold every byte and every end of stream back; nobody is told."""
        self._going.clear()

    def resume(self) -> None:
        """Go on, with what was held back first."""
        self._going.set()

    def refuse(self) -> None:
        """Refuse new connections, as a port where nobody listens; open ones go on."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def accept(self) -> None:
        """Take new connections (again, on the same port)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def reset_all(self) -> None:
        """Break every open connection: both its ends see a reset."""
        for relay in list(self._relays):
            self.counts.resets += 1
            relay.reset()

    def silence_all(self) -> None:
        """Leave every open connection half-open: nothing arrives any more, and nobody is told."""
        for relay in self._relays:
            relay.silence()

    # -- for its connections -----------------------------------------------------------------------

    async def wait_going(self) -> None:
        """Wait while it is paused, as its connections do before they pass anything on."""
        await self._going.wait()

    def rewritten(self, way: str, data: bytes) -> bytes:
        """A chunk behind the middlebox."""
        rewrite = self._rewriters.get(way)
        return data if rewrite is None else rewrite(data)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        task = asyncio.create_task(self._relay(self.counts.connections, reader, writer))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _relay(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            try:
                target = await asyncio.open_connection(*self._target)
            except OSError:
                self.counts.unreachable += 1
                return
            relay = Relay(self, number, (reader, writer), target)
            self._relays[relay] = None
            try:
                await relay.run()
            finally:
                del self._relays[relay]
        finally:
            writer.transport.abort()


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"target {address!r} must be HOST:PORT or a URL with a port")
    return host.strip("[]") or "127.0.0.1", int(port)
