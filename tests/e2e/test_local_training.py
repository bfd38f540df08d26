"""Replicas that train by themselves, over real sockets: equal to their twin, and to each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from pydownpour import _core
from pydownpour.optimizers import Part
from pydownpour.policy.averaging import Averaging
from pydownpour.testing import FaultProxy, Faults
from tests.e2e.stage import FORSAKEN, Stage
from tests.reference import averaging as slow

LEN, STEPS = 300, 11
"""Steps: a last block that is short, whatever the others are."""
SAMPLES = (1, 1, 2, 4)
"""Of each replica's step: together a power of two, by which division is exact."""
Made = Callable[[NDArray[np.float32], int, int], NDArray[np.float32]]


def odd(w: NDArray[np.float32], who: int, step: int) -> NDArray[np.float32]:
    """A gradient of odd bits, that depends on everything."""
    angle = np.arange(LEN, dtype=np.float32) * np.float32(0.37 * who + 0.11 * step)
    return np.asarray(np.float32(0.3) * w + np.sin(angle), np.float32)


def whole(w: NDArray[np.float32], who: int, step: int) -> NDArray[np.float32]:
    """Small whole numbers, that depend on the parameters as well: sums of them are exact."""
    return np.floor(w / 4) + np.float32(who * (step + 1) % 5 - 2)


def job_of(policy: dp.HardSync | Averaging, rule: Part | None, made: Made) -> dp.Job:
    job = dp.Job(
        parameters={"w": np.linspace(-8, 8, LEN).astype(np.float32)}, optimizer=rule, policy=policy
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        for step in range(STEPS):
            gradient = made(replica.parameters["w"], replica.id, step)
            await replica.step({"w": gradient}, samples=SAMPLES[replica.id - 1])

    return job


async def together(job: dp.Job, folder: Path, members: int, shards: int = 2, **stage: Any) -> Stage:
    async with Stage(job, folder, shards=shards, **stage) as running:
        async with asyncio.TaskGroup() as group:
            for _ in range(members):
                group.create_task(running.replica())
    return running


async def parameters(
    policy: dp.HardSync | Averaging, rule: Part, made: Made, folder: Path, members: int = 1
) -> NDArray[np.float32]:
    stage = await together(job_of(policy, rule, made), folder, members)
    assert stage.report["staleness"]["max"] == 0
    return stage.parameters()["w"]


def twin(policy: Averaging, rule: Part, made: Made, members: int) -> NDArray[np.float32]:
    outer = policy.outer()
    assert outer is not None
    return slow.trained(
        np.linspace(-8, 8, LEN).astype(np.float32),
        made,
        local=rule.parts(),
        outer=outer.parts(),
        members=members,
        steps=STEPS,
        every=policy.every,
        mean=policy.combine == "mean",
        samples=SAMPLES[:members] if policy.by_samples else (),
        keeps_state=policy.keeps_state,
    )


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (dp.ModelAveraging(every=4), dp.SGD(lr=0.3)),
        (dp.DiLoCo(every=4), dp.AdamW(lr=0.1)),
        (dp.DiLoCo(every=1), dp.chain(dp.WarmUp(over=6), dp.Clip(0.5), dp.Momentum(lr=0.1))),
        (dp.BlockMomentum(every=3, momentum=0.75, rate=0.5), dp.Adam(lr=0.1)),
        (dp.BlockMomentum(every=3, momentum=0.5, nesterov="cntk"), dp.Momentum(lr=0.1)),
        (dp.BlockMomentum(every=2, momentum=0.5, nesterov="no"), dp.Adagrad(lr=0.1)),
    ],
    ids=lambda value: value.name,
)
async def test_one_replica_is_the_twin_to_the_bit(
    tmp_path: Path, policy: Averaging, rule: Part, shards: int
) -> None:
    stage = await together(job_of(policy, rule, odd), tmp_path, 1, shards)
    np.testing.assert_array_equal(stage.parameters()["w"], twin(policy, rule, odd, 1))
    blocks = -(-STEPS // policy.every)
    assert stage.report["pushes"]["applied"] == blocks
    assert stage.report["optimizer"] == policy.outer().describe()  # type: ignore[union-attr]
    assert stage.report["local_optimizer"] == rule.describe()
    planes = _core.Optimizer(rule.parts()).planes
    assert stage.report["replicas"][0]["state_bytes"] == 4 * LEN * planes


@pytest.mark.parametrize(
    "policy",
    [
        dp.ModelAveraging(every=2, replicas=4),
        dp.ModelAveraging(every=4, replicas=4, by_samples=True),
        dp.DiLoCo(every=3, rate=0.5, momentum=0.5, replicas=4),
        dp.DiLoCo(every=3, rate=0.125, momentum=0.5, combine="sum", replicas=4),
        dp.BlockMomentum(every=2, replicas=4, momentum=0.5),
        dp.BlockMomentum(every=2, replicas=4, nesterov="no", keeps_state=True),
    ],
    ids=repr,
)
async def test_several_are_the_twin_whoever_is_first(tmp_path: Path, policy: Averaging) -> None:
    """Numbers whose sums are exact: their order is not the twin's."""
    rule = dp.Momentum(lr=0.25, momentum=0.5)
    values = await parameters(policy, rule, whole, tmp_path, 4)
    np.testing.assert_array_equal(values, twin(policy, rule, whole, 4))


# -- identities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("shards", [1, 4])
async def test_diloco_that_goes_all_of_the_way_is_local_training(
    tmp_path: Path, every: int, shards: int
) -> None:
    """With one replica, rate 1 and no momentum: to the bit, where differences are exact."""
    rule = dp.Momentum(lr=0.25, momentum=0.5)
    policy = dp.DiLoCo(every=every, rate=1.0, momentum=0.0)
    start = np.round(np.linspace(-8, 8, LEN)).astype(np.float32)
    job = job_of(policy, rule, whole)
    job.parameters["w"][...] = start
    stage = await together(job, tmp_path, 1, shards)
    expected = slow.alone(start, whole, local=rule.parts(), steps=STEPS)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)


