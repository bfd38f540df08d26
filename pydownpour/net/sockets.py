"""Socket settings that matter, in one place.

BBR, the default congestion control of many machines, halves the throughput of loopback TCP and
doubles the sender's CPU time; reno is allowed to everybody and does not. So sockets whose peer is
this machine ask for reno. Buffer sizes are left to the kernel: every fixed size measured worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Any

from pydownpour.net.access import is_loopback

LOOPBACK_CONGESTION = b"reno"


def tune(sock: socket.socket, host: str) -> None:
    """Apply the settings to a listening or connecting TCP socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_loopback(host) and hasattr(socket, "TCP_CONGESTION"):
        # Not allowed in some containers: then the default stays, only slower.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONGESTION)


def client_socket(address: tuple[Any, ...]) -> socket.socket:
    """A non-blocking socket for aiohttp's connector, from a getaddrinfo entry."""
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    tune(sock, str(where[0]))
    return sock


def unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes written to a transport that have not reached the other host (or a proxy before it).

    They are in the transport's buffer and in the kernel's; where the kernel does not tell, only
    those in the transport's are counted.
    """
    size = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is not None:
        # A socket that is closed, or not TCP's, has nothing to tell.
        with contextlib.suppress(OSError, ValueError):
            answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            size += struct.unpack("i", answer)[0]
    return size


def drop(transport: asyncio.WriteTransport) -> None:
    """Abort a connection whose peer takes nothing, and let the kernel forget what waits for it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError, ValueError):
            ours = socket.socket(fileno=sock.fileno())  # uvloop's have no options
            try:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            finally:
                ours.detach()
    transport.abort()


def congestion(sock: socket.socket) -> str:
    """The congestion control a TCP socket uses, or ""."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return ""
    with contextlib.suppress(OSError):
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return name.split(b"\0")[0].decode()
    return ""
