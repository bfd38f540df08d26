"""Parameters of 12 MB in one array, and steps until somebody ends them."""

from __future__ import annotations

import asyncio

import numpy as np

import pydownpour as dp

job = dp.Job(parameters={"w": np.zeros(3_000_000, np.float32)}, optimizer=dp.SGD(lr=1.0))


@job.replica
async def train(replica: dp.Replica) -> None:
    gradient = {"w": np.ones(3_000_000, np.float32)}
    while True:
        await replica.step(gradient)
        await asyncio.sleep(0.05)
