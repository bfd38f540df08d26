"""One listener: routes, tokens, limits, and the answer to every error.

aiohttp parses HTTP; what it does not guard of a connection ``connections`` guards, and of a request
this module does: browsers that were sent by another site, the token, which is checked before a byte
of the body is read, and the body's size and pace (``bodies``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final
from urllib.parse import urlsplit

from aiohttp import web

from pydownpour import limits
from pydownpour.errors import (
    AuthError,
    ConfigError,
    DownpourError,
    PeerLost,
    RemoteProtocolError,
    UpgradeRefused,
)
from pydownpour.fields import clip
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import bodies, gate, parser, process, sockets
from pydownpour.net.access import Access, Bind
from pydownpour.net.connections import Connection, HttpServer, problem_response
from pydownpour.net.noise import Noise
from pydownpour.net.pace import Pace, Watch
from pydownpour.net.writing import write_buffers
from pydownpour.wire import messages, problems
from pydownpour.wire.messages import Message, Problem

if TYPE_CHECKING:
    from pydownpour.net.upgrade import StreamProtocol

log = logging.getLogger(__name__)

BODY_TYPES = ("application/json", "application/octet-stream")
"""What a POST may say of its body: no browser sends one of them to another site unasked."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One request. The body is already read, within the route's limit, unless it is streamed."""

    body: bytes
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer: str
    chunks: AsyncIterator[bytes] | None = None
    """A streamed route's body, piece by piece, cut off at the route's limit."""


Answer: TypeAlias = "Message | bytes | str | FrameBody"
Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


def _unwatched(drop: Callable[[], None]) -> Callable[[], None]:
    """Nobody wants to drop this answer, or to know when it has ended."""
    return lambda: None


@final
@dataclasses.dataclass(frozen=True)
class FrameBody:
    """An answer of binary buffers, produced as the reader takes them."""

    produce: Callable[[], Sequence[Any] | None]
    """The next buffers, or None at the end. Called again only when the last ones were written."""
    begins: Callable[[Callable[[], None]], Callable[[], None]] = _unwatched
    """Told, when the answer begins, how to drop it; what it returns is called when it has ended."""


@final
@dataclasses.dataclass(frozen=True)
class Route:
    """A method and path, and who handles it.

    Attributes:
        public: Served without a token.
        body_size_max: Bytes; a larger body is refused before it is read. None: as
            ``limits.BODY_SIZES_MAX`` says.
        streamed: The handler takes the body in pieces from ``Call.chunks``.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False
    body_size_max: int | None = None
    streamed: bool = False

    @property
    def size_max(self) -> int:
        """Bytes of a request's body at most, by ``limits.BODY_SIZES_MAX``."""
        if self.body_size_max is not None:
            return self.body_size_max
        if self.method != "POST":
            return 0
        return limits.BODY_SIZES_MAX.get(self.path, limits.MESSAGE_SIZE_MAX)


@final
@dataclasses.dataclass(frozen=True)
class UpgradeRoute:
    """A path whose GET becomes a stream.

    Attributes:
        accept: Looks at the request and returns the protocol that takes the connection over, or
            raises.
    """

    path: str
    accept: Callable[[Call], StreamProtocol]


