"""Three policies one after the other: a warm start alone, a slack, and then nobody waits.

    pydownpour run phases.py --shards 2 --replicas 4

The first passes decide the most, so one replica takes them alone, and then all of them within a
few steps of each other; later gradients are small, and may be stale. The report says when each
phase began. A running job can also be switched by hand: ``pydownpour policy URL ssp --slack 1``.
"""

from __future__ import annotations

import mlp

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    optimizer=dp.Adagrad(lr=0.05, initial=0.1),
    policy=dp.Phases(
        (dp.Downpour(local_rate=0.0, warm_start=len(x)), len(x)),
        (dp.SSP(slack=3), 10 * len(x)),
        dp.Downpour(local_rate=0.0),
    ),
    data=dp.Work(len(x), unit=75, passes=30),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    """Runs in every replica process; it does not know which policy it obeys."""
    async for unit in replica.work():
        for batch in unit.batches(15):
            loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
            await replica.step(grads, loss=loss)


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    """Runs in the coordinator, after each pass."""
    return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}