@pytest.mark.parametrize("members", [1, 4])
async def test_diloco_is_block_momentum_with_the_exact_nesterov_form(
    tmp_path: Path, members: int
) -> None:
    one = dp.DiLoCo(every=3, rate=0.5, momentum=0.75, replicas=members)
    other = dp.BlockMomentum(every=3, rate=0.5, momentum=0.75, replicas=members, keeps_state=True)
    made = odd if members == 1 else whole
    rule = dp.Momentum(lr=0.25, momentum=0.5)
    found = [
        await parameters(policy, rule, made, tmp_path / policy.name, members)
        for policy in (one, other)
    ]
    np.testing.assert_array_equal(found[0], found[1])


async def test_block_momentum_without_momentum_is_model_averaging(tmp_path: Path) -> None:
    rule = dp.Adagrad(lr=0.1)
    one = dp.BlockMomentum(every=3, momentum=0.0, nesterov="no", keeps_state=True)
    found = [
        await parameters(policy, rule, odd, tmp_path / policy.name)
        for policy in (one, dp.ModelAveraging(every=3))
    ]
    np.testing.assert_array_equal(found[0], found[1])


async def test_averaging_after_each_step_is_synchronous_sgd(tmp_path: Path) -> None:
    found = [
        await parameters(policy, dp.SGD(lr=0.25), whole, tmp_path / policy.name, 4)
        for policy in (dp.ModelAveraging(every=1, replicas=4), dp.HardSync(replicas=4))
    ]
    np.testing.assert_array_equal(found[0], found[1])


# -- the user's own loop ---------------------------------------------------------------------------


