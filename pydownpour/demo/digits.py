"""Handwritten digits: what ``pydownpour demo`` runs.

    pydownpour run digits.py --shards 2 --replicas 4

1,797 real images of 8x8 pixels, a perceptron with 64 hidden units, Adagrad on the shards. Test
accuracy is above 0.95 within a few seconds.
"""

from __future__ import annotations

import mlp

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()

job = dp.Job(
    parameters=mlp.init(64, 64, 10),
    # A first accumulator of 0.1 keeps the first steps small, when four replicas push at once.
    optimizer=dp.Adagrad(lr=0.05, initial=0.1),
    # Between fetches each replica moves its own copy too, as the paper has it.
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.05),
    data=dp.Work(len(x), unit=75, passes=40),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    """Runs in every replica process."""
    async for unit in replica.work():  # leased from the coordinator, ends by itself
        for batch in unit.batches(15):
            loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
            await replica.step(grads, loss=loss)  # push and fetch go on in the background


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    """Runs in the coordinator, after each pass."""
    return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}
