"""A job of 8 MB whose parameters count the samples: twelve samples, each adds one everywhere."""

from __future__ import annotations

import numpy as np

import pydownpour as dp

job = dp.Job(
    parameters={"w": np.zeros(2_000_000, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.0),
    data=dp.Work(12, unit=2),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    gradient = {"w": np.full(2_000_000, -1.0, np.float32)}
    async for unit in replica.work():
        for _ in unit.batches(1):
            await replica.step(gradient)


@job.evaluate
def counted(parameters: dict[str, np.ndarray]) -> dict[str, float]:
    return {"least": float(parameters["w"].min()), "most": float(parameters["w"].max())}
