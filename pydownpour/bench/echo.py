"""An upgraded aiohttp connection without anything of ours: the least a round trip can take.

The client writes a request of a fixed size; when all of it has come the server writes 64 bytes, as
many as an acknowledgement has.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, final

import aiohttp
from aiohttp import web

from pydownpour.net import sockets

ANSWER_SIZE = 64
BUFFER_SIZE = 64 << 10


class _Buffered(asyncio.BufferedProtocol):
    """Counts what it receives, in one buffer."""

    def __init__(self, replaced: asyncio.BaseProtocol) -> None:
        self._replaced = replaced
        self._buffer = memoryview(bytearray(BUFFER_SIZE))
        self.transport: Any = None

    def get_buffer(self, sizehint: int) -> Any:
        return self._buffer

    def take_over(self, transport: Any) -> None:
        self.transport = transport
        transport.set_protocol(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._replaced.connection_lost(exc)


@final
class _EchoServer(_Buffered):
    """Answers each complete request."""

    def __init__(self, replaced: asyncio.BaseProtocol, request_size: int) -> None:
        super().__init__(replaced)
        self._request_size = request_size
        self._received = 0
        self.closed = asyncio.get_running_loop().create_future()

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        while self._received >= self._request_size:
            self._received -= self._request_size
            self.transport.write(bytes(ANSWER_SIZE))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)


@final
class _EchoClient(_Buffered):
    def __init__(self, replaced: asyncio.BaseProtocol) -> None:
        super().__init__(replaced)
        self._received = 0
        self.answered: asyncio.Future[None] | None = None

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._received >= ANSWER_SIZE and self.answered is not None:
            self._received = 0
            self.answered.set_result(None)


async def serve(request_size: int) -> int:
    """Listen on loopback; returns the port."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(
            status=101, headers={"Connection": "Upgrade", "Upgrade": "echo"}
        )
        transport: Any = request.transport
        protocol = _EchoServer(transport.get_protocol(), request_size)
        protocol.take_over(transport)
        await response.prepare(request)
        await protocol.closed
        return response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


@final
class EchoClient:
    """The other end; an async context manager."""

    def __init__(self, port: int, request_size: int) -> None:
        self._port, self._request = port, bytes(request_size)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> EchoClient:
        connector = aiohttp.TCPConnector(socket_factory=sockets.client_socket)
        self._session = aiohttp.ClientSession(connector=connector)
        self._response = await self._session.get(
            f"http://127.0.0.1:{self._port}/",
            headers={"Connection": "Upgrade", "Upgrade": "echo"},
        )
        connection = self._response.connection
        assert connection is not None and connection.transport is not None
        transport: Any = connection.transport
        self._protocol = _EchoClient(transport.get_protocol())
        self._protocol.take_over(transport)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._session is not None
        self._response.close()
        await self._session.close()

    async def round_trip(self) -> float:
        """Seconds from the request to its answer."""
        began = time.perf_counter()
        answered = asyncio.get_running_loop().create_future()
        self._protocol.answered = answered
        self._protocol.transport.write(self._request)
        await answered
        return time.perf_counter() - began
