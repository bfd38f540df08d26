"""A machine of a world: its address, its link, and what listens on it."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

from pydownpour.errors import ConfigError

if TYPE_CHECKING:
    from pydownpour.sim.disk.disk import SimDisk
    from pydownpour.sim.machines.process import SimProcess
    from pydownpour.sim.network.transport import SimTransport

Where: TypeAlias = int | str
"""What a host's processes listen at: a port, or the path of a Unix socket."""


@final
@dataclasses.dataclass(frozen=True)
class LinkModel:
    """How a host's network behaves.

    Attributes:
        latency_s: Mean one-way latency between two hosts.
        jitter: Each message's latency is drawn from latency_s * (1 +- jitter), uniformly.
        bytes_per_s: Of the host's own link, out of it; and into it, unless the next says more.
        down_bytes_per_s: Into the host; 0 for as much as out of it.
        slices_max: A message may arrive in up to so many pieces, as TCP is free to do.
    """

    latency_s: float = 0.0005
    jitter: float = 0.5
    bytes_per_s: float = 1e9
    down_bytes_per_s: float = 0.0
    slices_max: int = 1

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and 0 <= self.jitter <= 1):
            raise ConfigError(f"{self}: latency_s must not be negative, and jitter from 0 to 1")
        if not (self.bytes_per_s > 0 and self.down_bytes_per_s >= 0 and self.slices_max >= 1):
            raise ConfigError(f"{self}: bytes_per_s must be positive, and slices_max at least 1")

    @property
    def down(self) -> float:
        """Bytes a second into the host."""
        return self.down_bytes_per_s or self.bytes_per_s


@final
class Host:
    """A machine: an address, a link, and the processes on it."""

    def __init__(self, name: str, address: str, link: LinkModel) -> None:
        self.name, self.address, self.link = name, address, link
        self.up_free_at = 0.0
        self.down_free_at = 0.0
        self.clock_offset_s = 0.0
        self.clogged_until = 0.0
        """Nothing leaves or reaches it before."""
        self.slow = 1.0
        """Its processes compute this much slower."""
        self.passes_upgrade = True
        """False: a proxy before it takes the Upgrade header out of its requests."""
        self.is_up = True
        """False after a power cut, until a process starts on it again."""
        self.knocking: dict[SimTransport, None] = {}
        """Ends whose bytes found it without power: their kernels send them again."""
        self.disk: SimDisk | None = None
        self.listening: dict[Where, Listener] = {}


@final
class Listener(asyncio.AbstractServer):
    """A listening port."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: SimProcess,
        where: Where,
        factory: Callable[[], Any],
    ) -> None:
        self._loop, self.process, self.where, self.factory = loop, process, where, factory
        self.sockets = [_Named(process.host, where)]

    def close(self) -> None:
        """Stop listening; once is enough, and another may have the place by the second time."""
        if self.is_serving():
            del self.process.host.listening[self.where]

    async def wait_closed(self) -> None:
        """At once."""

    def is_serving(self) -> bool:
        """True until closed."""
        return self.process.host.listening.get(self.where) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The world's."""
        return self._loop

    async def serve_forever(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()

    async def start_serving(self) -> None:
        """It does already."""


@final
class _Named:
    """Stands for a listening socket: only its name is asked for."""

    family = socket.AF_UNSPEC

    def __init__(self, host: Host, where: Where) -> None:
        self._name = address(host, where)

    def getsockname(self) -> Any:
        """Where it listens."""
        return self._name


def address(host: Host, where: Where) -> tuple[str, int] | str:
    """A socket's name, as ``getsockname`` gives it."""
    return (host.address, where) if isinstance(where, int) else where
