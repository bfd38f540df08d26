"""Two plain blocking sockets in two processes: the most that loopback TCP can carry.

Written in Python and measuring as plain C does: each call moves 256 KiB to 1 MiB, so the kernel's
copies are all there is to it. The receiver of a push uses one small buffer again and again, which
stays in its cache; the receiver of a fetch needs the bytes, so it has a buffer for all of them.

    client -> server   8 bytes: how many bytes follow (push), or minus how many are wanted (fetch)
    server -> client   a push is answered by one byte when its last byte was read
"""

from __future__ import annotations

import socket
import struct
import threading
import time

import numpy as np

from pydownpour.layout import raw
from pydownpour.net import sockets

SEND_SIZE = 1 << 20
RECEIVE_SIZE = 256 << 10
_REQUEST = struct.Struct("<q")


def serve(size_max: int) -> int:
    """Answer any number of connections from daemon threads; returns the port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sockets.tune(listener, "127.0.0.1")
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    source = raw(np.ones(max(1, size_max), np.uint8))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(connection, source), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def _converse(connection: socket.socket, source: memoryview) -> None:
    scratch = memoryview(bytearray(RECEIVE_SIZE))
    with connection:
        while request := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
            (size,) = _REQUEST.unpack(request)
            if size < 0:
                _send(connection, source[:-size])
                continue
            while size > 0:
                size -= connection.recv_into(scratch[: min(size, RECEIVE_SIZE)])
            connection.sendall(b"!")


def _send(connection: socket.socket, data: memoryview) -> None:
    for start in range(0, len(data), SEND_SIZE):
        connection.sendall(data[start : start + SEND_SIZE])


class PlainClient:
    """The other end, in this process. Blocks: nothing else runs meanwhile."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sockets.tune(self._socket, "127.0.0.1")
        self._socket.connect(("127.0.0.1", port))

    @property
    def congestion(self) -> str:
        """Its congestion control."""
        return sockets.congestion(self._socket)

    def push(self, data: memoryview) -> float:
        """Seconds until the server has read all."""
        began = time.perf_counter()
        self._socket.sendall(_REQUEST.pack(len(data)))
        _send(self._socket, data)
        self._socket.recv(1, socket.MSG_WAITALL)
        return time.perf_counter() - began

    def fetch(self, target: memoryview) -> float:
        """Seconds until the target is full."""
        began = time.perf_counter()
        self._socket.sendall(_REQUEST.pack(-len(target)))
        filled = 0
        while filled < len(target):
            filled += self._socket.recv_into(target[filled : filled + SEND_SIZE])
        return time.perf_counter() - began

    def close(self) -> None:
        self._socket.close()
