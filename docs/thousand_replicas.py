"""The job of the picture in simulation.md: many replicas pull parameters towards a target.

    pydownpour sim docs/thousand_replicas.py --replicas 1000 --json > thousand.json

A hundred steps for each of a thousand replicas, in units of ten. The gradient is that of
a noisy quadratic, so a step costs next to nothing to compute and the loss still tells whether a
thousand replicas, whose gradients are some two thousand updates old, get anywhere.
"""

from __future__ import annotations

import numpy as np

import pydownpour as dp

UNITS, STEPS, LENGTH = 10_000, 10, 512
target = np.linspace(-1.0, 1.0, LENGTH, dtype=np.float32)

job = dp.Job(
    parameters={"w": np.zeros(LENGTH, np.float32)},
    # The step has to be small against one over the staleness, which is about 2,000.
    optimizer=dp.SGD(lr=1e-4),
    data=dp.Work(UNITS * STEPS, unit=STEPS, shuffle=False),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    """Steps along the gradient of half the squared distance to the target, with noise."""
    rng = np.random.default_rng(replica.id)
    noise = rng.normal(0, 0.1, LENGTH).astype(np.float32)
    async for unit in replica.work():
        for _ in unit.batches(1):
            error = replica.parameters["w"] - target
            await replica.step({"w": error + noise}, loss=float(error @ error) / LENGTH)
