"""Stale synchronous parallel over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from tests.e2e.stage import Stage

STEPS, LEN, MEMBERS = 8, 300, 3
FIRST = np.floor(np.linspace(-8, 8, LEN)).astype(np.float32)


def whole(w: NDArray[np.float32], who: int, step: int) -> NDArray[np.float32]:
    """Small whole numbers, that depend on the parameters as well."""
    return np.floor(w / 4) + np.float32(who * (step + 1) % 5 - 2)


class Run:
    """Some replicas under a policy, and what each read before each of its steps."""

    def __init__(self, policy: dp.Policy, folder: Path, *, together: bool = True) -> None:
        self.reads: dict[tuple[int, int], NDArray[np.float32]] = {}
        self.folder, self.together = folder, together
        self.barrier = asyncio.Barrier(MEMBERS)
        self.job = dp.Job(parameters={"w": FIRST}, optimizer=dp.SGD(lr=0.25), policy=policy)
        self.job.replica(self.train)

    async def train(self, replica: dp.Replica) -> None:
        await self.barrier.wait()  # all have joined
        for step in range(STEPS):
            w = replica.parameters["w"]
            self.reads[replica.id, step] = w.copy()
            await replica.step({"w": whole(w, replica.id, step)})
            if self.together:
                await self.barrier.wait()  # nobody pushes before all have read
        await self.barrier.wait()  # nobody is waited for because it has ended

    async def run(self) -> NDArray[np.float32]:
        async with Stage(self.job, self.folder) as stage, asyncio.TaskGroup() as group:
            for _ in range(MEMBERS):
                group.create_task(stage.replica())
        self.report = stage.report
        values: NDArray[np.float32] = stage.parameters()["w"]
        return values


@pytest.mark.parametrize("reads", ["lazy", "eager"])
async def test_without_slack_it_is_bulk_synchronous_to_the_bit(tmp_path: Path, reads: Any) -> None:
    """If nobody pushes before all have read; sums of whole numbers have no order."""
    ssp = Run(dp.SSP(slack=0, reads=reads), tmp_path / "ssp")
    bsp = Run(dp.HardSync(combine="sum", replicas=MEMBERS), tmp_path / "bsp")
    one, other = await ssp.run(), await bsp.run()
    np.testing.assert_array_equal(one, other)
    for who_and_step, read in bsp.reads.items():
        np.testing.assert_array_equal(ssp.reads[who_and_step], read)
    w = FIRST.copy()
    for step in range(STEPS):
        w = w - np.float32(0.25) * sum(whole(w, who, step) for who in range(1, MEMBERS + 1))
    np.testing.assert_array_equal(one, w)


@pytest.mark.parametrize("reads", ["lazy", "eager"])
@pytest.mark.parametrize("slack", [0, 2, None])
async def test_everybody_comes_to_the_end_and_nobody_gets_further_ahead(
    tmp_path: Path, slack: int | None, reads: Any
) -> None:
    run = Run(dp.SSP(slack=slack, reads=reads), tmp_path, together=False)
    await run.run()
    assert run.report["pushes"]["applied"] == MEMBERS * STEPS
    if slack is not None:
        spreads = [shard["clock_spread_max"] for shard in run.report["shards"]]
        assert max(spreads) <= slack + 1


@pytest.mark.parametrize("reads", ["lazy", "eager"])
async def test_own_updates_are_in_the_copy_when_the_step_ends(tmp_path: Path, reads: Any) -> None:
    """With plain SGD, exactly; one replica alone reads what it has written."""
    job = dp.Job(
        parameters={"w": FIRST}, optimizer=dp.SGD(lr=0.25), policy=dp.SSP(slack=None, reads=reads)
    )
    wrong = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        expected = FIRST.copy()
        for step in range(3 * STEPS):
            gradient = whole(replica.parameters["w"], 1, step)
            await replica.step({"w": gradient})
            expected -= np.float32(0.25) * gradient
            if not np.array_equal(replica.parameters["w"], expected):
                wrong.append(step)
            await asyncio.sleep(0)

    async with Stage(job, tmp_path) as stage:
        await stage.replica()
    assert wrong == []


async def test_another_optimizer_s_own_updates_are_seen_from_the_next_fetch_on(
    tmp_path: Path,
) -> None:
    job = dp.Job(parameters={"w": FIRST}, optimizer=dp.Adagrad(lr=0.5), policy=dp.SSP(slack=2))
    seen = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        before = replica.parameters["w"].copy()
        for _ in range(6):
            await replica.step({"w": np.ones(LEN, np.float32)})
            seen.append(not np.array_equal(replica.parameters["w"], before))
            before = replica.parameters["w"].copy()

    async with Stage(job, tmp_path) as stage:
        await stage.replica()
    assert seen == [False, False, True, False, False, True]
