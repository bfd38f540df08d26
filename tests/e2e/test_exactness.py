"""One replica, push_every = fetch_every = 1, no overlap: Downpour is sequential training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from pydownpour.optimizers import Part
from tests.e2e.stage import Stage
from tests.reference import optimizers as twins

STEPS = 12
BATCH = 3


def gradient(w: NDArray[np.float32], step: int) -> NDArray[np.float32]:
    """Any function of the parameters will do: here one that is exact for powers of two."""
    return np.float32(0.5) * w + np.float32(2.0 ** -(step % 4))


async def train_through_shards(
    rule: Part, start: NDArray[np.float32], folder: Path, *, overlap: bool = False
) -> NDArray[np.float32]:
    job = dp.Job(
        parameters={"b": start[:7].copy(), "w": start[7:].reshape(-1, 3).copy()},
        optimizer=rule,
        policy=dp.Downpour(overlap=overlap),
        data=dp.Work(BATCH * STEPS, unit=BATCH * STEPS, shuffle=False),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(BATCH):
                values = replica.parameters
                grads = {k: gradient(v, int(batch[0]) // BATCH) for k, v in values.items()}
                await replica.step(grads, loss=0.0)

    async with Stage(job, folder) as stage:
        await stage.replica()
    assert stage.report["pushes"]["sent"] == STEPS
    assert stage.report["pushes"]["duplicate"] == 0
    if not overlap:
        assert stage.report["staleness"]["max"] == 0
    final = stage.parameters()
    return np.concatenate([final["b"].ravel(), final["w"].ravel()])


def sequentially(rule: Part, start: NDArray[np.float32]) -> NDArray[np.float32]:
    parts = rule.parts()
    w = start
    state = twins.initial(parts, len(start))
    for step in range(STEPS):
        at = twins.Context(step + 1, samples_before=BATCH * step, samples=BATCH)
        w, state = twins.update(parts, w, gradient(w, step), state, at)
    return w


@pytest.mark.parametrize(
    "rule",
    [
        dp.SGD(lr=0.25),
        dp.Momentum(lr=0.1),
        dp.Adagrad(lr=0.05),
        dp.Adam(lr=0.01),
        dp.chain(dp.Clip(0.5), dp.WeightDecay(0.01), dp.AdamW(lr=0.01)),
        dp.chain(dp.WarmUp(over=10, by="samples"), dp.Cosine(over=24, by="samples"), dp.SGD(0.25)),
    ],
    ids=lambda rule: rule.name,
)
async def test_one_replica_without_overlap_is_sequential_to_the_bit(
    rule: Any, tmp_path: Path
) -> None:
    start = np.random.default_rng(5).normal(size=7 + 300).astype(np.float32)
    trained = await train_through_shards(rule, start, tmp_path / "run")
    np.testing.assert_array_equal(trained, sequentially(rule, start))


async def test_powers_of_two_stay_exact(tmp_path: Path) -> None:
    """SGD on values that float32 holds exactly: also equal to exact rational arithmetic."""
    start = np.exp2(np.arange(7 + 300) % 5).astype(np.float32)
    trained = await train_through_shards(dp.SGD(lr=0.5), start, tmp_path / "run")
    exact: NDArray[np.float64] = start.astype(np.float64)
    for step in range(STEPS):
        exact = exact - 0.5 * (0.5 * exact + 2.0 ** -(step % 4))
    np.testing.assert_allclose(trained, exact, rtol=2e-7)
    np.testing.assert_array_equal(trained, sequentially(dp.SGD(lr=0.5), start))


async def test_the_paper_s_local_step_is_the_shard_s_for_plain_sgd(tmp_path: Path) -> None:
    """With overlap one replica runs ahead on its own copy; SGD's local step makes it the same."""
    start = np.exp2(np.arange(7 + 57) % 5).astype(np.float32)
    job = dp.Job(
        parameters={"w": start},
        optimizer=dp.SGD(lr=0.5),
        policy=dp.Downpour(push_every=1, fetch_every=1000),
        data=dp.Work(8, unit=8, shuffle=False),
    )
    seen = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                seen.append(replica.parameters["w"].copy())
                await replica.step({"w": gradient(replica.parameters["w"], int(batch[0]))})

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica()
    w = start
    for step, local in enumerate(seen):
        np.testing.assert_array_equal(local, w)
        w = w - np.float32(0.5) * gradient(w, step)
    np.testing.assert_array_equal(stage.parameters()["w"], w)


async def test_what_the_copy_gained_by_itself_is_kept_when_a_fetch_lands(tmp_path: Path) -> None:
    """land="keep": local += fetched - base. The twin keeps all three."""
    job = dp.Job(
        parameters={"w": np.zeros(50, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(
            push_every=3, fetch_every=4, local_rate=0.25, overlap=False, land="keep"
        ),
        data=dp.Work(STEPS, unit=STEPS, shuffle=False),
    )
    seen: list[NDArray[np.float32]] = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                value = np.float32(2.0 ** -(int(batch[0]) % 4))
                await replica.step({"w": np.full(50, value, np.float32)})
                seen.append(replica.parameters["w"].copy())

    async with Stage(job, tmp_path) as stage:
        await stage.replica()
    local = base = shards = accrued = np.zeros(50, np.float32)
    for step, copy in enumerate(seen):
        value = np.full(50, 2.0 ** -(step % 4), np.float32)
        local, accrued = local - np.float32(0.25) * value, accrued + value
        if step % 3 == 0:
            shards, accrued = shards - accrued, np.zeros(50, np.float32)
        if (step + 1) % 4 == 0:
            local, base = local + (shards - base), shards
        np.testing.assert_array_equal(copy, local)
