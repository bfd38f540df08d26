"""One end of a simulated connection, with the flow control of a real one.

What is written is on its way at once but counts as buffered until the other side has taken it;
above the high mark the protocol is paused, below the low mark it goes on, as with asyncio's own
transports. Bytes of one direction arrive in order. A close is flushed, an abort is not.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast, final

from pydownpour.sim.machines.process import ProcessState, SimProcess

HIGH_WATER = 64 * 1024


class Wires(Protocol):
    """What an end of a connection asks of the network."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def attach(self, end: SimTransport) -> None: ...

    def detach(self, end: SimTransport) -> None: ...

    def send(self, source: SimTransport, payload: bytes | None) -> None:
        """Carry bytes (None: end of stream) to the other end."""

    def reset(self, source: SimTransport) -> None:
        """Tell the other end that the connection is broken."""


@final
class Connection:
    """Two ends of one connection."""

    def __init__(self, number: int, on_over: Callable[[int], object]) -> None:
        self.number, self._on_over = number, on_over
        self.is_forgotten = False
        """What is sent vanishes, and neither end is told."""
        self.ends: tuple[SimTransport, SimTransport]
        self._open = 2

    def end_lost(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._on_over(self.number)


@final
class SimTransport(asyncio.Transport):
    """See the module's docstring. Made in pairs by the network."""

    def __init__(
        self,
        network: Wires,
        process: SimProcess,
        connection: Connection,
        sockname: tuple[str, int] | str,
        peername: tuple[str, int] | str,
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername, "socket": None})
        self._network, self.process, self.connection = network, process, connection
        self._loop = network.loop
        self._protocol: Any = None
        self.context = process.context.copy()
        """Whose callbacks these are."""
        self._inbox: deque[bytes | None] = deque()
        self._outgoing: list[bytes] = []
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._buffered = 0
        self._writing_paused = False
        self._reading = True
        self._pumping = False
        self._closing = False
        self.is_lost = False
        """The connection is over for this end."""
        self._eof_sent = False
        self.peer: SimTransport
        self.path = ""
        self.path_id = 0
        self.arrives_at = 0.0
        """When the last bytes this end sent arrive: the next ones come after them."""
        self.queued: deque[bytes | memoryview | None] = deque()
        """What it sent and the links have not carried yet."""
        self.clogged: deque[Any] = deque()
        """What it sent and would have arrived, were it not for a clogged host."""
        self.is_silenced = False
        """Its host lost power: what it had to send is gone."""
        self._lost_with: Exception | None = None
        network.attach(self)

    def start(self, protocol: Any) -> None:
        """Give the connection to its protocol, with what has happened to it meanwhile."""
        self._protocol = protocol
        self.context = contextvars.copy_context()
        protocol.connection_made(self)
        if self.is_lost:
            self._loop.call_soon(protocol.connection_lost, self._lost_with, context=self.context)
        else:
            self.pump()

    # -- asyncio's transport -----------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection over."""
        self._protocol = protocol
        self.context = contextvars.copy_context()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        """True once close or abort was called, or the connection is gone."""
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leave arriving bytes where they are."""
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self.pump, context=self.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to pause and resume the writing protocol."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes the other side has not taken yet."""
        return self._buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high), in bytes."""
        return self._low, self._high

    def write(self, data: Any) -> None:
        """Send; the buffer may change afterwards."""
        if self._closing or self._eof_sent:
            return
        payload = data if type(data) is bytes else bytes(data)
        if not payload:
            return
        self._buffered += len(payload)
        self._outgoing.append(payload)
        if len(self._outgoing) == 1:
            # What is written in one go leaves in one piece, as it does from a kernel's buffer.
            self._loop.call_soon(self._flush, context=self.context)
        if self._buffered > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        outgoing = self._outgoing
        if outgoing and not self.is_lost:
            payload = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
            outgoing.clear()
            self._network.send(self, payload)

    def writelines(self, list_of_data: Any) -> None:
        """Send several buffers as one."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close our direction only."""
        if not self._eof_sent and not self._closing:
            self._flush()
            self._eof_sent = True
            self._network.send(self, None)

    def close(self) -> None:
        """Close when everything written has been taken; what was not read resets the connection."""
        if self._closing:
            return
        if any(self._inbox):
            self.abort()
            return
        self._flush()
        if not self._eof_sent:
            self._eof_sent = True
            self._network.send(self, None)
        self._closing = True
        self._inbox.clear()
        if self._buffered == 0:
            self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        """Close now; the other side sees a reset."""
        if self.is_lost:
            return
        self._closing = True
        self._inbox.clear()
        self._outgoing.clear()
        self._network.reset(self)
        self._loop.call_soon(self.lose, None, context=self.context)

    # -- the network's side ------------------------------------------------------------------------

    def arrive(self, payload: bytes | None) -> None:
        """Bytes (None: end of stream) reached this host's kernel."""
        if self._closing:
            if payload:
                self.peer.taken(len(payload))
            return
        self._inbox.append(payload)
        if self._reading and not self._pumping and self._protocol is not None:
            self.pump()

    def pump(self) -> None:
        """Give the protocol what has arrived."""
        self._pumping = True
        try:
            while self._inbox and self._reading and not self._closing:
                payload = self._inbox.popleft()
                if payload is None:
                    if not self._protocol.eof_received():
                        self.close()
                    continue
                rest = self._feed(payload)
                if rest:  # it was paused in the middle
                    self._inbox.appendleft(payload[len(payload) - rest :])
                self.peer.taken(len(payload) - rest)
        finally:
            self._pumping = False

    def _feed(self, payload: bytes) -> int:
        """Hand bytes over. Returns how many are left, because reading was paused meanwhile."""
        protocol, size, done = self._protocol, len(payload), 0
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(payload)
            return 0
        while done < size and self._reading and not self._closing:
            view = memoryview(protocol.get_buffer(size - done)).cast("B")
            n = min(len(view), size - done)
            view[:n] = payload[done : done + n]
            protocol.buffer_updated(n)
            done += n
            protocol = self._protocol
        return 0 if self._closing else size - done

    def taken(self, n: int) -> None:
        """The other side has taken n of our bytes."""
        if self.is_lost:
            return
        self._buffered -= n
        if self._closing and self._buffered <= 0:
            self._loop.call_soon(self.lose, None, context=self.context)
        elif self._writing_paused and self._buffered <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self.context)

    def _resume_writing(self) -> None:
        if not self.is_lost:
            self._protocol.resume_writing()

    def lose(self, error: Exception | None) -> None:
        """The connection is over for this end."""
        if self.is_lost:
            return
        self.is_lost = self._closing = True
        self._inbox.clear()
        self._network.detach(self)
        self.connection.end_lost()
        if self._protocol is None:
            self._lost_with = error
            return
        if self.process.state is not ProcessState.DEAD:
            self._protocol.connection_lost(error)
        else:  # for the end of the world, when leftover frames wait for it
            told = functools.partial(self.context.run, self._protocol.connection_lost, error)
            self.process.held.append(told)
