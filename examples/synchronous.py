"""The digits again, in synchronous rounds: each update is the mean of one gradient a replica.

    pydownpour run synchronous.py --shards 2 --replicas 4
    REDUCE=tree pydownpour run synchronous.py --replicas 4
    REDUCE=ring pydownpour run synchronous.py --replicas 4

It is SGD with the minibatches of all replicas as one: no gradient is stale, and everybody waits for
the slowest. Compare its rate and its accuracy with ``digits.py``; kill one of its processes, and
the others go on. In a tree or a ring replicas add up their gradients among themselves, and shards
get one a round instead of one of each: the result is the same but for the last bits, and the report
says under ``among_replicas`` where the bytes have gone.
"""

from __future__ import annotations

import os
from typing import Any

import mlp

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()

REDUCE: Any = os.environ.get("REDUCE", "shards")

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    optimizer=dp.Adagrad(lr=0.05, initial=0.1),
    policy=dp.HardSync(reduce=REDUCE),
    data=dp.Work(len(x), unit=75, passes=30),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    """Runs in every replica process."""
    async for unit in replica.work():
        for batch in unit.batches(15):
            loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
            await replica.step(grads, loss=loss)  # returns with the parameters of the next round


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    """Runs in the coordinator, after each pass."""
    return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}
