"""Synchronous rounds over real sockets are sequential SGD with the minibatches of all replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from pydownpour.optimizers import Part
from pydownpour.testing import FaultProxy
from tests.e2e.stage import Stage
from tests.reference import optimizers as twins

STEPS, LEN = 8, 300


def gradient(w: NDArray[np.float32], who: int, step: int) -> NDArray[np.float32]:
    """Of anything that depends on the parameters, the replica and the step, with odd bits."""
    angle = np.arange(LEN, dtype=np.float32) * np.float32(0.37 * who + 0.11 * step)
    return np.asarray(np.float32(0.3) * w + np.sin(angle), np.float32)


def whole(w: NDArray[np.float32], who: int, step: int) -> NDArray[np.float32]:
    """Small whole numbers, that depend on the parameters as well."""
    return np.floor(w / 4) + np.float32(who * (step + 1) % 5 - 2)


def job_of(policy: dp.HardSync, rule: Part, made: Any) -> dp.Job:
    job = dp.Job(
        parameters={"w": np.linspace(-8, 8, LEN).astype(np.float32)}, optimizer=rule, policy=policy
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        for step in range(STEPS):
            values = replica.parameters["w"]
            await replica.step({"w": made(values, replica.id, step)}, samples=replica.id)

    return job


async def together(job: dp.Job, folder: Path, members: int, **stage: Any) -> Stage:
    async with Stage(job, folder, **stage) as running:
        async with asyncio.TaskGroup() as group:
            for _ in range(members):
                group.create_task(running.replica())
    return running


def sequentially(policy: dp.HardSync, rule: Part, made: Any, members: int) -> NDArray[np.float32]:
    """One process, one update a step: the sum in the order of ids, then the mean."""
    parts = rule.parts()
    w = np.linspace(-8, 8, LEN).astype(np.float32)
    state = twins.initial(parts, LEN)
    for step in range(STEPS):
        weights = [np.float32(who if policy.by_samples else 1) for who in range(1, members + 1)]
        total = np.zeros(LEN, np.float32)
        for who, weight in enumerate(weights, start=1):
            total = total + weight * made(w, who, step)
        if policy.combine == "mean":
            total = total * np.float32(1.0 / float(sum(map(float, weights))))
        at = twins.Context(step + 1, round_count=members, samples=members * (members + 1) // 2)
        w, state = twins.update(parts, w, total, state, at)
    return w


@pytest.mark.parametrize(
    "policy",
    [
        dp.HardSync(ordered=True, replicas=3),
        dp.HardSync(ordered=True, replicas=3, by_samples=True),
        dp.HardSync(ordered=True, replicas=3, combine="sum"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "rule",
    [dp.SGD(lr=0.0625), dp.Adagrad(lr=0.1), dp.chain(dp.SqrtScaling(batch=2), dp.SGD(lr=0.0625))],
    ids=["sgd", "adagrad", "sqrt"],
)
async def test_in_order_it_is_large_batch_sgd_to_the_bit(
    tmp_path: Path, policy: dp.HardSync, rule: Part
) -> None:
    stage = await together(job_of(policy, rule, gradient), tmp_path, 3)
    expected = sequentially(policy, rule, gradient, 3)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)
    assert stage.report["staleness"]["max"] == 0
    assert stage.report["pushes"]["applied"] == 3 * STEPS


@pytest.mark.parametrize("combine", ["mean", "sum"])
async def test_whole_numbers_add_up_the_same_whoever_is_first(tmp_path: Path, combine: Any) -> None:
    policy = dp.HardSync(combine=combine, replicas=4)
    rule = dp.SGD(lr=0.25)
    stage = await together(job_of(policy, rule, whole), tmp_path, 4)
    expected = sequentially(policy, rule, whole, 4)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)
    assert stage.report["staleness"]["max"] == 0


def without_upgrade(data: bytes) -> bytes:
    """As a proxy that knows nothing of it."""
    return data.replace(b"Upgrade: pydownpour/1\r\n", b"").replace(b"Connection: Upgrade\r\n", b"")


@pytest.mark.parametrize("ordered", [False, True])
async def test_where_no_stream_passes_it_is_the_same(tmp_path: Path, ordered: bool) -> None:
    """POST and GET: an answer that waits is held by the shard, and what was turned down comes
    again."""
    policy = dp.HardSync(replicas=2, ordered=ordered)
    rule = dp.SGD(lr=0.25)
    stage = await together(
        job_of(policy, rule, whole),
        tmp_path,
        2,
        before_shards=lambda target: FaultProxy(target, rewrite=without_upgrade),
    )
    np.testing.assert_array_equal(stage.parameters()["w"], sequentially(policy, rule, whole, 2))
