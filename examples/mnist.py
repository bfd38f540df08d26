"""Whole MNIST: 60,000 images, a perceptron with 128 hidden units, five passes.

    pydownpour run mnist.py --shards 2 --replicas 4

Test accuracy is above 0.97 after the fifth pass. Needs ``mnist.npz``: the error says how to get it
when it is not in PYDOWNPOUR_DATA or ../shared/data.
"""

from __future__ import annotations

import mlp
import numpy as np

import pydownpour as dp
from pydownpour.data import mnist

x, y, x_test, y_test = mnist()  # bytes; each batch is scaled when it is used


def scaled(images: mlp.Bytes) -> mlp.Floats:
    return images.astype(np.float32) / np.float32(255)


job = dp.Job(
    parameters=mlp.init(784, 128, 10),
    optimizer=dp.Adagrad(lr=0.1, initial=1.0),
    # Between fetches each replica moves its own copy too, as the paper has it.
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.05),
    data=dp.Work(len(x), unit=512, passes=5),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    async for unit in replica.work():
        for batch in unit.batches(32):
            loss, grads = mlp.value_and_grad(replica.parameters, scaled(x[batch]), y[batch])
            await replica.step(grads, loss=loss)


@job.evaluate
def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
    return {"accuracy": mlp.accuracy(parameters, scaled(x_test), y_test)}
