"""A job that failed has failed for everybody: no loop over its work ends as if it were done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.coordinator.service import CoordinatorService, serve_coordinator
from pydownpour.errors import JobFailed
from pydownpour.net.access import Access, Bind
from pydownpour.shard.service import serve_shard

WHY = "shard 0 died"


class Failing:
    """A job that fails when its test says so."""

    def __init__(self) -> None:
        self.service: CoordinatorService
        self.url = ""

    def fail(self) -> None:
        self.service.job.fail(WHY, asyncio.get_running_loop().time())


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Failing]:
    """Heartbeats come too rarely to say it first: what the loop asks for must say it."""
    failing = Failing()
    declared = dp.Job(
        parameters={"w": np.zeros(4, np.float32)}, optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(), data=dp.Work(1000, unit=1),
    )  # fmt: skip
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    coordinator = asyncio.create_task(
        serve_coordinator(
            declared, shards=1, bind=Bind(), access=Access(), run_folder=str(tmp_path / "run"),
            announce=heard.set_result, random=random.Random(0),
            watch=lambda service: setattr(failing, "service", service),
            limits=limits.Limits(heartbeat_s=60.0, notice_s=0.2),
        )
    )  # fmt: skip
    failing.url = await heard
    shard = asyncio.create_task(
        serve_shard(
            coordinator=failing.url, bind=Bind(), access=Access(), announce=lambda url: None
        )
    )
    yield failing
    assert (await coordinator)["state"] == "failed"
    shard.cancel()
    await asyncio.gather(shard, return_exceptions=True)


async def test_a_loop_over_a_failed_job_s_work_raises(job: Failing) -> None:
    units: list[int] = []

    async def loop() -> None:
        async with dp.join(job.url) as replica:
            async for unit in replica.work():
                units.append(unit.unit)
                job.fail()

    with pytest.raises(JobFailed, match=WHY):
        await loop()
    assert units


async def test_a_replica_that_leaves_a_failed_job_is_told(job: Failing) -> None:
    with pytest.raises(JobFailed, match=WHY):
        async with dp.join(job.url):
            job.fail()
