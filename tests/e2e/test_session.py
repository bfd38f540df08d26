"""A replica's session on real sockets: settlement, broken connections, the other transport."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.errors import JobFailed, LayoutMismatch, NonFiniteGradient
from pydownpour.testing import FaultProxy, Faults
from tests.e2e.stage import FORSAKEN, Stage, ones


def counting_job(length: int = 1000, **settings: Any) -> dp.Job:
    """SGD with lr = 1 and gradients of -1: every parameter counts the pushes applied to it."""
    return dp.Job(
        parameters={"w": np.zeros(length, np.float32)}, optimizer=dp.SGD(lr=1.0), **settings
    )


@pytest.mark.parametrize("own_thread", [False, True], ids=["one loop", "own thread"])
@pytest.mark.parametrize("push_every", [1, 3])
async def test_every_push_counts_once_and_every_unit_is_recorded(
    own_thread: bool, push_every: int, tmp_path: Path
) -> None:
    job = counting_job(
        data=dp.Work(96, unit=16, passes=2), policy=dp.Downpour(push_every=push_every)
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(4):
                await replica.step(ones(job, -1.0), loss=1.0)

    async with Stage(job, tmp_path / "run") as stage:
        await asyncio.gather(*(stage.replica(own_thread=own_thread) for _ in range(3)))
    report = stage.report
    np.testing.assert_array_equal(stage.parameters()["w"], 48.0)  # 192 samples in batches of 4
    assert report["samples"] == 192
    assert report["units"] == 12
    assert report["pushes"]["refused"] == report["pushes"]["duplicate"] == 0
    assert report["pushes"]["sent"] == report["pushes"]["acked"] == report["pushes"]["applied"]
    assert sum(report["staleness"]["histogram"].values()) == report["pushes"]["acked"]
    if push_every == 1:
        assert report["pushes"]["sent"] == 48


async def test_a_plain_function_runs_in_a_thread(tmp_path: Path) -> None:
    job = counting_job(data=dp.Work(40, unit=8))

    @job.replica
    def train(replica: dp.BlockingReplica) -> None:
        for unit in replica.work():
            for _ in unit.batches(4):
                replica.step(ones(job, -1.0), loss=0.5)
        replica.fetch()
        np.testing.assert_array_equal(replica.parameters["w"], 10.0)

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica(own_thread=True)
    np.testing.assert_array_equal(stage.parameters()["w"], 10.0)


async def test_broken_connections_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """A proxy cuts every connection a little further on; records are sent again, applied once."""
    proxies: list[FaultProxy] = []

    def cut_after(number: int) -> Faults:
        size = 1500 + 977 * number
        return Faults(reset_after=(size, size)) if number <= 12 else Faults()

    def before(target: str) -> FaultProxy:
        proxies.append(FaultProxy(target, to_target=cut_after))
        return proxies[-1]

    job = counting_job(length=3000, data=dp.Work(60, unit=10))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, -1.0))

    async with Stage(job, tmp_path / "run", before_shards=before) as stage:
        await stage.replica()
    assert sum(proxy.statistics().resets for proxy in proxies) >= 10
    np.testing.assert_array_equal(stage.parameters()["w"], 60.0)
    assert stage.report["pushes"]["acked"] == 60
    assert stage.report["replicas"][0]["reconnects"] >= 10


async def test_a_proxy_that_refuses_upgrade_only_makes_it_slower(tmp_path: Path) -> None:
    def without_upgrade(data: bytes) -> bytes:
        return data.replace(b"Upgrade: pydownpour/1\r\n", b"").replace(
            b"Connection: Upgrade\r\n", b""
        )

    def before(target: str) -> FaultProxy:
        return FaultProxy(target, rewrite=without_upgrade)

    job = counting_job(data=dp.Work(20, unit=5))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, -1.0))
        assert replica.statistics().fallback

    async with Stage(job, tmp_path / "run", before_shards=before) as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 20.0)
    assert stage.report["replicas"][0]["fallback"] is True


@pytest.mark.parametrize("dtype", ["float16", "float64"])
async def test_gradients_travel_in_the_declared_dtype(dtype: str, tmp_path: Path) -> None:
    job = counting_job(data=dp.Work(8, unit=4), wire_dtype=dtype)
    value = -1.0009765625 if dtype == "float64" else -0.5

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, value))

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], np.float32(-8 * value))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
async def test_a_gradient_with_nan_is_dropped_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_error: Any
) -> None:
    """A gradient for each sample; sample 4's is no number, whoever computes it."""
    job = counting_job(data=dp.Work(6, unit=3, shuffle=False), on_error=on_error)

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                grads = ones(job, -1.0)
                if batch[0] == 4:
                    grads["w"][17] = np.nan
                await replica.step(grads)

    async with Stage(job, tmp_path / "run") as stage:
        with contextlib.suppress(JobFailed):
            await stage.replica()
    report = stage.report
    np.testing.assert_array_equal(stage.parameters()["w"], 3 + 3 * 2)
    assert "the first in 'w' at flat index 17" in caplog.text
    assert report["replicas"][0]["gradients_dropped"] == report["gradients"]["dropped"] == 3
    assert (report["units"], report["work"]["units_aside"]) == (1, 1)
    if on_error == "skip":
        assert report["state"] == "done"
        assert report["units_aside"][0]["start"] == 3
    else:
        assert report["state"] == "failed"
        assert "unit 1 of pass 1 (places 3 to 5 of the pass's order) failed 3" in report["reason"]


