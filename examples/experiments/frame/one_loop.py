"""A whole job on one event loop, its replicas of equal speed in virtual time.

Coordinator, shards and replicas are the product's own and talk through real sockets; only they
share a process. That alone would not give the regime of a cluster: on two cores the speed of 64
replicas is decided by the scheduler, and staleness would measure the machine. So each replica takes
its gradient through a :class:`Race`: computing takes virtual time, about 1 with a seeded jitter,
and whoever is ready first steps next. What a step does is not touched: push, apply, acknowledge and
fetch cross the sockets while the others hold gradients of older parameters. With R replicas a
gradient is thus about R - 1 updates old when it is applied, which the shards measure themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, final

import pydownpour as dp
from pydownpour.coordinator.service import serve_coordinator
from pydownpour.net.access import Access, Bind
from pydownpour.replica.run import run_replica
from pydownpour.shard.service import serve_shard

JITTER: Final = 0.2
"""Standard deviation of the time a gradient takes; its mean is 1."""
FASTEST: Final = 0.2
"""No gradient takes less than this."""


@final
class Runner:
    """One replica in a race, and when it will have its next gradient."""

    def __init__(self, number: int, ready: float) -> None:
        self.number, self.ready = number, ready


@final
class Race:
    """Virtual time: of all replicas that have a gradient, the one that had it first steps next.

    Args:
        replicas: How many take part. Nobody steps before all are there, or a fast joiner would
            train alone, unless ``alone`` allows it.
        rng: Of the times.
        alone: Samples that may be stepped before all are there (a warm start).
    """

    def __init__(self, replicas: int, rng: random.Random, *, alone: int = 0) -> None:
        self._replicas, self._rng, self._alone = replicas, rng, alone
        self._now = 0.0
        self._samples = 0
        self._entered = 0
        self._stepping = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def enter(self) -> Runner:
        """Take part, with a first gradient at a moment of its own."""
        self._entered += 1
        return Runner(self._entered, self._now + self._rng.uniform(0.0, 1.0))

    @contextlib.asynccontextmanager
    async def turn(self, runner: Runner, samples: int) -> AsyncIterator[None]:
        """Wait until the gradient at hand would be ready; hold the race while it is stepped."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (runner.ready, runner.number, mine))
        loop.call_soon(self._pass_on)
        await mine
        try:
            yield
        finally:
            self._samples += samples
            runner.ready += max(FASTEST, self._rng.gauss(1.0, JITTER))
            self._stepping = False
            # Soon, not now: whoever just stepped first computes its next gradient and queues.
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        if self._stepping or not self._waiting:
            return
        if self._entered < self._replicas and self._samples >= self._alone:
            return
        ready, _, turn = heapq.heappop(self._waiting)
        if not turn.done():  # done already: cancelled, and the job with it
            self._stepping = True
            self._now = max(self._now, ready)
            turn.set_result(None)


async def run_job(job: dp.Job, *, replicas: int, shards: int, seed: int) -> dict[str, Any]:
    """Run a job to its end on the running loop; returns the coordinator's report.

    Raises:
        ExceptionGroup: what a role raised.
    """
    loop = asyncio.get_running_loop()
    access, bind, rng = Access(), Bind(), random.Random(seed)
    address: asyncio.Future[str] = loop.create_future()
    async with asyncio.TaskGroup() as group:
        coordinator = group.create_task(
            serve_coordinator(
                job,
                shards=shards,
                bind=bind,
                access=access,
                run_folder=None,
                announce=address.set_result,
                random=rng,
                expected_replicas=replicas,
            )
        )
        url = await address
        for index in range(shards):
            group.create_task(
                serve_shard(
                    coordinator=url,
                    bind=bind,
                    access=access,
                    announce=lambda _: None,
                    index=index,
                    rng=random.Random(rng.random()),
                )
            )
        for _ in range(replicas):
            group.create_task(
                run_replica(
                    job,
                    coordinator=url,
                    access=access,
                    rng=random.Random(rng.random()),
                    own_thread=False,
                )
            )
    return coordinator.result()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one, as the product's own processes use."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
