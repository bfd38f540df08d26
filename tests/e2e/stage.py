"""A whole job in one process: coordinator, shards and replicas on real loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pydownpour.coordinator.service import serve_coordinator
from pydownpour.job import Job
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.replica.run import run_replica
from pydownpour.shard.service import serve_shard
from pydownpour.wire.messages import Status

Advertise = Callable[[str], "contextlib.AbstractAsyncContextManager[str]"]


class Stage:
    """One running job. ``report`` is there after the ``async with``."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        shards: int = 2,
        access: Access | None = None,
        before_shards: Advertise | None = None,
    ) -> None:
        self.job, self.folder, self.shards = job, folder, shards
        self.access = access or Access()
        self.before_shards = before_shards
        self.report: dict[str, Any] = {}
        self.url = ""
        self._replicas = 0

    async def __aenter__(self) -> Stage:
        self._stack = contextlib.AsyncExitStack()
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._coordinator = asyncio.create_task(
            serve_coordinator(
                self.job,
                shards=self.shards,
                bind=Bind(),
                access=self.access,
                run_folder=str(self.folder),
                announce=heard.set_result,
                random=random.Random(0),
            )
        )
        either: set[asyncio.Future[Any]] = {heard, self._coordinator}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._coordinator.done():
            self._coordinator.result()
        self.url = heard.result()
        self._shards = [asyncio.create_task(self._shard(i)) for i in range(self.shards)]
        return self

    async def _shard(self, index: int) -> None:
        if self.before_shards is None:
            await serve_shard(
                coordinator=self.url,
                bind=Bind(),
                access=self.access,
                index=index,
                announce=lambda url: None,
            )
            return
        # A proxy in front: the port is chosen first, so that the proxy knows where to go.
        port = free_port()
        async with self.before_shards(f"127.0.0.1:{port}") as advertised:
            await serve_shard(
                coordinator=self.url,
                bind=Bind(port=port),
                access=self.access,
                index=index,
                announce=lambda url: None,
                advertise=advertised,
            )

    async def replica(self, *, own_thread: bool = False, name: str = "") -> None:
        """Run the job's function as one replica."""
        self._replicas += 1
        await run_replica(
            self.job,
            coordinator=self.url,
            access=self.access,
            own_thread=own_thread,
            name=name,
            rng=random.Random(self._replicas),
        )

    async def status(self) -> Status:
        """What the coordinator says now."""
        async with Client(self.url, access=self.access) as client:
            return await client.get("/v1/status", Status)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._coordinator.cancel()
            for shard in self._shards:
                shard.cancel()
            await asyncio.gather(self._coordinator, *self._shards, return_exceptions=True)
            return
        self.report = await self._coordinator
        await asyncio.gather(*self._shards)

    def parameters(self) -> dict[str, NDArray[Any]]:
        """The final parameters, from the run folder, read by the package everybody uses."""
        arrays: dict[str, NDArray[Any]] = safetensors.numpy.load_file(
            self.folder / "parameters.safetensors"
        )
        return arrays


def free_port() -> int:
    """A port nobody uses just now."""
    import socket

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Proxy:
    """A TCP proxy that can cut connections and rewrite the client's bytes."""

    def __init__(
        self,
        target: str,
        *,
        cut_after: Callable[[int], int | None] = lambda number: None,
        rewrite: Callable[[bytes], bytes] = lambda data: data,
    ) -> None:
        self._target = target
        self._cut_after, self._rewrite = cut_after, rewrite
        self.connections = 0
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen; yields the URL to advertise."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        budget = self._cut_after(self.connections)
        host, port = self._target.split(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        up = asyncio.create_task(self._pump(reader, up_writer, budget, self._rewrite))
        down = asyncio.create_task(self._pump(up_reader, writer, None, lambda data: data))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for each in (writer, up_writer):
                each.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: int | None,
        rewrite: Callable[[bytes], bytes],
    ) -> None:
        while data := await reader.read(65536):
            data = rewrite(data)
            if budget is not None:
                if len(data) >= budget:
                    self.cuts += 1
                    writer.write(data[:budget])
                    await writer.drain()
                    return
                budget -= len(data)
            writer.write(data)
            await writer.drain()


def ones(job: Job, value: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """A gradient of one value everywhere."""
    return {s.name: np.full(s.shape, value, np.float32) for s in job.layout.arrays}
