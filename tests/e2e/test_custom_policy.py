"""A policy that is a class of the job file's own: in real processes, by hand, and simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour.jobfiles import load_job
from tests.chaos.processes import ByHand, Command
from tests.e2e.test_digits import run

pytestmark = pytest.mark.timeout(180)

JOB = '''
"""Each gradient counts half, and every second step pushes two of them."""

import dataclasses

import numpy as np

import pydownpour as dp
from pydownpour.policy import Actions, Apply, Policy, ReplicaRule, Scale, ShardRule


@dataclasses.dataclass(frozen=True)
class Half(Policy):
    factor: float = 1.0

    def replica(self):
        return EverySecond()

    def shard(self):
        return Scaled(self.factor)


class EverySecond(ReplicaRule):
    local_rate = 0.0

    def after_step(self, clock, view):
        return Actions(push=clock % 2 == 1, fetch=True)


class Scaled(ShardRule):
    def __init__(self, factor):
        self.factor = factor

    def announce(self, push, view):
        return Apply(Scale(factor=self.factor))


job = dp.Job(
    parameters={"w": np.zeros(100, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=Half(factor=0.5),
    data=dp.Work(64, unit=8),
)


@job.replica
async def train(replica):
    async for unit in replica.work():
        for batch in unit.batches(2):
            await replica.step({"w": np.full(100, -1.0, np.float32)})
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "half.py"
    path.write_text(JOB)
    return path


def test_run_gives_it_to_every_process(tmp_path: Path, file: Path) -> None:
    report = run(tmp_path, str(file), "--shards", "2", "--replicas", "2").report
    assert report["policy"] == {"name": "half", "factor": 0.5}
    final = safetensors.numpy.load_file(tmp_path / "run" / "parameters.safetensors")
    np.testing.assert_array_equal(final["w"], 16.0)  # 32 steps
    assert 16 <= report["pushes"]["sent"] < 24


def test_by_hand_a_shard_says_that_it_needs_the_job_file(tmp_path: Path, file: Path) -> None:
    with ByHand(file, tmp_path, shards=0) as job:
        bare = job.shard()
        job.shards.clear()
        assert bare.wait() == 2
        assert bare.heard(
            r"this job's policy 'half' is a class of its job file: start the shard with --job FILE"
        ), bare.said
        for _ in range(2):
            job.shard("--job", str(file))
        joining = Command("replica", file, "--coordinator", job.url)
        with joining:
            assert joining.wait() == 0, joining.said
        assert job.finish()["state"] == "done"
    final = safetensors.numpy.load_file(job.run_folder / "parameters.safetensors")
    np.testing.assert_array_equal(final["w"], 16.0)


def test_the_simulator_obeys_it(file: Path) -> None:
    report = dp.simulate(load_job(str(file)), replicas=3, shards=2, seed=1)
    assert (report["state"], report["policy"]["name"]) == ("done", "half")
    assert report["pushes"]["applied"] >= 16
