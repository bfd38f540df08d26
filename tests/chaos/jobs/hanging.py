"""A replica function that never comes back, with a child of its own that ignores SIGTERM."""

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
def train(replica: dp.BlockingReplica) -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN])
    (FOLDER / f"grandchild-{child.pid}").touch()
    Journal(replica.id, replica.incarnation).note("hangs")
    time.sleep(600)
