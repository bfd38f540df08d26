"""One HTTP connection at a server, from the moment it is accepted: what aiohttp does not guard.

* A gate decides who may stay when there are many (``gate``), before a TLS handshake is paid for.
* The handshake, a header block, and the pause between two requests have their time.
* Bytes reach the HTTP parser in small slices as long as it is not known what they are, and a body
  of unknown length not at all: a thousand chunks of one byte cost what a megabyte does.
* What is no HTTP is answered 400 and said in one line; a traceback is for faults of ours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast, final

from aiohttp import streams, web
from aiohttp.web_protocol import RequestHandler

from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import noise
from pydownpour.net.gate import Gate
from pydownpour.wire import messages
from pydownpour.wire.messages import Problem

log = logging.getLogger(__name__)

Serve: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@final
class Seat:
    """A connection's place in the gate."""

    def __init__(self, gate: Gate[Seat], transport: asyncio.BaseTransport) -> None:
        self._gate = gate
        self.close: Callable[[], object] = cast(asyncio.Transport, transport).abort
        """Ends what sits here."""
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) and peer else "?"

    def take(self) -> bool:
        """Ask for it; somebody else may have to go. False: there is none."""
        goes = self._gate.enter(self, self.host)
        if goes is not None:
            goes.close()
        return goes is not self

    def prove(self) -> None:
        """A peer's request is being served."""
        self._gate.prove(self)

    def rest(self) -> None:
        self._gate.rest(self)

    def leave(self) -> None:
        """The connection is gone."""
        self._gate.leave(self)


@final
class HttpServer(web.Server):
    """aiohttp's low-level server with our connections.

    Args:
        serve: Answers a request.
        name: The role, for log lines.
        capacity: How many connections there may be.
        tls: For a server of https.
        limits: Of a connection's times and sizes.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        name: str,
        capacity: int,
        tls: ssl.SSLContext | None,
        limits: Limits = DEFAULT,
    ) -> None:
        super().__init__(serve)
        self.name, self.tls, self.limits = name, tls, limits
        self.gate: Gate[Seat] = Gate(capacity, limits)
        self.noise = noise.Noise(limits)
        self.handshakes: dict[asyncio.Task[None], None] = {}

    def __call__(self) -> Any:
        """A protocol for a connection that was accepted."""
        return self.connection() if self.tls is None else _TlsDoor(self, self.tls)

    def connection(self, seat: Seat | None = None) -> Connection:
        """A protocol for HTTP; with the place it got before its TLS handshake, or none yet."""
        return Connection(
            self,
            seat,
            loop=self._loop,
            access_log=None,
            max_line_size=self.limits.http_line_size_max,
            max_field_size=self.limits.http_line_size_max,
            max_headers=self.limits.http_header_count_max,
            keepalive_timeout=self.limits.keepalive_s,
            lingering_time=self.limits.linger_s,
            auto_decompress=False,
        )

    def complain(self, host: str, words: str) -> None:
        """Say what a peer did wrong, once a minute."""
        noise.say(log, self.noise, host, self._loop.time(), f"{self.name}: {host}: {words}")

    async def shutdown(self, timeout: float | None = None) -> None:
        """Close every connection, those in the middle of a handshake too."""
        shaking = list(self.handshakes)
        for task in shaking:
            task.cancel()
        await asyncio.gather(*shaking, return_exceptions=True)
        await super().shutdown(timeout)


class Connection(RequestHandler):
    """aiohttp's protocol, with a seat, a header timer and small slices."""

    __slots__ = (
        "_body",
        "_header_size",
        "_header_timer",
        "_limits",
        "_refusing",
        "_seat",
        "_server",
    )

    def __init__(self, server: HttpServer, seat: Seat | None, **options: Any) -> None:
        super().__init__(server, **options)
        self._server, self._seat, self._limits = server, seat, server.limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_size = 0
        self._body: streams.StreamReader = streams.EMPTY_PAYLOAD
        """Of the last request whose headers have come."""
        self._refusing = False
        """What comes now is not parsed any more."""

    @property
    def seat(self) -> Seat:
        assert self._seat is not None
        return self._seat

    @property
    def is_refusing(self) -> bool:
        """The connection ends with the answer to the request that was parsed last."""
        return self._refusing

    @property
    def is_pipelined(self) -> bool:
        """There are requests behind the one that is being answered."""
        return bool(self._messages)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: a connection, if there is a place for it."""
        if self._seat is None:
            self._seat = Seat(self._server.gate, transport)
            if not self._seat.take():
                self._refusing = True
                self._seat.close()
                return
        self._seat.close = cast(asyncio.Transport, transport).abort
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes, of which aiohttp parses as many as we know the meaning of."""
        if len(data) <= self._limits.http_slice_size or not self._body.is_eof():
            self._feed(data)
            return
        start = 0
        while start < len(data) and not self._refusing:
            stop = start + self._limits.http_slice_size if self._body.is_eof() else len(data)
            self._feed(data[start:stop])
            start = stop

    def _feed(self, data: bytes) -> None:
        if self._refusing:
            return
        before, in_body = self._request_count, not self._body.is_eof()
        super().data_received(data)
        if self._request_count > before and self._messages:
            message, self._body = self._messages[-1]
            self._header_size = 0
            self._disarm()
            # A body of unknown length will be refused, and so will a protocol other than ours.
            self._refusing = bool(getattr(message, "chunked", False)) or self._upgraded
        elif data and not in_body and not self._refusing:
            # A piece of a header block. (Without data aiohttp goes on with what it has kept.)
            self._header_size += len(data)
            if self._header_size > self._limits.http_headers_size_max:
                self._end(f"a header block of more than {self._limits.http_headers_size_max} bytes")
            elif self._header_timer is None and self._current_request is None:
                self._arm()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Asyncio: the connection is gone, whoever had it last."""
        self._disarm()
        if self._seat is not None:
            self._seat.leave()
        if exc is not None:
            # The frames of its traceback, and those that called them, hold buffers on their way.
            exc = exc.with_traceback(None)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, or what broke outside of our handlers."""
        if status >= 500:
            log.error("%s: answering failed", self._server.name, exc_info=exc)
            return problem_response(status, Problem(code="internal", message="internal error"))
        words = " ".join(str(message or exc or "not HTTP").split())
        self.complain(f"not HTTP: {words}")
        response = problem_response(status, Problem(code="protocol", message=f"not HTTP: {words}"))
        response.force_close()
        return response

    def complain(self, words: str) -> None:
        """Say what this peer did wrong, once a minute."""
        self._server.complain(self._seat.host if self._seat is not None else "?", words)

    def _arm(self) -> None:
        self._header_timer = self._loop.call_later(
            self._limits.header_timeout_s,
            self._end,
            f"no whole request header within {self._limits.header_timeout_s:g} s",
        )

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end(self, words: str) -> None:
        self._refusing = True
        self.complain(words)
        self.force_close()


