"""A whole job in one process: coordinator, shards and replicas on real loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pydownpour.coordinator.service import CoordinatorService, serve_coordinator
from pydownpour.errors import JobFailed
from pydownpour.job import Job
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.policy.phases import phases_of
from pydownpour.replica.run import run_replica
from pydownpour.shard.gate import AckGate
from pydownpour.shard.service import ShardService, run_shard, serve_shard
from pydownpour.testing import FaultProxy
from pydownpour.wire.messages import Status

QUICK = dataclasses.replace(DEFAULT, handover_linger_s=1.0)
FORSAKEN = dataclasses.replace(QUICK, lease_s=1.0)
"""For a job whose only replica fails: another is awaited for as long as a lease may be held."""


class Stage:
    """One running job. ``report`` is there after the ``async with``."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        shards: int = 2,
        access: Access | None = None,
        before_shards: Callable[[str], FaultProxy] | None = None,
        gate: AckGate | None = None,
        limits: Limits = QUICK,
    ) -> None:
        self.limits = limits
        self.job, self.folder, self.shards = job, folder, shards
        self.access = access or Access()
        self.before_shards, self.gate = before_shards, gate
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
                watch=self._watch,
                limits=self.limits,
            )
        )
        either: set[asyncio.Future[Any]] = {heard, self._coordinator}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._coordinator.done():
            self._coordinator.result()
        self.url = heard.result()
        self._shards = [asyncio.create_task(self._shard(i)) for i in range(self.shards)]
        return self

    def _watch(self, service: CoordinatorService) -> None:
        self.service = service

    async def move(self, index: int) -> None:
        """Move a shard to another process (task), and see it there."""
        place = self.service.job.places.get(index)
        before = place.url
        self._shards.append(asyncio.create_task(self._shard(index, self.service.move(index))))
        while place.url == before:
            await asyncio.sleep(0.01)

    async def _shard(self, index: int, ticket: str = "") -> None:
        policies = phases_of(self.job.policy).classes
        if self.before_shards is None:
            await run_shard(
                ShardService(self.access, policies, self.gate, self.limits),
                coordinator=self.url,
                bind=Bind(),
                access=self.access,
                index=index,
                announce=lambda url: None,
                ticket=ticket,
            )
            return
        # A proxy in front: the port is chosen first, so that the proxy knows where to go.
        port = free_port()
        async with self.before_shards(f"127.0.0.1:{port}") as proxy:
            await serve_shard(
                coordinator=self.url,
                bind=Bind(port=port),
                access=self.access,
                index=index,
                announce=lambda url: None,
                advertise=proxy.url,
                policies=policies,
                limits=self.limits,
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
            limits=self.limits,
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
        ends = await asyncio.gather(*self._shards, return_exceptions=True)
        # Shards say of a failed job what the report says; anything else is a failure of the test.
        failed = self.report["state"] == "failed"
        for end in ends:
            if isinstance(end, BaseException) and not (failed and isinstance(end, JobFailed)):
                raise end

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


def ones(job: Job, value: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """A gradient of one value everywhere."""
    return {s.name: np.full(s.shape, value, np.float32) for s in job.layout.arrays}
