"""n-softsync and staleness-aware updates over real sockets, and what they are the same as."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from tests.e2e.stage import Stage
from tests.e2e.test_hard_sync import gradient

STEPS, LEN, MEMBERS, LR = 6, 300, 3, 0.0625
FIRST = np.linspace(-8, 8, LEN).astype(np.float32)
DOWNPOUR = dp.Downpour(overlap=False, local_rate=0.0)


class Turns:
    """Replicas compute at once and push one after the other: each is as stale as there are others.

    ``stale=False``: each computes when it is its turn, and nobody is stale.
    """

    def __init__(self, policy: dp.Policy, *, members: int = MEMBERS, stale: bool = True) -> None:
        self.members, self.stale, self.turn = members, stale, 0
        self.moved = asyncio.Condition()
        self.barrier = asyncio.Barrier(members)
        self.job = dp.Job(parameters={"w": FIRST}, optimizer=dp.SGD(lr=LR), policy=policy)
        self.job.replica(self.train)

    async def train(self, replica: dp.Replica) -> None:
        await self.barrier.wait()
        made = replica.parameters["w"].copy()
        for step in range(STEPS):
            async with self.moved:
                await self.moved.wait_for(lambda: self.turn % self.members + 1 == replica.id)
                if not self.stale:
                    await replica.fetch()
                    made = replica.parameters["w"].copy()
                await replica.step({"w": gradient(made, replica.id, step)})
                made = replica.parameters["w"].copy()
                self.turn += 1
                self.moved.notify_all()
        await self.barrier.wait()

    async def run(self, folder: Path) -> NDArray[np.float32]:
        async with Stage(self.job, folder) as stage, asyncio.TaskGroup() as group:
            for _ in range(self.members):
                group.create_task(stage.replica())
        self.report = stage.report
        values: NDArray[np.float32] = stage.parameters()["w"]
        return values


@pytest.mark.parametrize("replicas", [None, MEMBERS])
async def test_with_a_round_for_each_replica_it_is_downpour_to_the_bit(
    tmp_path: Path, replicas: int | None
) -> None:
    soft = Turns(dp.Softsync(n=MEMBERS, replicas=replicas))
    plain = Turns(DOWNPOUR)
    one, other = await soft.run(tmp_path / "soft"), await plain.run(tmp_path / "plain")
    np.testing.assert_array_equal(one, other)
    assert soft.report["staleness"] == plain.report["staleness"]
    assert soft.report["staleness"]["max"] == MEMBERS - 1


async def test_where_nothing_is_staler_than_one_it_is_asynchronous_sgd_to_the_bit(
    tmp_path: Path,
) -> None:
    aware = Turns(dp.StalenessAware(), members=2)
    plain = Turns(DOWNPOUR, members=2)
    one, other = await aware.run(tmp_path / "aware"), await plain.run(tmp_path / "plain")
    np.testing.assert_array_equal(one, other)
    assert aware.report["staleness"]["max"] == 1


@pytest.mark.parametrize("power", [1.0, 2.0])
async def test_each_gradient_is_divided_by_its_own_staleness(tmp_path: Path, power: float) -> None:
    values = await Turns(dp.StalenessAware(power=power)).run(tmp_path)
    expected, made = FIRST.copy(), [FIRST.copy()] * MEMBERS
    for step in range(STEPS):
        for who in range(MEMBERS):
            tau = who if step == 0 else MEMBERS - 1
            factor = np.float32(1.0 / max(1, tau) ** power)
            expected = expected - np.float32(LR) * (factor * gradient(made[who], who + 1, step))
            made[who] = expected.copy()
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("divided", [False, True])
async def test_a_round_is_the_mean_of_its_gradients_at_the_rate_or_an_nth_of_it(
    tmp_path: Path, divided: bool
) -> None:
    """Two of four replicas are one update."""
    policy = dp.Softsync(n=2, replicas=4, divide_rate=divided)
    turns = Turns(policy, members=4)
    values = await turns.run(tmp_path)
    expected, made = FIRST.copy(), [FIRST.copy()] * 4
    factor = np.float32(0.5 if divided else 1.0)
    for step in range(STEPS):
        for pair in ((0, 1), (2, 3)):
            total = np.zeros(LEN, np.float32)
            for who in pair:
                total = total + factor * gradient(made[who], who + 1, step)
                made[who] = expected.copy()  # the first of a pair fetches what was before it
            expected = expected - np.float32(LR) * (total * np.float32(0.5))
            made[pair[1]] = expected.copy()
    np.testing.assert_array_equal(values, expected)
    assert turns.report["pushes"]["applied"] == 4 * STEPS


async def test_nobody_waits_for_others(tmp_path: Path) -> None:
    """A replica that does nothing keeps nobody: rounds of two go on without the third."""
    idle: Any = asyncio.Event()
    job = dp.Job(
        parameters={"w": FIRST}, optimizer=dp.SGD(lr=LR), policy=dp.Softsync(n=1, replicas=2)
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        if replica.id == 3:
            await idle.wait()
            return
        for step in range(STEPS):
            await replica.step({"w": gradient(replica.parameters["w"], replica.id, step)})
        if replica.id == 1:
            idle.set()

    async with Stage(job, tmp_path) as stage, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stage.replica())
    assert stage.report["pushes"]["applied"] == 2 * STEPS
