"""A replica function with two children: one in its group, one that left it as a daemon does."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

import pydownpour as dp
from tests.chaos.jobs.journal import FOLDER, Journal

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

job = dp.Job(parameters={"w": np.zeros(100, np.float32)}, optimizer=dp.SGD(lr=1.0))


@job.replica
async def train(replica: dp.Replica) -> None:
    for own_session in (False, True):
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=own_session)
        (FOLDER / f"grandchild-{child.pid}").touch()
    journal = Journal(replica.id, replica.incarnation)
    while True:
        await replica.step({"w": np.zeros(100, np.float32)})
        journal.note("step", time.monotonic())
        time.sleep(0.01)
