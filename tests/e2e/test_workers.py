"""Workers that a replica function starts, however the system starts processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.processes import Command

JOB = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pydownpour as dp
from beside import FACTOR

job = dp.Job(
    parameters={"w": np.zeros(20, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    data=dp.Work(4, unit=1, shuffle=False),
)

def compute(sample):
    gradient = np.zeros(20, np.float32)
    gradient[sample] = -FACTOR
    return gradient

@job.replica
def train(replica):
    context = multiprocessing.get_context("METHOD")
    with ProcessPoolExecutor(1, mp_context=context) as workers:
        for unit in replica.work():
            replica.step({"w": workers.submit(compute, int(unit.indices[0])).result(60)})

@job.evaluate
def done(parameters):
    return float(parameters["w"].sum())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_of_the_job_file_run_in_workers_of_a_replica(tmp_path: Path, method: str) -> None:
    (tmp_path / "queue.py").write_text(JOB.replace("METHOD", method))  # a module's name, too
    (tmp_path / "beside.py").write_text("FACTOR = 2.0\n")
    run = Command(
        "run", "queue.py", "--replicas", "1", "--run-folder", "out", "--json", cwd=tmp_path
    )
    with run:
        assert run.wait() == 0, run.said
    assert run.report["accuracy"] == 8.0
