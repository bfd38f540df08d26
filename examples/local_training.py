"""Replicas that train alone, and meet now and then: DiLoCo, for machines with a slow network.

    pydownpour run local_training.py --shards 1 --replicas 2

Each replica takes twenty steps of AdamW on its own copy, and then one push and one fetch: a
twentieth of the bytes of a push after each step. What it has pushed is how far it went; the shards
go on from the mean of that, with a momentum. The training function is the same as under any policy.
"""

from __future__ import annotations

import mlp

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    optimizer=dp.AdamW(lr=0.003),  # of each replica; the shards' is the policy's
    policy=dp.DiLoCo(every=20),
    data=dp.Work(len(x), unit=150, passes=40),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    """Runs in every replica process. Each ``step`` is one of its own optimizer."""
    async for unit in replica.work():
        for batch in unit.batches(15):
            loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
            await replica.step(grads, loss=loss)


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    """Runs in the coordinator, after each pass."""
    return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}
