"""Parameters that count how often each sample was applied, under the policy that POLICY names.

Replicas begin when as many are there as REPLICAS says (they leave files in FOLDER). With DIES the
first one kills itself at that step.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

import pydownpour as dp

SAMPLES, STEP_S = 300, 0.002
POLICIES: dict[str, dp.Policy] = {
    "ssp": dp.SSP(slack=2, local_rate=0.0),
    "softsync": dp.Softsync(n=2, combine="sum"),
    "staleness_aware": dp.StalenessAware(),
    "bfasgd": dp.BFASGD(c_fetch=1.0, deviation=1.0),
}

job = dp.Job(
    parameters={"counts": np.zeros(SAMPLES, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=POLICIES[os.environ["POLICY"]],
    data=dp.Work(SAMPLES, unit=4),
)


@job.replica
def train(replica: dp.BlockingReplica) -> None:
    folder, dies = Path(os.environ["FOLDER"]), int(os.environ.get("DIES", "-1"))
    (folder / f"here-{replica.id}").touch()
    while len(list(folder.glob("here-*"))) < int(os.environ["REPLICAS"]):
        time.sleep(STEP_S)
    steps = 0
    for unit in replica.work():
        for batch in unit.batches(2):
            if replica.id == 1 and steps == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            gradient = np.zeros(SAMPLES, np.float32)
            gradient[batch] = -1.0
            time.sleep(STEP_S)
            replica.step({"counts": gradient})
            steps += 1