class Server:
    """Listens on one address; an async context manager.

    Args:
        routes: What it answers.
        bind: Where to listen.
        access: Token, TLS, and names it may be called by.
        name: The role, for words.
        advertise: A URL others are told to call, if it is not the one we listen on.
        limits: Of connections, bodies and readers.

    Lifecycle: ``start`` binds (port 0 lets the system choose; ``url`` says what came out),
    ``stop`` closes every connection. Cancelling ``start`` leaves nothing open.

    Raises:
        ConfigError: a public address without token and TLS, a port in use, or aiohttp without
            its C parser (the pure-Python one has had request-smuggling faults).
    """

    def __init__(
        self,
        routes: Sequence[Route | UpgradeRoute],
        *,
        bind: Bind,
        access: Access,
        name: str,
        advertise: str = "",
        limits: Limits = DEFAULT,
    ) -> None:
        access.check_bind(bind)
        if advertise:
            host = urlsplit(advertise).hostname or ""
            access = dataclasses.replace(access, allow_hosts=(*access.allow_hosts, host.lower()))
        self._routes: dict[tuple[str, str], Route] = {}
        self._upgrades: dict[str, UpgradeRoute] = {}
        for route in routes:
            if isinstance(route, UpgradeRoute):
                self._upgrades[route.path] = route
            else:
                self._routes[route.method, route.path] = route
        self._bind, self._access, self._name, self._limits = bind, access, name, limits
        self._runner: web.ServerRunner | None = None
        self._bodies = bodies.Budget(limits.bodies_size_max)
        self._faults = Noise(limits)
        """Of ours: a peer that has found one shall not fill the log with it."""
        self._streams: dict[StreamProtocol, None] = {}
        self.url = ""

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Bind and listen. Afterwards ``url`` has the port."""
        parser.check()
        tls = self._access.tls
        context = tls.server_context() if tls is not None and tls.cert else None
        http = HttpServer(
            self._serve,
            name=self._name,
            capacity=gate.capacity(*process.descriptors(), self._limits.descriptors_reserved),
            tls=context,
            limits=self._limits,
        )
        runner = web.ServerRunner(http, shutdown_timeout=0.2)
        await runner.setup()
        self._runner = runner
        try:
            # Without the TLS context: a connection has a place before it costs a handshake.
            site = web.TCPSite(runner, self._bind.host, self._bind.port)
            await site.start()
        except OSError as error:
            await self.stop()
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"{self._name}: {self._bind} is in use by another process; stop it, or use "
                    "port 0 to let the system choose"
                ) from error
            raise ConfigError(f"{self._name}: cannot listen on {self._bind}: {error}") from error
        except BaseException:
            await self.stop()
            raise
        for listening in getattr(site._server, "sockets", ()):
            sockets.tune(listening, self._bind.host)
        host, port = runner.addresses[0][:2]
        scheme = "https" if context else "http"
        self.url = f"{scheme}://{Bind(str(host), int(port))}"

    async def stop(self) -> None:
        """Close the listener and every connection."""
        for stream in list(self._streams):
            stream.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    # -- requests --------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every failure becomes a Problem."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        if connection.is_pipelined:
            await asyncio.sleep(0)  # one request a turn: others have theirs between them
        response = await self._answer(request, connection)
        if connection.is_refusing:
            response.force_close()
        connection.seat.rest()
        return response

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        try:
            return await self._dispatch(request, connection)
        except DownpourError as error:
            status, problem = problems.describe(error)
            if isinstance(error, AuthError | RemoteProtocolError | ConfigError):
                connection.complain(f"{request.method} {request.path[:60]!r}: {error}")
        except ConnectionError as error:
            # The peer went away in the middle of its request: aiohttp finds nobody to answer and
            # says nothing, where an error would end up as a traceback in the log.
            status, problem = problems.describe(PeerLost(f"{request.remote} is gone: {error}"))
        except Exception:
            now = asyncio.get_running_loop().time()
            if self._faults.count(request.path, now) is not None:
                log.exception("%s: %s %r failed", self._name, request.method, request.path[:60])
            status, problem = 500, Problem(code="internal", message="internal error; see the log")
        return problem_response(status, problem)

    async def _dispatch(
        self, request: web.BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        self._access.check_caller(self._bind, _local(request), request.headers)
        upgrade = self._upgrades.get(request.path) if request.method == "GET" else None
        route = self._routes.get((request.method, request.path))
        if route is None and upgrade is None:
            return _refused(
                connection, 404, "unknown", f"no {request.method} {request.path[:100]!r} here"
            )
        if route is None or not route.public:
            self._access.check_token(request.headers.get("Authorization"))
            connection.seat.prove()
        if upgrade is not None:
            return await self._upgrade(request, upgrade)
        assert route is not None
        if connection.is_refusing:
            return _refused(connection, 411, "length", "a body needs a Content-Length here")
        if request.method == "POST" and request.content_type not in BODY_TYPES:
            words = f"the body's Content-Type must be {' or '.join(BODY_TYPES)}"
            return _refused(connection, 415, "type", words)
        if route.streamed:
            chunks = bodies.chunks(request, route.size_max, self._limits)
            return await self._written(request, await route.handler(_call(request, b"", chunks)))
        with self._bodies.reserved(request.content_length or 0, route.size_max):
            body = await bodies.whole(request, route.size_max, self._limits)
            answer = await route.handler(_call(request, body))
        return await self._written(request, answer)

    async def _written(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        kind = "application/octet-stream"
        if isinstance(answer, FrameBody):
            return await _write_frames(request, answer, kind, self._limits)
        if isinstance(answer, str):
            return web.Response(text=answer)
        if isinstance(answer, Message):
            answer, kind = messages.encode(answer), "application/json"
        if len(answer) <= self._limits.reader_high_water:
            return web.Response(body=answer, content_type=kind)
        # Whoever takes its time over a long answer keeps memory until then, which is bounded.
        with self._bodies.reserved(len(answer), len(answer)):
            return await _write_frames(
                request, _in_pieces(answer, self._limits.reader_high_water), kind, self._limits
            )

    async def _upgrade(self, request: web.BaseRequest, route: UpgradeRoute) -> web.StreamResponse:
        wanted = request.headers.get("Upgrade", "")
        if not wanted:
            raise UpgradeRefused(
                f"{route.path} needs 'Upgrade: {messages.UPGRADE}'; a proxy may have removed it"
            )
        if wanted != messages.UPGRADE:
            raise ConfigError(
                f"the peer wants {wanted!r}; this one speaks protocol {messages.PROTOCOL_MIN} to "
                f"{messages.PROTOCOL}: install the same version on both"
            )
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        stream = route.accept(_call(request, b""))
        response = web.StreamResponse(
            status=101, headers={"Connection": "Upgrade", "Upgrade": messages.UPGRADE}
        )
        self._streams[stream] = None
        try:
            # The new protocol is in place before the peer may speak: it answers only to the 101.
            stream.take_over(transport)
            await response.prepare(request)
            await stream.wait_closed()
        finally:
            self._streams.pop(stream, None)
            stream.close()
        return response


def _call(
    request: web.BaseRequest, body: bytes, chunks: AsyncIterator[bytes] | None = None
) -> Call:
    peer = request.remote or "?"
    return Call(body, request.rel_url.query, request.headers, peer, chunks)


def _local(request: web.BaseRequest) -> str:
    """The address a connection was made to."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _refused(connection: Connection, status: int, code: str, words: str) -> web.Response:
    connection.complain(words)
    return problem_response(status, Problem(code=code, message=clip(words)))


