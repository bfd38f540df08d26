"""``pydownpour policy`` and a running job, each in processes of their own."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.chaos.processes import Command, events, status, until

pytestmark = pytest.mark.timeout(180)

JOB = '''
"""Each sample adds one to its own parameter in each pass; a later pass waits for a file."""

import asyncio
import pathlib

import numpy as np

import pydownpour as dp

SAMPLES, PASSES = 120, 3
here = pathlib.Path(__file__).parent

job = dp.Job(
    parameters={"w": np.zeros(SAMPLES, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=4, local_rate=0.0),
    data=dp.Work(SAMPLES, unit=4, passes=PASSES),
)


@job.replica
async def train(replica):
    async for unit in replica.work():
        while unit.pass_index and not (here / f"go-{unit.pass_index}").exists():
            await asyncio.sleep(0.01)
        for batch in unit.batches(1):
            gradient = np.zeros(SAMPLES, np.float32)
            gradient[batch] = -1.0
            await replica.step({"w": gradient})


@job.evaluate
def counted(parameters):
    return {"least": float(parameters["w"].min()), "most": float(parameters["w"].max())}
'''


def policy(url: str, *arguments: str) -> str:
    """What the command says, which must succeed."""
    with Command("policy", url, *arguments) as command:
        assert command.wait() == 0, command.said
        return command.said


def test_a_running_job_is_switched_twice_and_counts_each_sample_once(tmp_path: Path) -> None:
    file, folder = tmp_path / "job.py", tmp_path / "run"
    file.write_text(JOB)
    run = Command(
        "run", file, "--shards", "2", "--replicas", "3", "--json", "--run-folder", folder
    )  # fmt: skip

    def obeyed(version: int) -> bool:
        told = events(folder, "policy obeyed")
        return {one["shard"] for one in told if one["version"] == version} == {0, 1}

    with run:
        until(lambda: status(run.url)["samples_done"], "the first samples")
        assert "version 1, since 0.0 s and 0 samples of the job, by the job" in policy(run.url)
        said = policy(run.url, "hardsync", "--combine", "sum")
        assert "hardsync: combine=sum" in said
        assert "version 2" in said
        until(lambda: obeyed(2), "both shards under version 2")
        (tmp_path / "go-1").touch()
        until(lambda: status(run.url)["samples_done"] > 140, "the second pass")
        wrong = Command("policy", run.url, "downpour", "--push-every", "0")
        with wrong:
            assert wrong.wait() == 2
        assert "push_every=0 must be at least 1" in wrong.said
        words = "--push-every 3 --local-rate 0 --land keep --in-flight 2".split()
        assert "version 3" in policy(run.url, "downpour", *words)
        until(lambda: obeyed(3), "both shards under version 3")
        (tmp_path / "go-2").touch()
        assert run.wait() == 0, run.said
    report = run.report
    assert report["metrics"] == {"least": 3.0, "most": 3.0}
    assert report["audit"] == []
    assert report["pushes"]["sent"] == report["pushes"]["applied"]
    assert [one["policy"]["name"] for one in report["policies"]] == [
        "downpour", "hardsync", "downpour",
    ]  # fmt: skip
    assert all("pydownpour policy on" in one["by"] for one in report["policies"][1:])
    (first, second) = events(folder, "policy")
    assert (first["version"], second["version"]) == (2, 3)
    assert first["samples"] < second["samples"]
    json.dumps(report)


def test_ctrl_c_ends_a_command_that_nobody_answers(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        command = Command("policy", f"http://127.0.0.1:{silent.getsockname()[1]}", "downpour")
        with command:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                command.signal(signal.SIGINT)
                assert command.wait() == 130, command.said
    assert "stopped by SIGINT" in command.said
    assert "Traceback" not in command.said
