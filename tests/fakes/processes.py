"""Processes on the hosts of a simulated network, and what they note."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.world.processes import Processes
from tests.fakes.network import PORT, End, Net

Main: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


class World:
    """Processes on two hosts; ``seen`` is what they note, ``exits`` how they ended."""

    def __init__(self) -> None:
        self.net = Net()
        self.net.server.close()
        self.net.network.trace.kept = []
        self.loop = self.net.loop
        self.processes = Processes(self.net.network)
        self.host, self.other = self.net.network.hosts.values()
        self.seen: list[str] = []
        self.exits: list[tuple[str, BaseException | None]] = []
        self.server: End
        self.client: End

    def close(self) -> None:
        """Frames that were left would end when they are collected, in some other test."""
        self.loop.run_until_complete(self.processes.unwind())
        self.loop.close()
        assert self.loop.errors == []

    def start(self, main: Main, name: str = "one", host: Host | None = None) -> SimProcess:
        def on_exit(process: SimProcess, error: BaseException | None) -> None:
            self.exits.append((process.name, error))

        return self.processes.start(name, host or self.host, main, on_exit)

    def wait(self, seconds: float = 10.0) -> None:
        self.net.wait(seconds)

    async def ticks(self, last_words: str = "finally") -> None:
        """A note each second, and one at the end."""
        try:
            for number in range(1000):
                self.seen.append(f"tick {number}")
                await asyncio.sleep(1.0)
        finally:
            self.seen.append(last_words)

    async def serve(self) -> None:
        def accept() -> End:
            self.server = End(self.loop)
            return self.server

        await self.loop.create_server(accept, port=PORT)
        await asyncio.sleep(1e6)

    async def connect(self) -> None:
        self.client = await self.net.open()
        await asyncio.sleep(1e6)

    def connected(self) -> SimProcess:
        """The server of a client."""
        server = self.start(self.serve, "server", self.other)
        self.wait(0.0)
        self.start(self.connect, "client")
        self.wait(1.0)
        return server

    def noted(self, *kinds: str) -> list[str]:
        """What the trace says, of some kinds."""
        kept = self.net.network.trace.kept or []
        return [f"{kind} {who}" for _, kind, who, _ in kept if kind in kinds]
