"""The job of ``sim-vs-real``: replicas that think for a while and push 1 MB, for real or simulated.

It is a job file; what varies comes from the environment, because real replicas are processes.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any, Final

import numpy as np

from pydownpour.job import Job, Work
from pydownpour.optimizers import SGD
from pydownpour.policy.downpour import Downpour

STEPS: Final = "PYDOWNPOUR_BENCH_STEPS"
"""How many steps all replicas take together."""
OVERLAP: Final = "PYDOWNPOUR_BENCH_OVERLAP"
"""1: push and fetch in the background; 0: wait for both, so that their time shows."""
LENGTH: Final = 1 << 18
THINK_S: Final = 0.03
JITTER: Final = 0.3


def make_job(steps: int, *, overlap: bool) -> Job:
    """A job of so many steps; nothing is computed, a step only takes time."""
    made = Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=SGD(lr=1e-6),
        policy=Downpour(overlap=overlap),
        data=Work(steps, unit=min(10, steps), shuffle=False),
        name="thinking",
    )
    made.replica(train)
    return made


async def train(replica: Any) -> None:
    """Think, push, and again."""
    rng = random.Random(replica.id)
    gradient = {"w": np.full(LENGTH, 1e-3, np.float32)}
    async for unit in replica.work():
        for _ in unit.batches(1):
            await asyncio.sleep(THINK_S * max(0.2, rng.gauss(1.0, JITTER)))
            await replica.step(gradient, samples=1)


job = make_job(int(os.environ.get(STEPS, "20")), overlap=os.environ.get(OVERLAP, "1") == "1")
