"""A stream of frames on a connection that began as an HTTP request.

After ``101 Switching Protocols`` both ends put a :class:`StreamProtocol` in place of aiohttp's
protocol. It is an ``asyncio.BufferedProtocol``: received bytes land in the buffer they are used
from. The protocol it replaced keeps its bookkeeping, so ``connection_lost`` is passed on to it;
otherwise aiohttp's session and runner would never finish closing.

The client speaks first. (A server that spoke first could have its first bytes swallowed by the
client's HTTP parser, together with the header block.)
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydownpour.errors import DownpourError, InternalError
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import sockets
from pydownpour.net.writing import write_buffers

log = logging.getLogger(__name__)


class StreamProtocol(asyncio.BufferedProtocol, abc.ABC):
    """One upgraded connection. Subclasses say where bytes land and what they mean.

    Lifecycle: ``take_over`` once, then callbacks until ``connection_lost``; ``close`` flushes and
    closes, ``abort`` drops. ``wait_closed`` returns when the connection is gone.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.limits = limits
        self._transport: asyncio.Transport | None = None
        self._replaced: asyncio.BaseProtocol | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self.is_writable = True
        """False while the peer does not keep up."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.on_lost: Callable[[], None] | None = None
        """Called last when the connection is gone."""
        self.error: BaseException | None = None
        """Why the stream ended, if not by agreement."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.high_water = limits.write_high_water
        """Bytes that may wait unsent before ``is_writable`` is False."""

    # -- for subclasses --------------------------------------------------------------------------

    @abc.abstractmethod
    def get_buffer(self, sizehint: int) -> Any:
        """Where the next bytes go: never empty (uvloop asks again after a message is complete)."""

    @abc.abstractmethod
    def received(self, n: int) -> None:
        """n bytes arrived in the buffer. An error raised here ends the stream."""

    def opened(self) -> None:
        """The connection is ours."""

    def failed(self, error: DownpourError) -> None:
        """The peer broke the rules: end the stream. Overridden to say goodbye in words."""
        self.abort(error)

    def lost(self, error: BaseException | None) -> None:
        """The connection is gone."""

    def guarded(self, work: Callable[[int], None], n: int) -> None:
        """Work on received bytes: an error of the peer's, or of ours, ends the stream."""
        try:
            work(n)
        except DownpourError as error:
            # Without the frames it came through: they hold buffers, and we hold the error.
            self.error = error.with_traceback(None)
            self.failed(error)
        except Exception as error:
            log.exception("a stream failed on our side")
            self.abort(InternalError(f"a stream failed on our side: {error!r}"))

    # -- for owners ------------------------------------------------------------------------------

    def take_over(self, transport: asyncio.BaseTransport) -> None:
        """Replace the protocol of a transport with this one."""
        transport = cast(asyncio.Transport, transport)
        self._replaced = transport.get_protocol()
        self._transport = transport
        transport.set_write_buffer_limits(high=self.high_water)
        transport.set_protocol(self)
        if not transport.is_reading():
            transport.resume_reading()
        self.opened()

    @property
    def is_open(self) -> bool:
        """True until the connection is closing or gone."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes written that have not reached the other host."""
        return 0 if self._transport is None else sockets.unsent(self._transport)

    async def wait_writable(self) -> None:
        """Wait until the transport has room (or is gone: check ``is_open``)."""
        await self._writable.wait()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._closed)

    def write(self, buffer: Any) -> None:
        """Send one small buffer, copied if the socket does not take it at once."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.bytes_sent += len(buffer)
            transport.write(buffer)

    def write_many(self, buffers: Sequence[Any]) -> None:
        """Send buffers of bytes in order; they must stay unchanged until written."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.bytes_sent += write_buffers(transport, buffers)

    def pause_reading(self) -> None:
        """Stop taking bytes from the peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what was written, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: BaseException | None = None) -> None:
        """Close at once; what was not sent is lost."""
        self.error = self.error or error
        if self._transport is not None:
            self._transport.abort()

    def drop(self, error: BaseException) -> None:
        """The same for a peer that takes nothing: the kernel forgets what waits for it."""
        self.error = self.error or error
        if self._transport is not None:
            sockets.drop(self._transport)

    # -- asyncio's callbacks ---------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes arrived."""
        self.bytes_received += nbytes
        self.guarded(self.received, nbytes)

    def eof_received(self) -> bool:
        """asyncio: the peer stopped sending; so do we."""
        return False

    def pause_writing(self) -> None:
        """asyncio: the write buffer is full."""
        self.is_writable = False
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the write buffer has room again."""
        self.is_writable = True
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over. Tell the owner, the waiters and the protocol we replaced."""
        if exc is not None:
            # The frames of its traceback, and those that called them, hold buffers on their way.
            exc = exc.with_traceback(None)
        self.error = self.error or exc
        self._transport = None
        self.is_writable = True
        self._writable.set()
        if not self._closed.done():
            self._closed.set_result(None)
        try:
            self.lost(self.error)
        finally:
            replaced, self._replaced = self._replaced, None
            if replaced is not None:
                replaced.connection_lost(exc)
            on_lost, self.on_lost = self.on_lost, None
            if on_lost is not None:
                on_lost()
