"""An oracle: the final parameters count every push, so a lost or doubled one is seen.

    pydownpour run oracle.py --shards 2 --replicas 4

Unit i pushes a gradient of -1 at element i and 0 elsewhere, and SGD with lr=1 subtracts it: element
i then says how often unit i was applied. Small whole numbers are exact in float32, so whatever the
order, after ``passes`` passes every element is ``passes`` when each push counted once. A replica
that dies between its push and the completion of the unit may raise an element above that: the unit
is computed again, "at least once" for samples, and the report's push counts say by how much.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

import pydownpour as dp

COUNT = int(os.environ.get("ORACLE_UNITS", "2000"))
PASSES = int(os.environ.get("ORACLE_PASSES", "2"))

job = dp.Job(
    parameters={"counts": np.zeros(COUNT, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.0),
    data=dp.Work(COUNT, unit=1, passes=PASSES, shuffle=False),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    gradient = np.zeros(COUNT, np.float32)
    async for unit in replica.work():
        gradient[unit.start] = -1.0
        await replica.step({"counts": gradient}, samples=1)
        gradient[unit.start] = 0.0


@job.evaluate
def counted(parameters: dict[str, NDArray[np.float32]]) -> dict[str, float]:
    counts = parameters["counts"]
    return {
        "pushes": float(counts.sum(dtype=np.float64)),
        "least": float(counts.min()),
        "most": float(counts.max()),
        "wrong": float(np.count_nonzero(counts != PASSES)),
    }
