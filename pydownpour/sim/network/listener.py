"""A listening port, and the names of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, TypeAlias, final

from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import SimProcess

Where: TypeAlias = int | str
"""What a host's processes listen at: a port, or the path of a Unix socket."""
Places: TypeAlias = "dict[tuple[Host, Where], Listener]"


@final
class Listener(asyncio.AbstractServer):
    """A listening port: it takes its place among ``places``, and leaves it when closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        places: Places,
        process: SimProcess,
        where: Where,
        factory: Callable[[], Any],
    ) -> None:
        self._loop, self.process, self.factory = loop, process, factory
        self._places, self._place = places, (process.host, where)
        places[self._place] = self
        self.sockets = [_Named(process.host, where)]

    def close(self) -> None:
        """Stop listening; once is enough, and another may have the place by the second time."""
        if self.is_serving():
            del self._places[self._place]

    async def wait_closed(self) -> None: ...

    def is_serving(self) -> bool:
        return self._places.get(self._place) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def serve_forever(self) -> None:
        await asyncio.Event().wait()

    async def start_serving(self) -> None: ...


@final
class _Named:
    """Stands for a listening socket: only its name is asked for."""

    family = socket.AF_UNSPEC

    def __init__(self, host: Host, where: Where) -> None:
        self._name = address(host, where)

    def getsockname(self) -> Any:
        return self._name


def address(host: Host, where: Where) -> tuple[str, int] | str:
    """A socket's name, as ``getsockname`` gives it."""
    return (host.address, where) if isinstance(where, int) else where
