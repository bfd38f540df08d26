"""Policies that change while replicas train, over real sockets: nothing is lost, nobody hangs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.policy import Policy
from pydownpour.policy.phases import Declared
from pydownpour.wire.messages import SetPolicy
from tests.e2e.stage import Stage

LEN = 300


def counting(policy: Declared, samples: int, unit: int = 5, **more: Any) -> dp.Job:
    """Each sample adds one to its own parameter, wherever and whenever it is trained."""
    job = dp.Job(
        parameters={"w": np.zeros(LEN, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=policy,
        data=dp.Work(samples, unit=unit, **more),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for work in replica.work():
            for batch in work.batches(1):
                gradient = np.zeros(LEN, np.float32)
                gradient[batch] = -1.0
                await replica.step({"w": gradient})

    return job


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def done(stage: Stage, samples: int) -> bool:
    return stage.service.job.samples_done >= samples


def switch(stage: Stage, policy: Policy) -> None:
    stage.service.set_policy(SetPolicy(settings=policy.to_wire(), by="the test"))


async def test_each_sample_counts_once_through_every_change(tmp_path: Path) -> None:
    """Accrual, rounds, copies that keep their own progress, and one after the other."""
    job = counting(dp.Downpour(push_every=7, local_rate=0.0), LEN, passes=4)
    turns: list[Policy] = [
        dp.HardSync(combine="sum"),
        dp.Downpour(push_every=3, land="keep", in_flight=4, local_rate=0.0),
        dp.HardSync(combine="sum", ordered=True),
        dp.Downpour(local_rate=0.0),
    ]

    async def turn(stage: Stage) -> None:
        for number, policy in enumerate(turns, start=1):
            await until(functools.partial(done, stage, 200 * number))
            switch(stage, policy)

    async with Stage(job, tmp_path, shards=2) as stage, asyncio.TaskGroup() as group:
        group.create_task(turn(stage))
        for _ in range(3):
            group.create_task(stage.replica())
    np.testing.assert_array_equal(stage.parameters()["w"], 4.0)
    assert [one["version"] for one in stage.report["policies"]] == [1, 2, 3, 4, 5]
    assert stage.report["policy"] == dp.Downpour(local_rate=0.0).to_wire()
    pushes = stage.report["pushes"]
    assert pushes["sent"] == pushes["applied"]


async def test_phases_come_by_themselves(tmp_path: Path) -> None:
    phases = dp.Phases(
        (dp.Downpour(push_every=4, local_rate=0.0, warm_start=100), 100),
        (dp.HardSync(combine="sum"), 400),
        dp.Downpour(local_rate=0.0),
    )
    job = counting(phases, LEN, passes=2)
    async with Stage(job, tmp_path, shards=2) as stage, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stage.replica())
    np.testing.assert_array_equal(stage.parameters()["w"], 2.0)
    told = [(one["version"], one["samples"], one["by"]) for one in stage.report["policies"]]
    assert told == [(1, 0, "the job"), (2, 100, "phase 2 of 3"), (3, 400, "phase 3 of 3")]


class Held:
    """A job of two replicas; the second takes no step before it is let go."""

    def __init__(self, policy: Policy, steps: int = 3) -> None:
        self.go = asyncio.Event()
        self.steps: dict[int, int] = {1: 0, 2: 0}
        self.replicas: dict[int, dp.Replica] = {}
        self.job = dp.Job(
            parameters={"w": np.zeros(LEN, np.float32)}, optimizer=dp.SGD(lr=1.0), policy=policy
        )
        ones = np.full(LEN, -1.0, np.float32)

        @self.job.replica
        async def train(replica: dp.Replica) -> None:
            self.replicas[replica.id] = replica
            if replica.id == 2:
                await self.go.wait()
            for _ in range(steps):
                await replica.step({"w": ones})
                self.steps[replica.id] += 1


async def together(held: Held, folder: Path, act: Callable[[Stage], Any]) -> Stage:
    async with Stage(held.job, folder, shards=2) as stage, asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(stage.replica())
        await until(lambda: len(held.replicas) == 2)
        await act(stage)
        held.go.set()
    return stage


async def test_who_waits_within_a_round_goes_on_when_there_are_none_any_more(
    tmp_path: Path,
) -> None:
    held = Held(dp.HardSync(combine="sum", replicas=2))

    async def act(stage: Stage) -> None:
        await until(lambda: held.replicas[1].statistics().pushes_acked == 1)
        assert held.steps[1] == 0, "it waits for the round"
        switch(stage, dp.Downpour(local_rate=0.0))
        await until(lambda: held.steps[1] == 3)

    stage = await together(held, tmp_path, act)
    np.testing.assert_array_equal(stage.parameters()["w"], 6.0)
    assert [shard["pushes"] for shard in stage.report["shards"]] == [6, 6]


async def test_who_runs_ahead_is_taken_into_rounds(tmp_path: Path) -> None:
    held = Held(dp.Downpour(local_rate=0.0), steps=6)

    async def act(stage: Stage) -> None:
        await until(lambda: held.steps[1] >= 2)
        switch(stage, dp.HardSync(combine="sum"))

    stage = await together(held, tmp_path, act)
    np.testing.assert_array_equal(stage.parameters()["w"], 12.0)


async def test_a_replica_that_joins_later_gets_the_current_policy(tmp_path: Path) -> None:
    job = counting(dp.Downpour(local_rate=0.0), LEN)
    async with Stage(job, tmp_path, shards=1) as stage:
        switch(stage, dp.HardSync(combine="sum"))
        await stage.replica()
        stats = (await stage.status()).replicas[0].stats
    assert (stats.policy, stats.switches) == (2, 0)
    np.testing.assert_array_equal(stage.parameters()["w"], 1.0)


async def test_a_moved_shard_goes_on_under_the_newest_policy(tmp_path: Path) -> None:
    held = Held(dp.HardSync(combine="sum", replicas=2), steps=4)

    async def act(stage: Stage) -> None:
        await until(lambda: held.replicas[1].statistics().pushes_acked == 1)
        await stage.move(0)
        switch(stage, dp.Downpour(local_rate=0.0))
        await until(lambda: held.steps[1] == 4)
        switch(stage, dp.HardSync(combine="sum"))
        await stage.move(1)

    stage = await together(held, tmp_path, act)
    np.testing.assert_array_equal(stage.parameters()["w"], 8.0)
    events = (tmp_path / "events.jsonl").read_text()
    assert events.count('"policy obeyed"') >= 2


async def test_a_replica_that_does_not_know_a_later_phase_s_class_is_refused(
    tmp_path: Path,
) -> None:
    from tests.fakes.policies import EveryFew

    phases = dp.Phases((dp.Downpour(local_rate=0.0), 100), EveryFew(staleness_power=0.0))
    job = counting(phases, LEN)
    async with Stage(job, tmp_path, shards=1) as stage:
        with pytest.raises(dp.ConfigError, match="has a policy 'everyfew' of its own"):
            async with dp.join(stage.url):
                raise AssertionError("it is let in")
        async with dp.join(stage.url, policy=EveryFew) as replica:
            async for unit in replica.work():
                gradient = np.zeros(LEN, np.float32)
                gradient[unit.indices] = -1.0
                await replica.step({"w": gradient})
    np.testing.assert_array_equal(stage.parameters()["w"], 1.0)
