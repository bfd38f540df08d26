"""Gradients that cannot travel or cannot be applied are as loud as NaN, and counted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import _core
from pydownpour.errors import JobFailed
from pydownpour.layout import DTYPE_CODES, DTYPE_SIZES
from pydownpour.policy import (
    Apply,
    ClusterView,
    Decision,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    ShardRule,
)
from tests.e2e.stage import FORSAKEN, Stage, ones
from tests.reference import numbers


def job_of(optimizer: Any = None, **settings: Any) -> dp.Job:
    return dp.Job(
        parameters={"w": np.zeros(1000, np.float32)},
        optimizer=optimizer or dp.SGD(lr=1.0),
        policy=dp.Downpour(local_rate=0.0),
        **settings,
    )


def always(job: dp.Job, value: float) -> None:
    """The job's function steps with one value for ever."""

    @job.replica
    async def train(replica: dp.Replica) -> None:
        while True:
            await replica.step(ones(job, value))


async def test_what_is_checked_is_what_is_sent(tmp_path: Path) -> None:
    job = job_of(wire_dtype="float16")
    always(job, 1e5)
    words = (
        r"1000 values of the gradient are too large for the float16 they travel as, the first in "
        r"'w' at flat index 0: 100000, the largest possible is 65504; nothing was pushed. Choose "
        r"wire_dtype='float32' or 'bfloat16' for the job, or a smaller learning rate. That was "
        r"push 10 in a row that was not applied \(nonfinite_steps_max\)"
    )
    async with Stage(job, tmp_path / "run", limits=FORSAKEN) as stage:
        with pytest.raises(dp.GradientsRefused, match=words):
            await stage.replica()
    gradients = stage.report["gradients"]
    assert (gradients["dropped"], gradients["values_overflowed"]) == (10, 10_000)
    assert stage.report["pushes"]["sent"] == 0


async def test_finite_gradients_whose_sum_is_not_are_not_sent(tmp_path: Path) -> None:
    job = job_of()
    job.policy = dp.Downpour(push_every=3, local_rate=0.0)
    always(job, 3e38)
    async with Stage(job, tmp_path / "run", limits=FORSAKEN) as stage:
        with pytest.raises(dp.GradientsRefused, match="accrued over 3 steps, are too large for"):
            await stage.replica()
    assert stage.report["pushes"]["refused"] == 0


async def test_an_optimizer_that_overflows_is_as_loud_as_nan(tmp_path: Path) -> None:
    job = job_of(dp.Adagrad(lr=0.1))
    always(job, 1e30)
    async with Stage(job, tmp_path / "run", limits=FORSAKEN) as stage:
        with pytest.raises(dp.GradientsRefused, match=r"the optimizer's result holds \d+ NaN or"):
            await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 0.0)
    assert stage.report["pushes"]["applied"] == 0
    assert stage.report["pushes"]["refused"] >= 10


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float64"])
async def test_the_same_gradient_travels_as_a_dtype_with_room(tmp_path: Path, wire: str) -> None:
    job = job_of(wire_dtype=wire, data=dp.Work(4, unit=1))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            await replica.step(ones(job, -131072.0))

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 4 * 131072.0)


async def test_values_that_become_zero_on_the_wire_are_counted(tmp_path: Path) -> None:
    job = job_of(wire_dtype="float16", data=dp.Work(4, unit=1))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            gradient = ones(job, -1.0)
            gradient["w"][:300] = 1e-8
            gradient["w"][300:400] = 0.0
            await replica.step(gradient)

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    assert stage.report["gradients"]["values_underflowed"] == 4 * 300
    assert stage.report["gradients"]["values_overflowed"] == 0


@pytest.mark.parametrize("data", [dp.Work(4, unit=2), None])
async def test_losses_that_are_not_finite_are_counted(tmp_path: Path, data: Any) -> None:
    job = job_of(data=data)
    losses = [math.nan, 2.0, math.inf, 4.0]

    @job.replica
    async def train(replica: dp.Replica) -> None:
        if data is None:
            for loss in losses:
                await replica.step(ones(job), loss=loss)
            return
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job), loss=losses[replica.steps])

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    assert stage.report["losses_not_finite"] == 2
    assert stage.report["replicas"][0]["loss"] == 3.0


