"""The bench's other processes, from inside: ``python -m pydownpour.bench.peers ROLE SETTINGS``.

Roles: ``shard`` (the product's, against any coordinator), ``pusher`` (a replica that pushes when
told), ``coordinator`` and ``trainer`` (the product's, of a whole job), ``sockets`` (the plain end),
``echo`` (the plain upgraded end).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np

from pydownpour.bench import cluster, echo, plain
from pydownpour.cli.loop import loop_factory
from pydownpour.coordinator.service import serve_coordinator
from pydownpour.job import Job, Work
from pydownpour.net import process
from pydownpour.net.access import Access, Bind
from pydownpour.optimizers import SGD
from pydownpour.replica.joining import join
from pydownpour.shard.service import serve_shard


def main() -> None:
    """Play one role until standard input closes."""
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(ROLES[role](**settings))


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


async def _questions() -> AsyncIterator[dict[str, Any]]:
    """JSON lines from standard input, to its end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _shard(coordinator: str) -> None:
    idle_bytes = process.rss_bytes()
    listening = asyncio.Event()
    serving = asyncio.create_task(
        serve_shard(
            coordinator=coordinator,
            bind=Bind(),
            access=Access(),
            announce=lambda _: listening.set(),
        )
    )
    await listening.wait()
    _say(idle_bytes=idle_bytes)
    async for _ in _questions():
        _say(rss_bytes=process.rss_bytes(), rss_peak_bytes=process.rss_peak_bytes())
    serving.cancel()
    await asyncio.wait([serving])


async def _pusher(coordinator: str, length: int) -> None:
    async with cluster.pushing(coordinator, cluster.one_array(length)) as pusher:
        _say()
        async for question in _questions():
            began = time.perf_counter()
            for _ in range(question["count"]):
                pusher.start_push()
                await pusher.session.outbox.in_flight(1)
            await pusher.session.outbox.in_flight(0)
            _say(began=began, ended=time.perf_counter())


async def _coordinator(length: int, passes: int, run_folder: str) -> None:
    idle_bytes = process.rss_bytes()
    job = Job(
        parameters={"w": np.full(length, 0.5, np.float32)},
        optimizer=SGD(lr=1e-6),
        data=Work(passes, unit=1, passes=passes),
    )
    job.evaluate(lambda parameters: float(parameters["w"].mean()))
    report = await serve_coordinator(
        job,
        shards=1,
        bind=Bind(),
        access=Access(),
        run_folder=run_folder,
        announce=lambda url: _say(url=url, idle_bytes=idle_bytes),
        random=random.Random(0),
        loaded=job.forget_parameters,
    )
    _say(
        rss_peak_bytes=process.rss_peak_bytes(),
        evaluations=len(report["evaluations"]),
        state=report["state"],
    )


async def _trainer(coordinator: str) -> None:
    idle_bytes = process.rss_bytes()
    async with join(coordinator) as replica:
        gradients = {name: np.full_like(p, 1e-3) for name, p in replica.parameters.items()}
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(gradients)
        _say(
            rss_peak_bytes=process.rss_peak_bytes(),
            idle_bytes=idle_bytes,
            gradient_bytes=sum(g.nbytes for g in gradients.values()),
        )


async def _sockets(size_max: int) -> None:
    _say(port=plain.serve(size_max))
    async for _ in _questions():
        _say()


async def _echo(request_size: int) -> None:
    _say(port=await echo.serve(request_size))
    async for _ in _questions():
        _say()


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "shard": _shard,
    "pusher": _pusher,
    "coordinator": _coordinator,
    "trainer": _trainer,
    "sockets": _sockets,
    "echo": _echo,
}

if __name__ == "__main__":
    main()
