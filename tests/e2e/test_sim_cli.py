"""``pydownpour sim`` as people and scripts use it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pydownpour.cli.app import app
from pydownpour.sim.faults.plans import PLANS

JOB = """
import asyncio
import numpy as np
import pydownpour as dp

job = dp.Job(
    parameters={"w": np.zeros(40, np.float32)}, optimizer=dp.SGD(lr=1.0), data=dp.Work(60, unit=2)
)
calls = []

@job.replica
async def train(replica):
    async for unit in replica.work():
        for _ in unit.batches(1):
            calls.append(replica.id)
            await replica.step({"w": -np.ones(40, np.float32)}, loss=1.0 / len(calls))
"""
UNREPEATABLE = JOB.replace(
    "await replica.step(",
    "import os; await asyncio.sleep(os.urandom(1)[0] / 1e4); await replica.step(",
)
ROOT = Path(__file__).resolve().parents[2]
PLAIN = JOB.replace("async def", "def").replace("async for", "for").replace("await ", "")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "counting.py"
    path.write_text(JOB)
    return str(path)


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sim", *arguments])


def report(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def shown(text: str) -> list[list[str]]:
    """The ``pydownpour sim`` commands with faults that a document shows, as words."""
    return [
        shlex.split(line.strip("$` :"))[2:]
        for line in text.splitlines()
        if "pydownpour sim " in line and "--faults" in line and "--seeds" not in line
        if line.strip("$` :").startswith("pydownpour sim")
    ]


@pytest.mark.parametrize("document", ["README.md", "docs/simulation.md"])
def test_faults_strike_in_every_command_that_the_documents_show(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = re.search(r"```python run\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert job is not None
    (tmp_path / "job.py").write_text(job[1])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = shown((ROOT / document).read_text())
    assert commands
    for words in commands:
        result = sim("--json", *(word for word in words if word not in ("--trace", "--json")))
        assert result.exit_code == 0, result.output
        assert report(result)["faults_injected"] > 0, words


def test_a_summary_and_the_hash(file: str) -> None:
    result = sim(file, "--seed", "7", "--replicas", "3")
    assert result.exit_code == 0, result.output
    for words in (
        "counting: done",
        "replica-2",
        "virtual s in",
        "calm: 0 took place",
        "trace hash",
    ):
        assert words in result.stdout
    assert "memory" not in result.stdout  # a constant says nothing
    assert result.stderr == ""


def test_json_is_the_last_line_and_the_rest_is_elsewhere(file: str) -> None:
    result = sim(file, "--json", "--seed", "7", "--faults", "swarm")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    assert report(result)["seed"] == 7
    assert report(result)["faults"] == "swarm"
    assert "trace hash" in result.stderr


@pytest.mark.parametrize("text", [JOB, PLAIN], ids=["async", "plain"])
def test_check_runs_it_twice(tmp_path: Path, text: str) -> None:
    path = tmp_path / "counting.py"
    path.write_text(text)
    result = sim(str(path), "--check", "--faults", "reset", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert "the same" in result.stdout


def test_check_shows_where_an_unrepeatable_job_parts(tmp_path: Path) -> None:
    path = tmp_path / "counting.py"
    path.write_text(UNREPEATABLE)
    result = sim(str(path), "--check", "--json")
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stderr
    assert "the runs differ from event" in result.stderr
    assert "seed 0 is not repeatable" in result.stderr
    assert report(result)["difference"]


def test_trace_prints_one_aligned_line_an_event(file: str) -> None:
    result = sim(file, "--trace", "--timing-only")
    head, *lines = result.stdout[: result.stdout.index("counting: done")].splitlines()
    assert head.split() == ["virtual", "s", "event", "who", "number"]
    assert all(float(line[:12]) >= 0 and line[12:14] == "  " for line in lines)
    assert len(lines) > 100


def test_a_range_of_seeds_has_one_line_each(file: str) -> None:
    result = sim(file, "--seeds", "3..6", "--timing-only", "--faults", "kill", "--json")
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stderr.splitlines()] == [
        ["seed", str(seed)] for seed in range(3, 7)
    ]
    found = report(result)
    assert (found["seeds"], found["failed"]) == ([3, 6], [])
    assert len(set(found["hashes"].values())) == 4


def test_a_failing_seed_prints_the_line_that_replays_it(file: str) -> None:
    arguments = ("--timing-only", "--replicas", "2", "--virtual-s", "0.3", "--latency", "0.05")
    result = sim(file, "--seeds", "0..1", *arguments)
    assert result.exit_code == 1
    assert "2 of 2 seeds failed" in result.stderr
    (line, _) = (text for text in result.stdout.splitlines() if "replay: " in text)
    words = shlex.split(line.partition("replay: ")[2])
    assert words[:4] == ["pydownpour", "sim", file, "--seed"]
    again = CliRunner().invoke(app, words[1:])
    assert again.exit_code == 1
    assert "not done after 0.3 virtual seconds" in again.stderr
    assert f"replay with {shlex.join(words)}" in again.stderr
    first = next(text for text in result.stdout.splitlines() if text.startswith("seed 0"))
    assert first.split()[2] in again.stdout  # the same hash


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "nope"], "there are calm, kill"),
        (["--seeds", "5"], "write for example 0..99"),
        (["--seeds", "5..2"], "no range of seeds"),
        (["--seeds", "0..2", "--check"], "need one"),
        (["--replicas", "0"], "--replicas"),
        (["--latency", "-1"], "must be 0 or more"),
        (["--bandwidth", "nan"], "must be 0 or more"),
        (["--shards", "500"], "shards"),
    ],
)
def test_what_cannot_be_is_said(file: str, arguments: list[str], words: str) -> None:
    result = sim(file, *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_no_such_file_and_no_function_are_said(tmp_path: Path) -> None:
    assert "no job file" in sim("nowhere.py").stderr
    path = tmp_path / "counting.py"
    path.write_text(JOB.partition("@job")[0])
    result = sim(str(path))
    assert (result.exit_code, "@job.replica" in result.stderr) == (2, True)
    assert sim(str(path), "--timing-only").exit_code == 0


def test_the_run_folder_is_kept(file: str, tmp_path: Path) -> None:
    assert sim(file, "--run-folder", str(tmp_path / "run")).exit_code == 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"events.jsonl", "parameters.safetensors", "report.json"}


def test_help_names_every_plan() -> None:
    output = sim("--help").output
    listed = output[output.index("Fault plans:") : output.index("Exit code")]
    missing = [name for name in PLANS if name not in listed]
    assert missing == []


def test_other_processes_and_hash_seeds_see_the_same_run(file: str) -> None:
    def run(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pydownpour", "sim", file, "--faults", "reset", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return str(json.loads(done.stdout)["trace_hash"])

    assert run("1") == run("2") == report(sim(file, "--faults", "reset", "--json"))["trace_hash"]


@pytest.mark.parametrize("text", [JOB, PLAIN], ids=["async", "plain"])
def test_ctrl_c_ends_it_in_words_and_prints_what_there_is(file: str, text: str) -> None:
    """With a job that would take for ever: an event of it is the sign to interrupt it.

    Nothing of the world that is left behind warns of anything.
    """
    Path(file).write_text(text.replace("dp.Work(60", "dp.Work(10**5"))
    command = [
        sys.executable, "-X", "dev", "-W", "always", "-m", "pydownpour", "sim", file, "--trace",
        "--json", "--shards", "1",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for number, line in enumerate(process.stderr):
            if "message" in line and number > 500:
                break
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    told = json.loads(out)
    assert (told["state"], told["reason"]) == ("stopped", "stopped by SIGINT")
    assert told["failure"] == "stopped by SIGINT"
    assert told["pushes"]["applied"] > 0
    assert errors.splitlines()[-1] == "pydownpour: stopped by SIGINT"
    for words in ("Exception ignored", "never awaited", "Warning", "Traceback"):
        assert words not in errors


def test_ctrl_c_between_seeds_says_which_have_run(file: str) -> None:
    command = [sys.executable, "-m", "pydownpour", "sim", file, "--seeds", "0..99999", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    told = json.loads(out)
    assert told["failure"] == "stopped by SIGINT"
    assert told["hashes"]["0"] in first
    assert told["failed"] == []


def test_other_limits_than_usual_hold_in_the_world_and_in_the_line_that_replays_it(
    file: str,
) -> None:
    usual = report(sim(file, "--json"))
    other = report(sim(file, "--json", "--limit", "heartbeat_s=0.25"))
    assert usual["settings"]["limits"] == {}
    assert other["settings"]["limits"] == {"heartbeat_s": 0.25}
    assert other["trace_hash"] != usual["trace_hash"]
    failed = sim(file, "--limit", "heartbeat_s=0.25", "--events", "900")
    assert failed.exit_code == 1
    assert "--limit heartbeat_s=0.25" in failed.stderr
    refused = sim(file, "--limit", "heartbeats=1")
    assert "there is no limit 'heartbeats'" in refused.stderr


def test_the_example_finds_that_staleness_needs_a_smaller_rate() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "simulate.py"
    done = subprocess.run(
        [sys.executable, str(example), "--short", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    runs = {(r["rate"], r["replicas"]): r for r in json.loads(done.stdout.splitlines()[-1])}
    staleness = [runs[0.02, count]["staleness"] for count in (1, 8, 32)]
    assert staleness == sorted(staleness)
    assert runs[0.2, 1]["accuracy"] > runs[0.02, 1]["accuracy"] > 0.6
    assert runs[0.02, 8]["accuracy"] > runs[0.02, 1]["accuracy"] - 0.02
    assert runs[0.2, 8]["accuracy"] < 0.3
    assert "R = 8   rate 0.02 survives" in done.stdout
