"""A policy that is a class of the job file's own: in real processes, by hand, and simulated."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour.errors import ConfigError
from pydownpour.jobfiles import load_job
from pydownpour.policy.phases import phases_of
from pydownpour.testing import check_policy
from pydownpour.testing.policies import Play
from tests.chaos.processes import ByHand, Command
from tests.e2e.test_digits import EXAMPLES, run

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


# -- the example -----------------------------------------------------------------------------------

EXAMPLE = (EXAMPLES / "custom_policy.py").read_text()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example and what it imports, two passes long."""
    (tmp_path / "mlp.py").write_text((EXAMPLES / "mlp.py").read_text())
    short, count = re.subn(r"passes=\d+", "passes=2", EXAMPLE)
    assert count == 1
    path = tmp_path / "custom_policy.py"
    path.write_text(short)
    return path


def quorum(**settings: Any) -> dp.Policy:
    """The example's policy with other settings."""
    (kind,) = phases_of(load_job(str(EXAMPLES / "custom_policy.py")).policy).classes()
    return kind(**settings)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 1.0])
def test_the_example_keeps_what_ours_keep(share: float) -> None:
    check_policy(quorum(share=share))


@pytest.mark.parametrize("seed", range(5))
def test_a_quorum_of_all_is_hard_sync(seed: int) -> None:
    mine, ours = (
        Play(policy, members=4, steps=6, rng=random.Random(seed))
        for policy in (quorum(share=1.0), dp.HardSync())
    )
    mine.run()
    ours.run()
    assert mine.updates == ours.updates


def test_the_example_in_real_processes(tmp_path: Path, example: Path) -> None:
    report = run(tmp_path, str(example), "--shards", "2", "--replicas", "3").report
    assert report["policy"] == {"name": "quorum", "share": 0.75, "late_weight": 0.5}
    assert report["samples"] == 2 * 1347
    assert report["pushes"]["applied"] == report["pushes"]["sent"]


@pytest.mark.parametrize("seed", range(4))
def test_the_example_in_simulated_storms(example: Path, seed: int) -> None:
    report = dp.simulate(load_job(str(example)), replicas=5, shards=2, seed=seed, faults="swarm")
    assert (report["failure"], report["violations"]) == ("", [])


def test_it_does_not_wait_for_the_slowest(example: Path) -> None:
    """One of four machines is on a line that costs it a second a step: the others go on."""
    slow = {"replica-3": dp.LinkModel(latency_s=0.5)}

    def seconds(policy: dp.Policy) -> float:
        job = load_job(str(example))
        job.policy = policy
        report = dp.simulate(job, replicas=4, shards=1, seed=0, links=slow)
        assert not report["failure"]
        return float(report["seconds"])

    assert seconds(quorum(share=0.75)) < 0.5 * seconds(dp.HardSync())


WRONG = {
    "frozen=True": ("", r"put @dataclasses.dataclass\(frozen=True\) above the class"),
    "    combines = True\n": ("", "must say combines = True"),
    "return Accumulate(self.round,": (
        "return Accumulate(self.round + 1,",
        "accumulates into round 1, and round 0 is open",
    ),
    "if is_late else 1.0": ("if is_late else 0", "weight=0 must be positive and finite"),
    "        return Accumulate": ("        Accumulate", "is None, must be Apply or Accumulate or"),
    "        self.here = set(": (
        "        set(",
        "a rule that loaded what another exported exports",
    ),
    "return dp.HardSync().replica()": ("return dp.HardSync()", r"replica\(\) is HardSync\(.*Rule"),
    "on=missing)": ("on=(7,))", r"on=\(7,\) holds \[7\], and live are \[1\]"),
    "policy=Quorum(share=0.75)": ("policy=Quorum", "must be a Policy|policy="),
    "policy=Quorum(share=0.75),": ("policy=Quorum(share=2),", "share=2 must be above 0"),
    "            return None\n": ("            return True\n", "is True, must be Wait or None"),
    "math.ceil(self.share": ("math.floor(self.shares", "has no attribute 'shares'"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_slip_in_it_is_refused_at_the_users_line(example: Path, text: str) -> None:
    instead, words = WRONG[text]
    assert EXAMPLE.count(text) == 1, text
    example.write_text(EXAMPLE.replace(text, instead))
    with pytest.raises(ConfigError, match=words) as refused:
        load_job(str(example))
    lines = example.read_text().splitlines()
    named = [int(n) for n in re.findall(r'custom_policy.py", line (\d+)', str(refused.value))]
    at = "policy=Quorum(share=2)" if "share=2" in instead else "job = dp.Job("
    assert any(at in lines[number - 1] for number in named), refused.value


@pytest.mark.parametrize(
    ("text", "instead", "words"),
    [
        ('{**super().export(), "here": sorted(self.here)}', "super().export()", "KeyError|here"),
        ("        self.here.clear()", "        pass", "without a gradient"),
        ("        super().closed()", "        pass", "count the round"),
        ("self.here.add(push.replica)", "pass", "nobody can move: round 0 waits for"),
        ("len(view.live)", "4", "nobody can move: round|nobody closes"),
    ],
)
def test_a_slip_that_shows_only_in_time_is_found_by_the_check(
    example: Path, text: str, instead: str, words: str
) -> None:
    assert EXAMPLE.count(text) == 1, text
    example.write_text(EXAMPLE.replace(text, instead))

    def run() -> None:
        (policy,) = phases_of(load_job(str(example)).policy).policies
        check_policy(policy)

    with pytest.raises((AssertionError, ConfigError), match=words):
        run()
