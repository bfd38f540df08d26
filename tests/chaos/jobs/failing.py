"""A replica function that fails in the way CHAOS_FAIL says, at the unit that holds one sample.

raise    an exception
exit     os._exit(7): not a word
cancel   its own CancelledError
sysexit  sys.exit(0), as if it had finished
first    an exception before any unit
"""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np

import pydownpour as dp

UNITS, UNIT = 6, 4
CORRUPT = 13
"""The sample that nobody can compute: it is in unit 3."""
HOW = os.environ.get("CHAOS_FAIL", "raise")

job = dp.Job(
    parameters={"counts": np.zeros(UNITS * UNIT, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.0),
    data=dp.Work(UNITS * UNIT, unit=UNIT, passes=1, shuffle=False),
    on_error=os.environ.get("CHAOS_ON_ERROR", "stop"),  # type: ignore[arg-type]
)


@job.replica
async def train(replica: dp.Replica) -> None:
    if HOW == "first":
        compute(np.array([CORRUPT]))
    async for unit in replica.work():
        for batch in unit.batches(2):
            await replica.step({"counts": compute(batch)})


def compute(batch: np.ndarray) -> np.ndarray:
    gradient = np.zeros(UNITS * UNIT, np.float32)
    gradient[batch] = -1.0
    if CORRUPT not in batch:
        return gradient
    match HOW:
        case "exit":
            os._exit(7)
        case "cancel":
            raise asyncio.CancelledError
        case "sysexit":
            sys.exit(0)
        case _:
            raise ValueError(f"sample {CORRUPT} is corrupt")