async def test_a_loop_with_steps_of_its_own_is_the_same(tmp_path: Path) -> None:
    """Whatever the arrays' dtypes: where nothing is written, nothing is rounded."""

    def job_with(rule: Part | None) -> dp.Job:
        job = dp.Job(
            parameters={"a": np.full(5, 1 / 3, np.float32), "h": np.full(7, 1.5, np.float16)},
            optimizer=rule,
            policy=dp.DiLoCo(every=3, rate=0.3, momentum=0.5),
        )

        @job.replica
        async def train(replica: dp.Replica) -> None:
            a, h = (replica.parameters[name] for name in "ah")
            for step in range(9):
                if rule is not None:
                    await replica.step({"a": a * np.float32(0.5), "h": None})
                    continue
                a -= np.float32(0.25) * (a * np.float32(0.5))
                if step == 4:
                    h[2] += np.float16(1.0)
                await replica.step()

        return job

    one = await together(job_with(dp.SGD(lr=0.25)), tmp_path / "one", 1, shards=1)
    other = await together(job_with(None), tmp_path / "other", 1, shards=1)
    np.testing.assert_array_equal(one.parameters()["a"], other.parameters()["a"])
    changed = other.parameters()["h"] != np.float16(1.5)
    assert list(np.flatnonzero(changed)) == [2]
    assert other.report["local_optimizer"] == "the user's"


async def test_who_makes_no_step_is_told(tmp_path: Path) -> None:
    """Two slips: no gradients under a policy that pushes them, and gradients for no optimizer."""
    for policy, rule, gradients, words in (
        (dp.Downpour(), dp.SGD(lr=1.0), None, r"policy downpour pushes gradients: .*step\(grads\)"),
        (dp.DiLoCo(), None, {"w": np.ones(3)}, r"the job has no optimizer=: write the step into"),
    ):
        job = dp.Job(parameters={"w": np.zeros(3)}, optimizer=rule, policy=policy)
        given: Any = gradients

        @job.replica
        async def train(replica: dp.Replica, given: Any = given) -> None:
            await replica.step(given)

        async with Stage(job, tmp_path / policy.name, shards=1, limits=FORSAKEN) as stage:
            with pytest.raises(dp.ConfigError, match=words):
                await stage.replica()


# -- what a delta is counted from ------------------------------------------------------------------


async def test_a_fetch_in_the_middle_of_a_block_loses_nothing(tmp_path: Path) -> None:
    """What the copy gained stays, and the delta is counted from what was fetched."""
    seen = await _seen_by(tmp_path, lambda replica: replica.fetch())
    assert seen == [-1, -2, -2, -3, -2]


async def test_a_flush_ends_a_block_and_the_next_begins_from_the_round(tmp_path: Path) -> None:
    """The two steps before it make -1; of the copy they are taken back with the next step."""
    seen = await _seen_by(tmp_path, lambda replica: replica.flush())
    assert seen == [-1, -2, -2, -2, -2]


