"""Hosts, links and connections in memory, and what may go wrong between them.

A connection is two one-way streams. Bytes take the path's latency, drawn per message, plus the
time both hosts' links need to carry them, one after the other; streams stay in order. A link is
shared: what takes it long is carried in pieces, and those of other connections come between. What
TCP hides is not modelled (loss, duplication and reordering of packets); what it shows is: slowness,
connections that stall while a path is cut, resets, peers that are gone without a word. A reset
takes the same path as bytes do, but does not wait for those before it.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, final

from pydownpour.sim.loop.handles import Callback
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import Host, LinkModel
from pydownpour.sim.machines.process import ProcessState, SimProcess, current
from pydownpour.sim.network.listener import Listener, Places, Where, address
from pydownpour.sim.network.transport import Connection, SimTransport
from pydownpour.sim.trace import Trace


@final
class _Reset:
    """What travels instead of bytes when a connection is reset."""


RESET = _Reset()
Payload: TypeAlias = bytes | _Reset | None
"""None is the end of a stream."""

PORT_FIRST = 10_000
PACKET_SIZE = 1460
SHARE_S = 0.05
"""Links carry at most so much of one connection at a time, but at least a packet."""
SYN_RETRY_S = 1.0
"""How often a connection attempt over a cut path is tried again, as kernels do."""


@final
class Network:
    """All hosts and everything between them."""

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop, self.trace = loop, trace
        self._rng = rng
        self.hosts: dict[str, Host] = {}
        self._by_address: dict[str, Host] = {}
        self.connections: dict[int, Connection] = {}
        self._ends: dict[SimProcess, dict[SimTransport, None]] = {}
        """Ends that are not over, by whose they are."""
        self._listening: Places = {}
        self._knocking: dict[Host, dict[SimTransport, None]] = {}
        """Ends whose bytes found a host without power: their kernels send them again."""
        self._connected: dict[int, SimTransport] = {}
        self._numbers = 0
        self._ports = PORT_FIRST
        self.is_closed = False
        """The run is over: what leftover frames of processes still want is refused."""
        self.fuse = 0
        """The connection that carries the message of this number from now breaks behind it."""
        self.cut: dict[tuple[str, str], None] = {}
        """Ordered pairs of host names between which nothing passes."""
        self._clogged: dict[SimTransport, None] = {}
        """Senders whose bytes wait at a clogged host."""
        self._held: dict[tuple[str, str], deque[tuple[SimTransport, Payload]]] = {}
        loop.network = self

    def add_host(self, name: str, link: LinkModel) -> Host:
        """A new machine with the next address."""
        number = len(self.hosts) + 1
        host = Host(name, f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", link)
        self.hosts[name] = self._by_address[host.address] = host
        return host

    # -- what the loop asks ------------------------------------------------------------------------

    def getaddrinfo(self, host: Any, port: Any) -> list[Any]:
        """Addresses of a host name, or of an address itself."""
        name = host.decode() if isinstance(host, bytes) else str(host)
        known = self.hosts.get(name) or self._by_address.get(name)
        if known is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no simulated host {name}")
        where = (known.address, int(port or 0))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]

    def listen(self, factory: Callable[[], Any], where: Where | None) -> Listener:
        """Listen on the running process's host, at a port (0: any free one) or a path."""
        process = self._running()
        if not where:
            self._ports += 1
            where = self._ports
        if (process.host, where) in self._listening:
            what = f"port {where}" if isinstance(where, int) else where
            raise OSError(errno.EADDRINUSE, f"{what} of {process.host.name} is in use")
        return Listener(self.loop, self._listening, process, where, factory)

    async def connect(self, sock: Any, ip: str, port: int) -> None:
        """Open a connection from the running process to an address."""
        host = self._by_address.get(ip)
        if host is None:
            raise OSError(errno.EHOSTUNREACH, f"no simulated host {ip}")
        self._connected[id(sock)] = await self._open(host, port)

    async def dial(self, name: str, port: int, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """The same, by name or address, with its protocol."""
        ip = self.getaddrinfo(name, port)[0][4][0]
        return _started(await self._open(self._by_address[ip], port), factory)

    async def dial_path(self, path: str, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """Open a connection to a path of the running process's own host."""
        return _started(await self._open(self._running().host, path), factory)

    async def _open(self, host: Host, where: Where) -> SimTransport:
        process = self._running()
        if self.is_closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the simulation is over")
        if host is not process.host:
            await asyncio.sleep(self._latency(process.host, host))
            while not host.is_up or self._is_blocked(process.host, host):
                await asyncio.sleep(SYN_RETRY_S)
            await asyncio.sleep(self._latency(host, process.host))
        listener = self._listening.get((host, where))
        if listener is None or listener.process.state is ProcessState.DEAD:
            if isinstance(where, str):
                raise FileNotFoundError(errno.ENOENT, f"nobody listens at {where}")
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host.name}:{where} refused")
        self._numbers += 1
        self._ports += 1
        connection = Connection(self._numbers, self.connections.pop)
        ours = (process.host.address, self._ports) if isinstance(where, int) else ""
        theirs = address(host, where)
        client = SimTransport(self, process, connection, ours, theirs)
        server = SimTransport(self, listener.process, connection, theirs, ours)
        client.peer, server.peer = server, client
        for end in (client, server):
            end.path = f"{end.process.name}>{end.peer.process.name}"
            end.path_id = self.trace.path_id(end.path)
        connection.ends = (client, server)
        self.connections[connection.number] = connection
        self.trace.note(self.loop.now, "connect", client.path, connection.number)
        accept = self._accept
        self.loop.call_soon(accept, server, listener, context=listener.process.context.copy())
        return client

    def _accept(self, server: SimTransport, listener: Listener) -> None:
        server.start(listener.factory())

    def client_transport(self, sock: Any, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """The transport of a connected socket; the real socket has done its duty as a name."""
        transport = self._connected.pop(id(sock))
        sock.close()
        return _started(transport, factory)

    def attach(self, end: SimTransport) -> None:
        """A process has one more end of a connection."""
        self._ends.setdefault(end.process, {})[end] = None

    def detach(self, end: SimTransport) -> None:
        mine = self._ends.get(end.process, {})
        mine.pop(end, None)
        if not mine:
            self._ends.pop(end.process, None)

    def ends_of(self, process: SimProcess) -> list[SimTransport]:
        """A process's ends of connections, oldest first."""
        return list(self._ends.get(process, ()))

    def _running(self) -> SimProcess:
        process = current()
        if process is None:
            raise RuntimeError("only a simulated process has a network")
        return process

    # -- bytes on their way ------------------------------------------------------------------------

    def send(self, source: SimTransport, payload: bytes | None) -> None:
        """Carry bytes (None: end of stream) to the other end."""
        if self.is_closed or source.connection.is_forgotten:
            return
        if payload is not None and not source.process.host.passes_upgrade:
            payload = payload.replace(b"\r\nUpgrade: ", b"\r\nX-Taken: ")  # of the same length
        if self._rng.random() < 0.5 and payload is not None and len(payload) > 1:
            pieces = self._sliced(payload, source.process.host.link.slices_max)
        else:
            pieces = [payload]
        for piece in pieces:
            self._send_piece(source, piece)

    def _sliced(self, payload: bytes, slices_max: int) -> list[bytes | None]:
        if slices_max <= 1:
            return [payload]
        cuts = sorted(
            self._rng.randrange(1, len(payload)) for _ in range(self._rng.randrange(slices_max))
        )
        bounds = [0, *cuts, len(payload)]
        return [payload[a:b] for a, b in itertools.pairwise(bounds) if b > a]

    def _send_piece(self, source: SimTransport, payload: bytes | None) -> None:
        here, there = source.process.host, source.peer.process.host
        pair = (here.name, there.name)
        if pair in self.cut or pair in self._held:
            self._held.setdefault(pair, deque()).append((source, payload))
            return
        now = self.loop.now
        if here is there:
            self.loop.at(now, self._hand, source, source.peer, payload, context=_WORLD)
        elif source.queued:
            source.queued.append(payload)
        else:
            self._carry(source, payload)

    def _carry(self, source: SimTransport, payload: bytes | memoryview | None) -> None:
        """Over the links, of what takes long the first piece; the rest when that is through."""
        here, there = source.process.host, source.peer.process.host
        up, down = here.link.bytes_per_s, there.link.down
        size = 0 if payload is None else len(payload)
        rest = None
        if size > PACKET_SIZE and size > (share := max(PACKET_SIZE, min(up, down) * SHARE_S)):
            assert payload is not None
            size = int(share)
            rest = memoryview(payload)[size:]
            payload = bytes(payload[:size])
        elif isinstance(payload, memoryview):
            payload = bytes(payload)
        now = self.loop.now
        leaves = (here.up_free_at if here.up_free_at > now else now) + size / up
        lands = (there.down_free_at if there.down_free_at > leaves else leaves) + size / down
        here.up_free_at, there.down_free_at = leaves, lands
        arrival = lands + self._latency(here, there)
        if arrival < source.arrives_at:
            arrival = source.arrives_at
        source.arrives_at = arrival
        self.loop.at(arrival, self._deliver, source, source.peer, payload, context=_WORLD)
        if rest is not None:
            source.queued.appendleft(rest)
        if source.queued:
            self.loop.at(there.down_free_at, self._carry_on, source, context=_WORLD)

    def _carry_on(self, source: SimTransport) -> None:
        """The next piece of a connection, now that its last one is through."""
        if source.is_lost or source.is_silenced or source.connection.is_forgotten:
            source.queued.clear()
            return
        pair = (source.process.host.name, source.peer.process.host.name)
        if pair in self.cut or pair in self._held:
            held = self._held.setdefault(pair, deque())
            while source.queued:
                payload = source.queued.popleft()
                held.append((source, payload if payload is None else bytes(payload)))
            return
        self._carry(source, source.queued.popleft())

    def _deliver(self, source: SimTransport, target: SimTransport, payload: Payload) -> None:
        if source.connection.is_forgotten:
            return
        is_clogged = self._is_clogged(source.process.host, target.process.host)
        if is_clogged:
            self._clogged[source] = None
        if is_clogged or source.clogged:
            source.clogged.append(payload)
        else:
            self._hand(source, target, payload)

    def _hand(self, source: SimTransport, target: SimTransport, payload: Payload) -> None:
        """Let the target's process take it, or its kernel if the process is gone."""
        if target.is_lost:
            if isinstance(payload, bytes):
                self._unknown(source, target)
                source.taken(len(payload))
            return
        process = target.process
        if process.state is ProcessState.RUNNING and not process.held:
            target.context.run(self._arrived, source, target, payload)
            return
        # Behind what came while it was paused.
        what = (source, target, payload)
        process.held.append(Callback(self._arrived, what, self.loop, target.context, process)._run)

    def _unknown(self, source: SimTransport, target: SimTransport) -> None:
        """Bytes for a connection that is over: the kernel resets it, as soon as it has power."""
        if target.process.host.is_up:
            self.reset(target)
        else:
            self._knocking.setdefault(target.process.host, {})[source] = None

    def _arrived(self, source: SimTransport, target: SimTransport, payload: Payload) -> None:
        if isinstance(payload, _Reset):
            target.lose(_reset_error())
            return
        self.trace.message(
            self.loop.now, source.path, source.path_id, 0 if payload is None else len(payload)
        )
        target.arrive(payload)
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.reset_connection(target.connection)

    def _latency(self, here: Host, there: Host) -> float:
        mean = (here.link.latency_s + there.link.latency_s) / 2
        jitter, theirs = here.link.jitter, there.link.jitter
        if theirs > jitter:
            jitter = theirs
        return mean * self._rng.uniform(1 - jitter, 1 + jitter)

    def _is_blocked(self, here: Host, there: Host) -> bool:
        """No connection can be made between them now."""
        return (
            (here.name, there.name) in self.cut
            or (there.name, here.name) in self.cut
            or self._is_clogged(here, there)
        )

    def _is_clogged(self, here: Host, there: Host) -> bool:
        now = self.loop.now
        return here.clogged_until > now or there.clogged_until > now

    # -- faults ------------------------------------------------------------------------------------

    def cut_path(self, here: str, there: str) -> None:
        """Nothing passes from one host to another until healed; senders do not notice."""
        self.cut[here, there] = None
        self.trace.note(self.loop.now, "cut", f"{here}>{there}")

    def heal_path(self, here: str, there: str) -> None:
        """What was held back goes on its way."""
        if self.cut.pop((here, there), 0) == 0:
            return
        self.trace.note(self.loop.now, "heal", f"{here}>{there}")
        for source, payload in self._held.pop((here, there), ()):
            if source.is_silenced:
                continue
            if isinstance(payload, _Reset):
                self.reset(source)
            else:
                self._send_piece(source, payload)

    def heal_all(self) -> None:
        for here, there in list(self.cut):
            self.heal_path(here, there)

    def clog(self, host: Host, until: float) -> None:
        """Nothing leaves or reaches a host before a time, what is on its way included."""
        host.clogged_until = max(host.clogged_until, until)
        self.trace.note(self.loop.now, "clog", host.name, round((until - self.loop.now) * 1e6))
        self.loop.at(until, self._flow)

    def unclog(self, host: Host) -> None:
        if host.clogged_until > self.loop.now:
            host.clogged_until = self.loop.now
            self._flow()

    def _flow(self) -> None:
        """What was stuck arrives, each stream in order."""
        for source in list(self._clogged):
            target = source.peer
            if self._is_clogged(source.process.host, target.process.host):
                continue
            del self._clogged[source]
            self.loop.call_soon(self._drip, source, context=_WORLD)

    def _drip(self, source: SimTransport) -> None:
        """One piece a turn, as a selector reports one event of a socket at a time.

        What the first one starts (a task, say) has begun before the next comes.
        """
        target = source.peer
        if self._is_clogged(source.process.host, target.process.host):
            self._clogged[source] = None
        elif source.clogged:
            self._hand(source, target, source.clogged.popleft())
            self.loop.call_soon(self._drip, source, context=_WORLD)

    def reset(self, source: SimTransport) -> None:
        """The other end sees a reset, after the latency; what was on its way is lost."""
        here, there = source.process.host, source.peer.process.host
        if source.peer.is_lost:
            return
        if (here.name, there.name) in self.cut:
            self._held.setdefault((here.name, there.name), deque()).append((source, RESET))
            return
        at = self.loop.now + self._latency(here, there)
        self.loop.at(at, self._deliver, source, source.peer, RESET, context=_WORLD)

    def reset_connection(self, connection: Connection) -> None:
        """Break a connection in the middle: both ends see a reset."""
        self.trace.note(self.loop.now, "reset", connection.ends[0].path, connection.number)
        for end in connection.ends:
            self.reset(end)

    def forget_connection(self, connection: Connection) -> None:
        """As a router on the way that lost its table: both ends wait for ever."""
        self.trace.note(self.loop.now, "forget", connection.ends[0].path, connection.number)
        connection.is_forgotten = True

    def end_process(self, process: SimProcess, *, silently: bool) -> None:
        """A process is gone: its kernel closes its sockets, or (power loss) says nothing."""
        for listener in [one for one in self._listening.values() if one.process is process]:
            listener.close()
        for transport in self.ends_of(process):
            if silently:
                transport.is_silenced = True
            else:
                self.reset(transport)
            transport.lose(None)

    def power_cut(self, host: Host) -> None:
        """A host's kernel and disk stop where they are; its processes are ended by the caller."""
        host.is_up = False
        if host.disk is not None:
            host.disk.power_cut()

    def power_up(self, host: Host) -> None:
        """A process starts on a host: its kernel is there to answer those who still knock."""
        host.is_up = True
        for source in self._knocking.pop(host, ()):
            self.reset(source.peer)


_WORLD = contextvars.Context()
"""Of no process: kernels and wires go on whatever processes do."""


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def _started(transport: SimTransport, factory: Callable[[], Any]) -> tuple[Any, Any]:
    protocol = factory()
    transport.start(protocol)
    return transport, protocol
