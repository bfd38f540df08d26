"""Parameters that count how often each sample was applied; replicas add up among themselves."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import pydownpour as dp

SAMPLES, BATCH = 2000, 5
HOW: Any = os.environ.get("REDUCE", "tree")

job = dp.Job(
    parameters={"counts": np.zeros(SAMPLES, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.HardSync(combine="sum", replicas=4, reduce=HOW),
    data=dp.Work(SAMPLES, unit=20, passes=2),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    async for unit in replica.work():
        for batch in unit.batches(BATCH):
            gradient = np.zeros(SAMPLES, np.float32)
            gradient[batch] = -1.0
            time.sleep(0.002)
            await replica.step({"counts": gradient})