async def _seen_by(folder: Path, act: Callable[[dp.Replica], Awaitable[None]]) -> list[float]:
    """The copy after each of two steps of -1, after something, and after each of two more.

    The outer rate is a half.
    """
    job = dp.Job(
        parameters={"w": np.zeros(3, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.DiLoCo(every=4, rate=0.5, momentum=0.0),
    )
    seen: list[float] = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        def look() -> None:
            seen.append(float(replica.parameters["w"][0]))

        for step in range(4):
            if step == 2:
                await act(replica)
                look()
            await replica.step({"w": np.ones(3, np.float32)})
            look()

    await together(job, folder, 1, shards=1)
    return seen


# -- what becomes of a delta -----------------------------------------------------------------------


async def test_a_delta_that_is_sent_again_is_added_once(tmp_path: Path) -> None:
    """Connections are cut a little further on each time; the result is the twin's."""
    proxies: list[FaultProxy] = []

    def cut_after(number: int) -> Faults:
        size = 900 + 477 * number
        return Faults(reset_after=(size, size)) if number <= 8 else Faults()

    def before(target: str) -> FaultProxy:
        proxies.append(FaultProxy(target, to_target=cut_after))
        return proxies[-1]

    policy, rule = dp.DiLoCo(every=2, rate=0.5, momentum=0.5), dp.Momentum(lr=0.1)
    stage = await together(job_of(policy, rule, odd), tmp_path, 1, before_shards=before)
    assert sum(proxy.statistics().resets for proxy in proxies) >= 4
    np.testing.assert_array_equal(stage.parameters()["w"], twin(policy, rule, odd, 1))
    assert stage.report["pushes"]["applied"] == 6


async def test_the_block_of_a_replica_that_fails_is_lost_and_done_again_once(
    tmp_path: Path,
) -> None:
    """Its steps are nowhere but in its copy: no sample of them counts, and then each does once."""
    job = dp.Job(
        parameters={"w": np.zeros(12, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.ModelAveraging(every=4),
        data=dp.Work(12, unit=2, shuffle=False),
    )
    lives: list[NDArray[np.float32]] = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        lives.append(replica.parameters["w"].copy())
        async for unit in replica.work():
            for batch in unit.batches(1):
                if len(lives) == 1 and batch[0] == 7:
                    raise ZeroDivisionError("in the middle of a block")
                step = np.zeros(12, np.float32)
                step[batch] = -1.0
                await replica.step({"w": step})

    async with Stage(job, tmp_path, shards=1) as stage:
        with pytest.raises(ZeroDivisionError):
            await stage.replica(name="one")
        await stage.replica(name="one")
    # Samples 0 to 3 were pushed; 4, 5 and 6 had been stepped and are not there.
    np.testing.assert_array_equal(lives[1], [1] * 4 + [0] * 8)
    np.testing.assert_array_equal(stage.parameters()["w"], np.ones(12))
    assert stage.report["samples"] == 12


# -- what is not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["the loop", "its optimizer", "a gradient"])
async def test_a_copy_that_is_not_finite_is_given_up_and_its_units_done_again(
    tmp_path: Path, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It breaks once; what was not pushed is given up, and no step counts that is not there."""
    words = {
        "the loop": "the delta of 3 steps holds 1 NaN or infinite values, the first in 'w' at flat",
        "its optimizer": "did not stay finite; choose a smaller rate; the delta of 1 step is given",
        "a gradient": "the gradient holds 8 NaN",
    }
    job = dp.Job(
        parameters={"w": np.zeros(8, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.ModelAveraging(every=3),
        data=dp.Work(8, unit=2, shuffle=False),
    )
    broken, at = [by], 5 if by == "the loop" else 3

    @job.replica
    async def train(replica: dp.Replica) -> None:
        w = replica.parameters["w"]
        async for unit in replica.work():
            for batch in unit.batches(1):
                step = np.zeros(8, np.float32)
                step[batch] = -1.0
                cause = broken.pop() if broken and batch[0] == at else ""
                if cause == "the loop":
                    w[5] = np.nan
                    await replica.step()
                elif cause == "a gradient":
                    await replica.step({"w": step * np.float32(np.nan)})
                elif cause:
                    w[5] = -3e38
                    await replica.step({"w": np.full(8, 3e38, np.float32)})
                else:
                    await replica.step({"w": step})

    with caplog.at_level(logging.WARNING):
        async with Stage(job, tmp_path, shards=1) as stage:
            await stage.replica()
    assert (stage.report["state"], stage.report["samples"]) == ("done", 8)
    assert stage.report["gradients"]["dropped"] >= 1
    assert words[by] in caplog.text
    # Of the unit that is done again sample 2 was in the block before.
    np.testing.assert_array_equal(stage.parameters()["w"], [1, 1, 2, 1, 1, 1, 1, 1])
