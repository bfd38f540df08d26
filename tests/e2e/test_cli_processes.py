"""The command line as a process: signals, what is left behind, what a user reads on failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import pydownpour

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, sys, threading
from pydownpour.cli import loop
from pydownpour.cli.failures import in_words
import click

async def work():
    print("ready", flush=True)
    try:
        if sys.argv[1] == "thread":
            await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        await asyncio.sleep(600)
    finally:
        print("cleaned", flush=True)

@click.command()
@in_words
def main():
    loop.run(work, hard=True)

main(args=[])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_signal_cleans_up_and_exits_130_even_when_a_thread_holds_on(
    number: signal.Signals, kind: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.read() == b"cleaned\n"
        assert process.wait(60) == 130
        if kind == "task":
            assert process.stderr.read().decode() == f"pydownpour: stopped by {number.name}\n"


JOB = """
import time
import numpy as np
import pydownpour as dp

job = dp.Job(parameters={"w": np.zeros(4096, np.float32)}, optimizer=dp.SGD(lr=0.1),
             data=dp.Work(1_000_000, unit=1))

@job.replica
def train(replica):
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_a_run_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(JOB)
    with subprocess.Popen(
        [sys.executable, "-m", "pydownpour", "run", "slow.py", "--shards", "2"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if b"2 replicas" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert b"stopping" in rest
    assert len(children) == 6, "the roles, and the guard that ends them if the run cannot"
    assert [child for child in children if child.is_running()] == []
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == [
        "coordinator-0.log", "replica-0.log", "replica-1.log", "shard-0.log", "shard-1.log",
    ]  # fmt: skip


def test_a_function_that_raises_is_shown_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(JOB.replace("time.sleep(3600)", "return 1 / 0"))
    done = subprocess.run(
        [sys.executable, "-m", "pydownpour", "run", "broken.py", "--replicas", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    words = (
        r"ZeroDivisionError: division by zero \(broken\.py:\d+ in train\)\. That is the third time"
    )
    assert re.search(words, done.stderr)
    assert "return 1 / 0" in done.stderr
    assert "in train" in done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pydownpour", "--version"], capture_output=True, text=True,
        timeout=60, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == f"pydownpour {pydownpour.__version__}\n"
