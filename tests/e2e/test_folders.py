"""Whatever folder is the current one, and wherever a job file goes: the same code and files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes import Command, until

JOB = """
import os
os.chdir(os.environ["ELSEWHERE"])
import numpy as np
import pydownpour as dp
job = dp.Job(
    parameters={"w": np.zeros((4, 5), np.float32)},
    optimizer=dp.SGD(lr=1.0),
    data=dp.Work(4, unit=1),
)
@job.replica
async def train(replica):
    async for unit in replica.work():
        await replica.step({"w": np.ones((4, 5), np.float32)})
"""
SHADOWS = ("queue", "email", "random", "types", "logging", "click", "aiohttp")
"""Modules of others that ours need."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a job file that goes elsewhere."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "job.py").write_text(JOB)
    return tmp_path / "here"


def start(here: Path, *arguments: str, **settings: Any) -> Command:
    return Command(
        *arguments, cwd=here, env={"ELSEWHERE": str(here.parent / "elsewhere")}, **settings
    )


def test_a_job_file_that_changes_the_folder_does_not_move_the_outputs(here: Path) -> None:
    with start(here, "run", "job.py", "--replicas", "1", "--run-folder", "out", "--json") as run:
        assert run.wait() == 0, run.said
        assert run.report["storage"] == "ok"
    assert {path.name for path in (here / "out").iterdir()} >= {
        "events.jsonl", "parameters.safetensors", "report.json", "logs",
    }  # fmt: skip
    assert list((here.parent / "elsewhere").iterdir()) == []


def test_nor_those_of_a_coordinator_by_hand_and_of_a_simulation(here: Path) -> None:
    with start(here, "coordinator", "job.py", "--shards", "1") as coordinator:
        coordinator.heard("listening")
        assert (here / "runs").is_dir()
    with start(here, "sim", "job.py", "--shards", "1", "--run-folder", "simulated") as sim:
        assert sim.wait() == 0, sim.said
    assert (here / "simulated" / "report.json").exists()
    assert list((here.parent / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("where", ["current folder", "job's folder"])
def test_modules_in_the_current_or_the_job_s_folder_do_not_replace_those_we_need(
    here: Path, where: str
) -> None:
    for name in SHADOWS:
        (here / f"{name}.py").write_text("raise ImportError('shadowed')\n")
    # Also another package of our own name, such as a checkout that is not built.
    (here / "pydownpour").mkdir()
    (here / "pydownpour" / "__init__.py").write_text("raise ImportError('another pydownpour')\n")
    cwd = here if where == "current folder" else here.parent
    job = os.path.relpath(here / "job.py", cwd)
    program = (str(Path(sys.executable).with_name("pydownpour")),)
    with Command(
        "run", job, "--replicas", "1", "--run-folder", "out", cwd=cwd, program=program,
        env={"ELSEWHERE": str(here.parent / "elsewhere")},
    ) as run:  # fmt: skip
        assert run.wait() == 0, run.said
    assert json.loads((cwd / "out" / "report.json").read_text())["state"] == "done"


BROKEN = {
    "no job": ("x = 1\n", ()),
    "raises": ("raise ValueError('no data')\n", ()),
    "too many shards": (JOB, ("--shards", "9")),
    "exits": ("import sys; sys.exit(1)\n", ()),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_a_start_that_fails_leaves_no_folder(here: Path, command: str, case: str) -> None:
    text, options = BROKEN[case]
    (here / "broken.py").write_text(text)
    shards = options or ("--shards", "1")
    with start(here, command, "broken.py", *shards) as start_:
        assert start_.wait() == 2, start_.said
    assert sorted(path.name for path in here.iterdir()) == ["broken.py", "job.py"]


def test_a_folder_that_was_there_before_stays(here: Path) -> None:
    (here / "broken.py").write_text("x = 1\n")
    (here / "mine").mkdir()
    (here / "mine" / "notes.txt").touch()
    with start(here, "run", "broken.py", "--run-folder", "mine") as run:
        assert run.wait() == 2
    assert (here / "mine" / "notes.txt").exists()


def test_a_job_file_that_loads_for_long_is_waited_for_and_said(here: Path) -> None:
    gate = here.parent / "gate"
    (here / "slow.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + JOB
    )
    hasty = ("--limit", "load_told_s=0.2", "--limit", "join_patience_s=20")
    with start(here, "run", "slow.py", "--run-folder", "out", *hasty) as run:
        run.heard(r"waiting for slow\.py to load in the coordinator, \d+ s so far")
        until(lambda: len([line for line in run.out if "to load in" in line]) >= 3, "more words")
        gate.touch()
        assert run.wait() == 0, run.said
