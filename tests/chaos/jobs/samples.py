"""Each sample's parameter counts how often it was applied, whatever the policy accrues.

CHAOS_PUSH_EVERY is the steps between two pushes; CHAOS_POLICY=hardsync: synchronous rounds.
"""

from __future__ import annotations

import os
import time

import numpy as np

import pydownpour as dp

SAMPLES = 600
PASSES = 2
STEP_S = 0.004
"""What one gradient takes to compute: long enough for kills to strike in the middle of work."""

POLICY: dp.Downpour | dp.HardSync = dp.Downpour(
    push_every=int(os.environ.get("CHAOS_PUSH_EVERY", "7")), local_rate=0.0
)
if os.environ.get("CHAOS_POLICY") == "hardsync":
    POLICY = dp.HardSync(combine="sum")

job = dp.Job(
    parameters={"counts": np.zeros(SAMPLES, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=POLICY,
    data=dp.Work(SAMPLES, unit=4, passes=PASSES),
)


@job.replica
def train(replica: dp.BlockingReplica) -> None:
    for unit in replica.work():
        for batch in unit.batches(2):
            gradient = np.zeros(SAMPLES, np.float32)
            gradient[batch] = -1.0
            time.sleep(STEP_S)
            replica.step({"counts": gradient})
