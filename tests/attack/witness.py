"""The oracle that runs while a job is attacked: every push of a replica is counted in a place.

Push ``i`` of replica ``r`` raises element ``(r - 1, i % ROOM)`` by exactly one, so in the end the
row of a replica that settled ``n`` pushes is known to the last element: a push that was lost,
doubled, invented or altered on the way leaves a number that is not its own. The notes are what the
replica knew: ``acked n`` after each step, ``settled n`` at its ordinary end.
"""

from __future__ import annotations

import asyncio
import os

import numpy as np
from numpy.typing import NDArray

import pydownpour as dp
from tests.chaos.jobs.journal import STOP, Journal

REPLICAS = 64
"""Rows: more than take part, so that ids of hostile peers have one, too."""
ROOM = 512
"""Places a row; pushes come round to them again."""
PACE_S = float(os.environ.get("WITNESS_PACE_S", "0.005"))

job = dp.Job(
    parameters={"counts": np.zeros((REPLICAS, ROOM), np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=4, local_rate=0.0),
    max_norm=1.0,
)


@job.replica
async def train(replica: dp.Replica) -> None:
    gradient = np.zeros((REPLICAS, ROOM), np.float32)
    mine = gradient[replica.id - 1]
    journal = Journal(replica.id, replica.incarnation)
    push = 0
    while not STOP.exists():
        mine[push % ROOM] = -1.0
        await replica.step({"counts": gradient})
        mine[push % ROOM] = 0.0
        push += 1
        journal.note("acked", replica.statistics().pushes_acked)
        await asyncio.sleep(PACE_S)
    await replica.flush()
    assert replica.statistics().pushes_acked == push
    journal.note("settled", push)


def expected_row(pushes: int) -> NDArray[np.float32]:
    """What a replica's row holds after so many pushes, each counted once."""
    return np.bincount(np.arange(pushes) % ROOM, minlength=ROOM).astype(np.float32)
