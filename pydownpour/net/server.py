"""One listener: routes, tokens, limits, and the answer to every error.

aiohttp parses HTTP and speaks TLS; what it does not guard we guard here: the time a header block
may take, the size of a streamed body, browsers that were sent by another site, and the token,
which is checked before a byte of the body is read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from aiohttp import http_parser, web
from aiohttp.web_protocol import RequestHandler

from pydownpour import limits
from pydownpour.errors import (
    ConfigError,
    DownpourError,
    LimitExceeded,
    PeerLost,
    RemoteProtocolError,
    UpgradeRefused,
)
from pydownpour.net import sockets
from pydownpour.net.access import Access, Bind
from pydownpour.net.writing import write_buffers
from pydownpour.wire import messages, problems
from pydownpour.wire.messages import Message, Problem

if TYPE_CHECKING:
    from pydownpour.net.upgrade import StreamProtocol

log = logging.getLogger(__name__)


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


@final
@dataclasses.dataclass(frozen=True)
class FrameBody:
    """An answer of binary buffers, produced as the reader takes them."""

    produce: Callable[[], Sequence[Any] | None]
    """The next buffers, or None at the end. Called again only when the last ones were written."""


@final
@dataclasses.dataclass(frozen=True)
class Route:
    """A method and path, and who handles it.

    Attributes:
        public: Served without a token.
        body_size_max: Bytes; a larger body is refused before or while it is read.
        streamed: The handler takes the body in pieces from ``Call.chunks``.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False
    body_size_max: int = limits.JSON_SIZE_MAX
    streamed: bool = False


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
    ) -> None:
        access.check_bind(bind)
        self._routes: dict[tuple[str, str], Route] = {}
        self._upgrades: dict[str, UpgradeRoute] = {}
        for route in routes:
            if isinstance(route, UpgradeRoute):
                self._upgrades[route.path] = route
            else:
                self._routes[route.method, route.path] = route
        self._bind, self._access, self._name = bind, access, name
        self._runner: web.ServerRunner | None = None
        self._streams: dict[StreamProtocol, None] = {}
        self.url = ""

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Bind and listen."""
        if "Py" in http_parser.HttpRequestParser.__name__:
            raise ConfigError(
                "aiohttp runs without its C extensions here (AIOHTTP_NO_EXTENSIONS or a source "
                "build); its pure-Python parser is not safe for a server: install a wheel"
            )
        tls = self._access.tls
        context = tls.server_context() if tls is not None and tls.cert else None
        runner = web.ServerRunner(_HttpServer(self._serve), shutdown_timeout=0.2)
        await runner.setup()
        self._runner = runner
        try:
            site = web.TCPSite(runner, self._bind.host, self._bind.port, ssl_context=context)
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
        """Dispatch one request; every failure becomes a Problem."""
        try:
            return await self._dispatch(request)
        except DownpourError as error:
            status, problem = problems.describe(error)
        except ConnectionError as error:
            # The peer went away in the middle of its request: aiohttp finds nobody to answer and
            # says nothing, where an error would end up as a traceback in the log.
            status, problem = problems.describe(PeerLost(f"{request.remote} is gone: {error}"))
        except Exception:
            log.exception("%s: %s %s failed", self._name, request.method, request.path)
            status, problem = 500, Problem(code="internal", message="internal error; see the log")
        return _problem(status, problem)

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if site not in ("same-origin", "none"):
            return _problem(403, Problem(code="origin", message="not from another site's page"))
        upgrade = self._upgrades.get(request.path) if request.method == "GET" else None
        route = self._routes.get((request.method, request.path))
        if route is None and upgrade is None:
            return _problem(
                404, Problem(code="unknown", message=f"no {request.method} {request.path} here")
            )
        if route is None or not route.public:
            self._access.check_token(request.headers.get("Authorization"))
        if upgrade is not None:
            return await self._upgrade(request, upgrade)
        assert route is not None
        if route.streamed:
            chunks = _body_chunks(request, route.body_size_max)
            answer = await route.handler(_call(request, b"", chunks))
        else:
            body = await _whole_body(request, route.body_size_max)
            answer = await route.handler(_call(request, body))
        if isinstance(answer, FrameBody):
            return await _write_frames(request, answer)
        if isinstance(answer, Message):
            return web.Response(body=messages.encode(answer), content_type="application/json")
        if isinstance(answer, str):
            return web.Response(text=answer)
        return web.Response(body=answer, content_type="application/octet-stream")

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
        if len(self._streams) >= limits.CONNECTIONS_MAX:
            raise LimitExceeded(
                f"{len(self._streams)} streams are open, the limit is CONNECTIONS_MAX"
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


class _HttpServer(web.Server):
    """aiohttp's low-level server, with our limits and our header timer."""

    def __call__(self) -> RequestHandler:
        return _TimedHandler(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type]  # None is what aiohttp itself passes
            max_line_size=limits.HTTP_LINE_SIZE_MAX,
            max_field_size=limits.HTTP_LINE_SIZE_MAX,
            max_headers=limits.HTTP_HEADER_COUNT_MAX,
            keepalive_timeout=75.0,
            lingering_time=limits.LINGER_S,
            auto_decompress=False,
        )