def _in_pieces(data: bytes, size: int) -> FrameBody:
    view = memoryview(data)
    pieces = iter(range(0, len(data), size))

    def produce() -> list[Any] | None:
        start = next(pieces, None)
        return None if start is None else [view[start : start + size]]

    return FrameBody(produce)


async def _write_frames(
    request: web.BaseRequest, body: FrameBody, kind: str, limits: Limits
) -> web.StreamResponse:
    """Write the buffers as they are, one HTTP chunk for all that are produced at once.

    aiohttp's own writer would copy every buffer together with its chunk's first and last line.

    While the reader takes its time nothing here holds a buffer: an error's traceback keeps the
    frames it came through, and what they hold, until somebody collects the cycle.
    """
    response = web.StreamResponse(headers={"Content-Type": kind})
    writer = await response.prepare(request)
    assert writer is not None
    writer.send_headers()
    is_chunked = "Transfer-Encoding" in response.headers  # HTTP/1.0 has no chunks
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the reader went away")
    written = 0

    def taken() -> int | None:
        unsent = sockets.unsent(transport)
        return written - unsent if unsent else None

    def drop() -> None:
        sockets.drop(transport)

    def give_up() -> None:
        log.info(
            "%s took fewer than %d bytes of its answer in %g s (reader_size_min, reader_window_s)",
            request.remote, limits.reader_size_min, limits.reader_window_s,
        )  # fmt: skip
        drop()

    watch = Watch(Pace(limits.reader_window_s, limits.reader_size_min), taken, give_up)
    ended = body.begins(drop)
    try:
        while not transport.is_closing():
            size = _write_some(transport, body, is_chunked)
            if size is None:
                await response.write_eof()
                return response
            written += size
            await writer.drain()
    finally:
        watch.stop()
        ended()
    raise ConnectionResetError("the reader went away")


def _write_some(transport: asyncio.WriteTransport, body: FrameBody, is_chunked: bool) -> int | None:
    """Write what is produced next. Returns its bytes; None at the end."""
    buffers = body.produce()
    if buffers is None:
        return None
    views: list[Any] = [memoryview(buffer).cast("B") for buffer in buffers]
    size = sum(map(len, views))
    if size == 0:
        return 0  # an empty chunk would be the end of the body
    if is_chunked:
        views = [b"%x\r\n" % size, *views, b"\r\n"]
    return write_buffers(transport, views)
