"""Pushes that leave fragments out, end to end: what shards apply is what the twin says, to the bit.

Every number is a small multiple of 1/64, so no sum rounds.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour.limits import DEFAULT, KIB
from pydownpour.sim.checks.base import Check
from tests.chaos.processes import ROOT, Command
from tests.e2e.stage import Stage
from tests.reference import codecs
from tests.reference.codecs import Array

LENGTH = 3001
STEPS = 24
FRAGMENT_LEN = 256
FRAGMENTS = -(-LENGTH // FRAGMENT_LEN)
TAU = 2.0
SMALL = dataclasses.replace(DEFAULT, fragment_size=KIB, ack_every_fragments=2)


def gradient(step: int) -> Array:
    """A little of everything, much in two places, and in each fourth step nothing at all."""
    values = np.full(LENGTH, 1 / 64 if step % 2 else -1 / 32, np.float32)
    if step % 4 != 3:
        values[(step * 401) % LENGTH :][:3] += 2.5
        values[(step * 997) % LENGTH :][: 8 if step % 4 else 200] -= 3.25
    return values


def sequentially(lr: float) -> tuple[Array, Array, list[list[bytes]]]:
    """The parameters, what is left, and the payloads of each push, fragment by fragment."""
    twin = codecs.Threshold(TAU)
    cuts = range(FRAGMENT_LEN, LENGTH, FRAGMENT_LEN)
    w, residual = np.zeros(LENGTH, "f4"), np.zeros(LENGTH, "f4")
    payloads: list[list[bytes]] = []
    for step in range(STEPS):
        payloads.append([])
        pieces = zip(*(np.split(a, cuts) for a in (w, residual, gradient(step))), strict=True)
        for w_piece, left, g in pieces:
            data, left[:] = codecs.encode(twin, g, left)
            w_piece -= np.float32(lr) * twin.decode(data, len(g))
            payloads[-1].append(data)
    return w, residual, payloads


def job_of(**settings: Any) -> dp.Job:
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=0.5),
        data=dp.Work(STEPS, unit=STEPS, shuffle=False),
        **{"codec": dp.Threshold(tau=TAU), **settings},
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                await replica.step({"w": gradient(int(batch[0]))})

    return job


WITH_CODEC: list[dict[str, Any]] = [
    {"policy": dp.Downpour(overlap=False)},
    {"policy": dp.Downpour(in_flight=2, local_rate=0.0)},
    {"policy": dp.Strom(threshold=TAU), "codec": None},
]


@pytest.mark.parametrize("settings", WITH_CODEC, ids=["in turn", "overlapping", "strom"])
@pytest.mark.parametrize("shards", [1, 2])
async def test_what_says_nothing_is_left_out_and_the_rest_is_the_twin_to_the_bit(
    settings: dict[str, Any], shards: int, tmp_path: Path
) -> None:
    job = job_of(**settings)
    async with Stage(job, tmp_path / "run", shards=shards, limits=SMALL) as stage:
        await stage.replica()
    w, residual, payloads = sequentially(lr=0.5)
    np.testing.assert_array_equal(stage.parameters()["w"], w)
    total = sum(gradient(step) for step in range(STEPS))
    np.testing.assert_array_equal(residual - 2 * w, total)  # sum(sent) + residual
    report = stage.report
    assert report["audit"] == []
    sizes = [[len(data) for data in push] for push in payloads]
    silent = sum(not any(push) for push in sizes)
    left_out = sum(push.count(0) for push in sizes)
    assert silent == STEPS // 4
    assert STEPS * FRAGMENTS / 2 < left_out < STEPS * FRAGMENTS
    pushes, gradients = report["pushes"], report["gradients"]
    assert (pushes["silent"], gradients["fragments_left_out"]) == (silent, left_out)
    assert pushes["sent"] == pushes["acked"] == pushes["applied"] == STEPS - silent
    assert gradients["payload_bytes"] == sum(map(sum, sizes))
    assert report["records"]["applied"] == STEPS * FRAGMENTS - left_out
    # With all frames and announcements, and the fetches asked for, much less than one dense push.
    assert report["replicas"][0]["bytes_sent"] < STEPS * LENGTH * 4 / 10


async def test_rounds_get_every_fragment_whether_it_says_something_or_not(tmp_path: Path) -> None:
    """A round waits for each replica's push, and divides by those that each fragment has."""
    job = job_of(policy=dp.HardSync(replicas=1))
    async with Stage(job, tmp_path / "run", shards=2, limits=SMALL) as stage:
        await stage.replica()
    w, _, payloads = sequentially(lr=0.5)
    np.testing.assert_array_equal(stage.parameters()["w"], w)
    gradients = stage.report["gradients"]
    assert gradients["fragments_left_out"] == stage.report["pushes"]["silent"] == 0
    assert gradients["payload_bytes"] == sum(len(data) for push in payloads for data in push)
    # Each was added, and each was applied.
    assert stage.report["records"]["applied"] == 2 * STEPS * FRAGMENTS


