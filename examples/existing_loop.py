"""An existing training loop joins a running job: ``dp.join`` is all that changes.

Start a job in one terminal, then this as one more trainer in another:

    pydownpour coordinator digits.py --shards 1        (prints URL)
    pydownpour shard --coordinator URL
    python existing_loop.py URL

The coordinator lends the work, so any number of these loops and of ``pydownpour replica``
processes share it. Works the same in a notebook: top-level ``async with`` is fine there.
"""

from __future__ import annotations

import asyncio
import sys

import mlp

import pydownpour as dp
from pydownpour.data import digits


async def main(url: str) -> None:
    x, y, x_test, y_test = digits()
    parameters = mlp.init(64, 64, 10)  # the loop's own; the job's shapes must be the same

    async with dp.join(url, parameters) as replica:
        async for unit in replica.work():
            for batch in unit.batches(16):
                loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
                await replica.step(grads, loss=loss)
        accuracy = mlp.accuracy(replica.parameters, x_test, y_test)
        print(f"{replica.steps} steps here; test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
