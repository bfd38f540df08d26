"""One peer's URL: ask it, stream to it, and get its errors raised again here."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, TypeVar, final
from urllib.parse import urlsplit

import aiohttp

from pydownpour import limits
from pydownpour.errors import (
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    DownpourError,
    PeerLost,
    RemoteProtocolError,
    UpgradeRefused,
)
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import parser, sockets
from pydownpour.net.access import Access
from pydownpour.net.pace import Pace, Watch
from pydownpour.net.proxies import proxy_for
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire import messages, problems
from pydownpour.wire.messages import Message

M = TypeVar("M", bound=Message)

GATEWAY_STATUSES: Final = (502, 503, 504)
"""What proxies answer for a peer that they cannot reach: it may not have begun yet."""


@final
class Client:
    """Talks to one base URL; an async context manager.

    Its time limits watch bytes: a request is given up when for ``timeout_s`` (``request_timeout_s``
    of its limits, unless said) nothing of it, or of its answer, has moved, however long all of it
    takes.

    Redirects are never followed (a token would travel with them), answers are never unpacked.
    Proxies of the environment are obeyed (see ``net.proxies``), but never for loopback.

    Raises:
        ConfigError: the URL is not http or https, or its certificate is not to be trusted.
        ConnectFailed, PeerLost, DeadlineExceeded: the network.
        AuthError, LayoutMismatch, Fenced, NotReady, ...: what the peer named, in its words.
    """

    def __init__(self, url: str, *, access: Access, limits: Limits = DEFAULT) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"peer URL {url!r} must start with http:// or https://")
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ConfigError(f"bad URL {url!r}: {error}") from None
        if not parts.hostname:
            raise ConfigError(f"bad URL {url!r}: it names no host")
        self.url = url.rstrip("/")
        self._access, self.limits = access, limits
        self._proxy = proxy_for(url)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            parser.check()
            tls = self._access.tls.client_context() if self._access.tls else True
            self._session = aiohttp.ClientSession(
                # What is idle is the server's to close: aiohttp asks the machine's clock how long a
                # connection or an address was kept, and a simulated world has one of its own.
                connector=_Connector(
                    socket_factory=sockets.client_socket,
                    ssl=tls,
                    keepalive_timeout=None,
                    use_dns_cache=False,
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                headers=self._access.headers(),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                # Not trust_env: aiohttp would then look for the proxy, and into ~/.netrc, with two
                # threads for every request, which costs more than the request itself.
                proxy=self._proxy.url if self._proxy is not None else None,
                read_bufsize=limits.CONTROL_SIZE_MAX,
            )
        return self._session

    async def post(
        self,
        path: str,
        message: Message,
        answer: type[M],
        *,
        timeout_s: float | None = None,
    ) -> M:
        """Send a message, get a message."""
        body = messages.encode(message)
        headers = {"Content-Type": "application/json"}
        data = await self._ask("POST", path, body, headers, limits.JSON_SIZE_MAX, timeout_s)
        return messages.decode(answer, data)

    async def get(
        self,
        path: str,
        answer: type[M],
        *,
        size_max: int = limits.JSON_SIZE_MAX,
        timeout_s: float | None = None,
    ) -> M:
        """Get a message of at most ``size_max`` bytes."""
        data = await self._ask("GET", path, None, {}, size_max, timeout_s)
        return messages.decode(answer, data)

    async def exchange(
        self,
        path: str,
        buffers: Iterable[Any],
        headers: Mapping[str, str],
        *,
        size_max: int,
        size: int | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """POST binary buffers, get a binary body of at most ``size_max`` bytes.

        Args:
            path: Where to.
            buffers: Each is asked for only when the ones before it were taken.
            headers: Beside the usual ones.
            size_max: Bytes of the answer.
            size: Bytes of all buffers; None counts them, all at once.
            timeout_s: Seconds in which nothing moves; None: the limit.
        """
        if size is None:
            buffers = [*buffers]
            size = sum(memoryview(b).nbytes for b in buffers)

        progress = _Progress()

        async def body() -> AsyncIterator[Any]:
            for buffer in buffers:
                view = memoryview(buffer).cast("B")
                progress.written += len(view)
                yield view

        sent = {**headers, "Content-Length": str(size), "Content-Type": "application/octet-stream"}
        return await self._ask("POST", path, body(), sent, size_max, timeout_s, progress)

    async def chunks(
        self, path: str, headers: Mapping[str, str], *, timeout_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """GET a binary body piece by piece; each must come within ``timeout_s``."""
        timeout_s = self.limits.request_timeout_s if timeout_s is None else timeout_s
        with self._errors(timeout_s):
            async with asyncio.timeout(timeout_s) as deadline:
                async with self._open().get(
                    self.url + path, headers=headers, allow_redirects=False
                ) as response:
                    if response.status != 200:
                        data = await response.content.read(limits.CONTROL_SIZE_MAX)
                        raise self._revived(response.status, data)
                    # Not iter_any, which joins what has come: one copy more. An HTTP chunk may
                    # end in an empty piece.
                    async for chunk, _ in response.content.iter_chunks():
                        deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)
                        yield chunk

    async def upgrade(
        self,
        path: str,
        headers: Mapping[str, str],
        protocol: StreamProtocol,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Open a stream: after this ``protocol`` owns the connection.

        Raises:
            UpgradeRefused: an answer other than 101 that is no peer's error.
        """
        timeout_s = self.limits.connect_timeout_s if timeout_s is None else timeout_s
        wanted = {**headers, "Connection": "Upgrade", "Upgrade": messages.UPGRADE}
        with self._errors(timeout_s):
            async with asyncio.timeout(timeout_s):
                response = await self._open().get(
                    self.url + path, headers=wanted, allow_redirects=False
                )
                if response.status != 101:
                    data = await response.content.read(limits.CONTROL_SIZE_MAX)
                    response.close()
                    if problems.parse(data) is None and response.status not in GATEWAY_STATUSES:
                        raise UpgradeRefused(
                            f"{self.url}{path} answered {response.status} instead of 101: "
                            "something on the way does not pass Upgrade on",
                            peer=self.url,
                        )
                    raise self._revived(response.status, data)
        connection = response.connection
        if connection is None or connection.transport is None:
            raise PeerLost(f"{self.url} closed the stream at once", peer=self.url)
        # The response must live as long as its connection, and be closed with it.
        protocol.on_lost = response.close
        protocol.take_over(connection.transport)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
        size_max: int,
        timeout_s: float | None,
        progress: _Progress | None = None,
    ) -> bytes:
        timeout_s = self.limits.request_timeout_s if timeout_s is None else timeout_s
        if progress is None:
            progress = _Progress(written=len(body or b""))
        with self._errors(timeout_s):
            async with progress.expected(timeout_s):
                async with self._open().request(
                    method, self.url + path, data=body, headers=headers, allow_redirects=False
                ) as response:
                    progress.received += 1  # its head has come
                    chunks, size = [], 0
                    async for chunk in response.content.iter_any():
                        size += len(chunk)
                        progress.received += len(chunk)
                        if size > size_max:
                            raise RemoteProtocolError(
                                f"{self.url}{path} answered more than {size_max} bytes"
                            )
                        chunks.append(chunk)
                    data = b"".join(chunks)
                    if response.status != 200:
                        raise self._revived(response.status, data)
                    return data

    @contextlib.contextmanager
    def _errors(self, timeout_s: float) -> Any:
        """Turn aiohttp's errors into ours."""
        try:
            yield
        except DownpourError:
            raise  # some of ours are OSErrors too: they already say what happened
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{self.url} did not answer within {timeout_s:g} s{self._through}",
                peer=self.url,
                limit_s=timeout_s,
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            # Trying again cannot help, so this is no ConnectFailed.
            raise ConfigError(
                f"{self.url} shows a certificate we do not trust ({error.certificate_error}); "
                "pass the authority with --tls-ca",
                peer=self.url,
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise self._not_connected(error) from error
        except aiohttp.ClientHttpProxyError as error:
            # Not in aiohttp's words: they show the proxy's password.
            if error.status in GATEWAY_STATUSES:
                raise self._revived(error.status, b"") from None
            raise ConfigError(
                f"cannot reach {self.url}: {self._proxy} answered HTTP {error.status}",
                peer=self.url,
            ) from None
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"bad URL {self.url!r}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise PeerLost(
                f"connection to {self.url} broke: {error or type(error).__name__}{self._through}",
                peer=self.url,
            ) from error

    @property
    def _through(self) -> str:
        return f", through {self._proxy}" if self._proxy is not None else ""

    def _not_connected(self, error: aiohttp.ClientConnectorError) -> ConnectFailed:
        # A proxy that refuses says nothing of the peer behind it.
        refused = error.os_error.errno == errno.ECONNREFUSED and self._proxy is None
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            words = f"cannot reach {self.url}: {error.os_error}{self._through}"
        elif isinstance(error, aiohttp.ClientConnectorDNSError):
            words = f"no host {error.host!r} is known here ({error.os_error}): is {self.url} right?"
        else:
            words = f"cannot connect to {self.url}: {error.os_error}; does it run?"
        return ConnectFailed(words, peer=self.url, refused=refused)

    def _revived(self, status: int, data: bytes) -> DownpourError:
        """The error an answer stands for."""
        if status in GATEWAY_STATUSES and problems.parse(data) is None:
            way = self._proxy or "a proxy on the way"
            return ConnectFailed(
                f"{self.url} is not there: {way} answered HTTP {status}", peer=self.url
            )
        return problems.revive(status, data, peer=self.url)


class _Progress:
    """How far a request and its answer have come."""

    def __init__(self, written: int = 0) -> None:
        self.written = written
        """Bytes of the body given to the transport."""
        self.received = 0
        self.transport: asyncio.WriteTransport | None = None

    def moved(self) -> int:
        """Bytes that left this machine or reached it."""
        unsent = sockets.unsent(self.transport) if self.transport is not None else 0
        return self.written - unsent + self.received

    @contextlib.asynccontextmanager
    async def expected(self, timeout_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError when for so long nothing has moved."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as deadline:
            watch = Watch(Pace(timeout_s), self.moved, lambda: deadline.reschedule(loop.time()))
            token = _PROGRESS.set(self)
            try:
                yield
            finally:
                _PROGRESS.reset(token)
                watch.stop()


_PROGRESS: contextvars.ContextVar[_Progress | None] = contextvars.ContextVar(
    "progress", default=None
)
"""Of the request that the running task makes."""


class _Connector(aiohttp.TCPConnector):
    """Tells a request's progress which connection carries it; aiohttp tells only the answer's."""

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        """A connection, pooled or new."""
        connection = await super().connect(*args, **kwargs)
        progress = _PROGRESS.get()
        if progress is not None:
            progress.transport = connection.transport
        return connection