def test_what_is_taken_again_is_all_of_the_last_push_what_it_does_not_say_too(
    tmp_path: Path,
) -> None:
    """Of B-FASGD's dropped pushes: nothing is left out, or an older push would stand in for it."""
    again: list[bool] = []

    class Watch(Check):
        name = "what was sent again"

        def pushed(self, life: Any, push: Any) -> None:
            again.append(push.again is not None)

    job = job_of(policy=dp.BFASGD(c_fetch=0.0, c_push=1.0, deviation=1.0))
    report = dp.simulate(
        job, replicas=1, shards=2, seed=5, limits=SMALL, checks=[Watch], run_folder=tmp_path / "r"
    )
    twin = codecs.Threshold(TAU)
    cuts = range(FRAGMENT_LEN, LENGTH, FRAGMENT_LEN)
    w, residual, last = (np.zeros(LENGTH, "f4") for _ in range(3))
    for step, is_again in enumerate(again):
        if not is_again:  # else its gradient is dropped, and the residual as it was
            for g, left, said in zip(
                *(np.split(a, cuts) for a in (gradient(step), residual, last)), strict=True
            ):
                data, left[:] = codecs.encode(twin, g, left)
                said[:] = twin.decode(data, len(g))
        w -= np.float32(0.5) * last
    assert len(again) == STEPS
    assert sum(again) == report["pushes"]["repeated"] > 5
    assert report["gradients"]["fragments_left_out"] == report["pushes"]["silent"] == 0
    parameters = safetensors.numpy.load_file(tmp_path / "r" / "parameters.safetensors")
    np.testing.assert_array_equal(parameters["w"], w)


async def test_a_push_refused_for_its_norm_gives_back_what_it_left_out_too(tmp_path: Path) -> None:
    """The gradient is dropped: nothing of it comes later, from no fragment."""
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(overlap=False),
        codec=dp.Threshold(tau=TAU),
        max_norm=TAU * math.sqrt(10),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        values = np.full(LENGTH, 0.5, np.float32)
        values[:11] = 8.0
        await replica.step({"w": values})  # eleven quanta are too many
        values = np.zeros(LENGTH, np.float32)
        values[0], values[-1] = 2.5, 1.75
        await replica.step({"w": values})

    async with Stage(job, tmp_path / "run", shards=2, limits=SMALL) as stage:
        await stage.replica()
    assert np.flatnonzero(stage.parameters()["w"]).tolist() == [0]
    assert stage.parameters()["w"][0] == -TAU
    assert stage.report["gradients"]["dropped"] == 1


async def test_a_job_whose_codec_has_nothing_to_say_has_failed_and_says_why(tmp_path: Path) -> None:
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        codec=dp.Threshold(tau=1000.0),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        for step in range(5):
            await replica.step({"w": gradient(step)})

    async with Stage(job, tmp_path / "run", limits=SMALL) as stage:
        await stage.replica()
    assert stage.report["state"] == "failed"
    assert "of 5 the codec had nothing to say" in stage.report["reason"]


def test_digits_learn_as_well_in_a_hundredth_of_the_bytes(tmp_path: Path) -> None:
    """Real processes: by both sides' counters, of what is said and of all that is on the wire."""
    demo = ROOT / "pydownpour" / "demo"
    (tmp_path / "mlp.py").write_text((demo / "mlp.py").read_text())
    text = (demo / "digits.py").read_text()
    text = re.sub(r"    optimizer=.*\n", "    optimizer=dp.SGD(lr=0.05),\n", text)
    text = re.sub(r"    policy=.*\n", "    policy=dp.Strom(threshold=0.1),\n", text)
    job = tmp_path / "digits_strom.py"
    job.write_text(text)
    arguments = ("--shards", "2", "--replicas", "4", "--json", "--run-folder", str(tmp_path / "r"))
    with Command("run", str(job), *arguments) as command:
        assert command.wait(110) == 0, command.said
    report = command.report
    assert report["gradients"]["codec"] == "threshold(tau=0.1)"
    assert report["accuracy"] >= 0.94
    assert report["audit"] == []
    steps, dense = report["gradients"]["computed"], 4 * 4810
    assert report["gradients"]["payload_bytes"] / steps < dense / 60
    # Most of this are announcements, headers and questions for parameters, of so small a model.
    sent = sum(replica["bytes_sent"] for replica in report["replicas"])
    assert sent / steps < dense / 12
    assert report["bytes"]["to_shards"] / steps < dense / 12
    assert report["gradients"]["fragments_left_out"] > steps
