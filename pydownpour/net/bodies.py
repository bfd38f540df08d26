"""Bodies of requests: of a known size, at a pace, and not too many at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import final

from aiohttp import web

from pydownpour.errors import LimitExceeded, RemoteProtocolError, TooLarge
from pydownpour.limits import DEFAULT, Limits


@final
class Budget:
    """Bytes of all bodies that are being read or answered.

    Args:
        size_max: How many there may be.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max, self.used = size_max, 0

    @contextlib.contextmanager
    def reserved(self, size: int, route_max: int) -> Iterator[None]:
        """Room for a body, before a byte of it is read.

        Raises:
            TooLarge: than its route allows.
            LimitExceeded: there is no room now.
        """
        _check_size(size, route_max)
        if self.used + size > self.size_max:
            raise LimitExceeded(
                f"bodies of {self.used} bytes are being read here, the limit is bodies_size_max "
                f"({self.size_max}); try again"
            )
        self.used += size
        try:
            yield
        finally:
            self.used -= size


async def whole(request: web.BaseRequest, size_max: int, limits: Limits = DEFAULT) -> bytes:
    """The body, never more than size_max bytes of it, and never from a stalled sender."""
    if not request.content.is_eof():
        return b"".join([chunk async for chunk in chunks(request, size_max, limits)])
    # It came whole, with its header: nobody has to be waited for, and no timer set.
    body = request.content.read_nowait()
    _check_size(len(body), size_max)
    return body


async def chunks(
    request: web.BaseRequest, size_max: int, limits: Limits = DEFAULT
) -> AsyncIterator[bytes]:
    """The same, piece by piece.

    Raises:
        TooLarge: than size_max.
        RemoteProtocolError: the sender is slower than ``body_window_size_min`` bytes in
            ``body_window_s``. The taker's time is not the sender's.
    """
    _check_size(request.content_length or 0, size_max)
    content, loop = request.content, asyncio.get_running_loop()
    size, batch, left_s = 0, 0, limits.body_window_s
    try:
        async with asyncio.timeout(None) as deadline:
            while True:
                asked_at = loop.time()
                deadline.reschedule(asked_at + left_s)
                chunk = await content.readany()
                deadline.reschedule(None)
                left_s -= loop.time() - asked_at
                if not chunk:
                    return
                size += len(chunk)
                batch += len(chunk)
                if size > size_max:
                    raise TooLarge(f"body of more than {size_max} bytes, the limit here")
                if batch >= limits.body_window_size_min:
                    batch, left_s = 0, limits.body_window_s
                yield chunk
    except TimeoutError as error:
        raise RemoteProtocolError(
            f"body stalled after {size} bytes: {batch} in {limits.body_window_s:g} s, where "
            f"{limits.body_window_size_min} are the least"
        ) from error
    except RuntimeError as error:
        if request.transport is not None:
            raise
        # aiohttp's word for a connection that was lost before the body was asked for.
        raise ConnectionResetError(f"{error} after {size} bytes of the body") from error


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise TooLarge(f"body of {size} bytes, the limit here is {size_max}")