class _TimedHandler(RequestHandler):
    """Closes a connection whose header block does not arrive in time (aiohttp never does)."""

    __slots__ = ("_header_timer",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._header_timer: asyncio.TimerHandle | None = None
        self._arm()

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count > before or self._upgraded:
            self._disarm()
        elif self._current_request is None and self._header_timer is None:
            self._arm()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._header_timer = self._loop.call_later(limits.HEADER_TIMEOUT_S, self.force_close)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _call(
    request: web.BaseRequest, body: bytes, chunks: AsyncIterator[bytes] | None = None
) -> Call:
    peer = request.remote or "?"
    return Call(body, request.rel_url.query, request.headers, peer, chunks)


async def _whole_body(request: web.BaseRequest, size_max: int) -> bytes:
    """The body, never more than size_max bytes of it, and never from a stalled sender."""
    if not request.content.is_eof():
        return b"".join([chunk async for chunk in _body_chunks(request, size_max)])
    # It came whole, with its header: nobody has to be waited for, and no timer set.
    body = request.content.read_nowait()
    _check_size(len(body), size_max)
    return body


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise LimitExceeded(f"body of {size} bytes, the limit here is {size_max}")


async def _body_chunks(request: web.BaseRequest, size_max: int) -> AsyncIterator[bytes]:
    """The same, piece by piece."""
    _check_size(request.content_length or 0, size_max)
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.BODY_STALL_S) as deadline:
            while True:
                chunk, _ = await request.content.readchunk()
                # Also empty at the end of an HTTP chunk, which is no end of the body.
                if not chunk and request.content.at_eof():
                    return
                size += len(chunk)
                if size > size_max:
                    raise LimitExceeded(f"body of more than {size_max} bytes, the limit here")
                deadline.reschedule(None)  # the taker's time is not the sender's
                yield chunk
                deadline.reschedule(loop.time() + limits.BODY_STALL_S)
    except TimeoutError as error:
        raise RemoteProtocolError(f"body stalled after {size} bytes") from error
    except RuntimeError as error:
        if request.transport is not None:
            raise
        # aiohttp's word for a connection that was lost before the body was asked for.
        raise ConnectionResetError(f"{error} after {size} bytes of the body") from error


async def _write_frames(request: web.BaseRequest, body: FrameBody) -> web.StreamResponse:
    """Write the buffers as they are, one HTTP chunk for all that are produced at once.

    aiohttp's own writer would copy every buffer together with its chunk's first and last line.
    """
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    writer = await response.prepare(request)
    assert writer is not None
    writer.send_headers()
    is_chunked = "Transfer-Encoding" in response.headers  # HTTP/1.0 has no chunks
    while (buffers := body.produce()) is not None:
        views: list[Any] = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(map(len, views))
        if size == 0:
            continue  # an empty chunk would be the end of the body
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the reader went away")
        if is_chunked:
            views = [b"%x\r\n" % size, *views, b"\r\n"]
        write_buffers(transport, views)
        await writer.drain()
    await response.write_eof()
    return response


def _problem(status: int, problem: Problem) -> web.Response:
    headers = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(problem.retry_after_s)))
    return web.Response(
        status=status,
        body=messages.encode(problem),
        content_type="application/json",
        headers=headers,
    )
