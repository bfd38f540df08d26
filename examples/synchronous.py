"""The digits again, in synchronous rounds: each update is the mean of one gradient a replica.

    pydownpour run synchronous.py --shards 2 --replicas 4

It is SGD with the minibatches of all replicas as one: no gradient is stale, and everybody waits for
the slowest. Compare its rate and its accuracy with ``digits.py``; kill one of its processes, and
the others go on.
"""

from __future__ import annotations

import mlp

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    optimizer=dp.Adagrad(lr=0.05, initial=0.1),
    policy=dp.HardSync(),
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