@final
class _TlsDoor(asyncio.Protocol):
    """A connection before its TLS handshake: it has a place in the gate, and a time."""

    def __init__(self, server: HttpServer, tls: ssl.SSLContext) -> None:
        self._server, self._tls = server, tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: a connection, if there is a place for it."""
        seat = Seat(self._server.gate, transport)
        if not seat.take():
            seat.close()
            return
        # A transport that reads cannot be made one of TLS without losing what it has read by then
        # (uvloop's read as soon as this returns). So it goes, and its socket gets another.
        sock = _copied(transport.get_extra_info("socket"))
        seat.close()
        shaking = asyncio.get_running_loop().create_task(self._shake(seat, sock))
        seat.close = shaking.cancel
        self._server.handshakes[shaking] = None
        shaking.add_done_callback(lambda task: self._server.handshakes.pop(task, None))

    async def _shake(self, seat: Seat, sock: socket.socket) -> None:
        connection = self._server.connection(seat)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._server.limits.tls_handshake_timeout_s,
            )
        except (OSError, ssl.SSLError) as error:
            words = str(error) or type(error).__name__
            self._server.complain(seat.host, f"no TLS handshake: {words}")
        finally:
            if connection.transport is None:
                seat.leave()
                sock.close()


def _copied(sock: Any) -> socket.socket:
    """Another socket of the same connection; uvloop's transports show only a number of theirs."""
    return socket.fromfd(sock.fileno(), sock.family, sock.type)


def problem_response(status: int, problem: Problem) -> web.Response:
    """An answer that says what went wrong."""
    headers = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(problem.retry_after_s)))
    return web.Response(
        status=status,
        body=messages.encode(problem),
        content_type="application/json",
        headers=headers,
    )
