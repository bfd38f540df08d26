"""Many buffers to a transport at once, the way its event loop does it best."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

JOINED_SIZE_MAX = 16 * 1024
"""Bytes up to which buffers are copied to one where each would be a system call of its own."""


def write_buffers(transport: asyncio.WriteTransport, buffers: Sequence[Any]) -> int:
    """Write buffers of bytes in order; they must stay unchanged until written.

    Returns:
        Bytes of all of them.
    """
    size = sum(map(len, buffers))
    if not isinstance(transport, asyncio.Transport):
        # uvloop's are not. It hands all of them to one system call; with a write for each, a header
        # is a packet of its own.
        transport.writelines(buffers)
        return size
    views = [memoryview(buffer) for buffer in buffers]  # all that asyncio takes
    if size <= JOINED_SIZE_MAX:
        transport.write(b"".join(views))
    else:
        # asyncio's own writelines joins the buffers to one (until 3.12), or does not tell us when
        # its buffer is full (from then on).
        for view in views:
            if transport.is_closing():
                break  # each write to a broken connection would be a line in the log
            transport.write(view)
    return size