async def test_a_unit_whose_gradients_were_refused_is_not_complete(tmp_path: Path) -> None:
    """The optimizer's result overflows at one unit's gradients: it is given back, three times."""
    job = job_of(dp.Adagrad(lr=0.1), data=dp.Work(6, unit=2, shuffle=False))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                await replica.step(ones(job, 1e30 if batch[0] == 2 else 1.0))

    async with Stage(job, tmp_path / "run") as stage:
        with contextlib.suppress(JobFailed):
            await stage.replica()
    report = stage.report
    assert (report["state"], report["work"]["units_aside"]) == ("failed", 1)
    assert report["units"] <= 2
    assert "unit 1 of pass 1" in report["reason"]
    assert "the optimizer's result holds" in report["reason"]
    assert report["pushes"]["refused"] == 3


async def test_a_push_above_max_norm_is_as_loud_as_nan_and_never_sent(tmp_path: Path) -> None:
    job = job_of(max_norm=100.0)
    job.policy = dp.Downpour(push_every=2, local_rate=0.0)
    always(job, 2.0)  # a norm of 63 a step, and 126 for two
    words = (
        r"replica 1, step \d+: the gradient, accrued over 2 steps, has an L2 norm of 126.491, "
        r"above the job's max_norm of 100; dropped, nothing was pushed. Scale or clip it before "
        r"step\(\), or choose a larger max_norm. That was push 10 in a row that was not applied"
    )
    async with Stage(job, tmp_path / "run", limits=FORSAKEN) as stage:
        with pytest.raises(dp.GradientsRefused, match=words):
            await stage.replica()
    gradients = stage.report["gradients"]
    assert gradients["dropped"] >= 20
    assert gradients["max_norm"] == 100.0
    # The first push carries one step alone.
    assert (stage.report["pushes"]["applied"], stage.report["pushes"]["refused"]) == (1, 0)


async def test_a_unit_whose_push_is_too_large_is_given_back(tmp_path: Path) -> None:
    job = job_of(data=dp.Work(6, unit=2, shuffle=False), max_norm=1e3, on_error="skip")

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                await replica.step(ones(job, 1e30 if batch[0] == 2 else -1.0))

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    report = stage.report
    assert (report["state"], report["units"], report["work"]["units_aside"]) == ("done", 2, 1)
    assert report["gradients"]["dropped"] == 3
    assert "above the job's max_norm of 1000" in str(report["units_aside"])


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16", "float64"])
async def test_a_push_of_just_the_norm_allowed_is_applied(tmp_path: Path, wire: str) -> None:
    """Shards, fragments and the float32 of the announcement round no honest push over the edge."""
    gradient = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    sent = bytearray(len(gradient) * DTYPE_SIZES[wire])
    _core.cast(gradient, DTYPE_CODES["float32"], sent, DTYPE_CODES[wire])
    norm = math.sqrt(numbers.check(sent, DTYPE_CODES[wire])[1])
    job = job_of(data=dp.Work(4, unit=1), wire_dtype=wire, max_norm=norm)

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            await replica.step({"w": gradient})

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    assert stage.report["pushes"]["applied"] == 4
    assert stage.report["gradients"]["dropped"] == 0


async def test_a_job_in_which_nothing_was_applied_is_no_success(tmp_path: Path) -> None:
    job = job_of(data=dp.Work(6, unit=2))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            pass

    async with Stage(job, tmp_path / "run") as stage:
        with contextlib.suppress(JobFailed):
            await stage.replica()
    assert stage.report["state"] == "failed"
    assert stage.report["reason"].startswith(
        "all 1 passes are complete, but no gradient was applied: 0 steps were taken"
    )


@dataclasses.dataclass(frozen=True)
class Picky(Policy):
    """Takes no gradient of the clocks 2 to 5."""

    def replica(self) -> ReplicaRule:
        return dp.Downpour(local_rate=0.0).replica()

    def shard(self) -> ShardRule:
        return _Picky()


class _Picky(ShardRule):
    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Refuse("too old") if 2 <= push.clock <= 5 else Apply()


async def test_what_a_policy_refuses_is_computed_again_and_nobody_s_fault(tmp_path: Path) -> None:
    job = job_of(data=dp.Work(6, unit=2))
    job.policy = Picky()

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, -1.0))

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica()
    report = stage.report
    assert (report["state"], report["units"]) == ("done", 3)
    assert report["pushes"]["refused"] == 4
    assert report["work"]["units_aside"] == 0
    assert stage.parameters()["w"].min() >= 6.0