async def test_nothing_but_nan_ends_the_replica_in_words(tmp_path: Path) -> None:
    job = counting_job()

    @job.replica
    async def train(replica: dp.Replica) -> None:
        while True:
            await replica.step(ones(job, np.inf))

    async with Stage(job, tmp_path / "run", limits=FORSAKEN) as stage:
        with pytest.raises(NonFiniteGradient, match="10 steps in a row"):
            await stage.replica()
    # A job without declared work is over when its last replica has left.
    np.testing.assert_array_equal(stage.parameters()["w"], 0.0)
    assert stage.report["state"] == "failed"
    assert "every replica has failed" in stage.report["reason"]


async def test_join_from_an_existing_loop_takes_the_job_s_layout(tmp_path: Path) -> None:
    job = counting_job()
    async with Stage(job, tmp_path / "run") as stage:
        async with dp.join(stage.url) as replica:
            with pytest.raises(LayoutMismatch, match="extra"):
                async with dp.join(stage.url, {"w": np.zeros(1000, np.float32), "extra": 1.0}):
                    pass
            with pytest.raises(LayoutMismatch, match="missing 'w'"):
                await replica.step({"v": np.zeros(1000)})
            for _ in range(5):
                await replica.step(ones(job, -1.0))
            await replica.fetch()
            assert replica.parameters["w"].shape == (1000,)
    np.testing.assert_array_equal(stage.parameters()["w"], 5.0)


async def test_arrays_of_any_strides_and_sizes_can_be_trained(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "fortran": np.asfortranarray(np.ones((4, 6))),
        "strided": np.ones((8, 9), np.float32)[::2, ::3],
        "scalar": np.float64(1.0),
        "empty": np.zeros((0, 3), np.float32),
        "half": np.ones(5, np.float16),
    }
    job = dp.Job(parameters=arrays, optimizer=dp.SGD(lr=1.0), data=dp.Work(3, unit=1))

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for _ in replica.work():
            for name, array in arrays.items():
                assert replica.parameters[name].shape == np.shape(array)
                assert replica.parameters[name].dtype == np.asarray(array).dtype
            await replica.step({name: np.ones_like(array) for name, array in arrays.items()})

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica()
    for name, array in stage.parameters().items():
        np.testing.assert_array_equal(array, np.full(np.shape(arrays[name]), -2.0))
