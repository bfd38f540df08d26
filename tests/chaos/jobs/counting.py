"""The oracle: each push of each incarnation raises an element of its own from 0 to 1.

Notes: ``tried i`` before element i is pushed, ``acked n`` once the first n pushes of this
incarnation are acknowledged. So in the end an element is 1 if it was acknowledged, 0 or 1 if it
was only tried, and 0 otherwise; anything else is a lost, doubled or invented push.
"""

from __future__ import annotations

import asyncio

import numpy as np

import pydownpour as dp
from pydownpour import limits
from tests.chaos.jobs.journal import STOP, Journal

REPLICAS, INCARNATIONS, ROOM = 2, 12, 8192
"""Element (replica, incarnation, push) of the parameters."""
BURST = limits.PUSHES_IN_FLIGHT_MAX
"""Pushes without a pause: as many as may be open at once."""

job = dp.Job(
    parameters={"counts": np.zeros((REPLICAS, INCARNATIONS, ROOM), np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=16, local_rate=0.0, in_flight=BURST),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    gradient = np.zeros((REPLICAS, INCARNATIONS, ROOM), np.float32)
    mine = gradient[replica.id - 1, replica.incarnation - 1]
    journal = Journal(replica.id, replica.incarnation)
    for push in range(ROOM):
        if STOP.exists():
            break
        journal.note("tried", push)
        mine[push] = -1.0
        await replica.step({"counts": gradient})
        mine[push] = 0.0
        journal.note("acked", acknowledged(replica))
        if push % BURST == BURST - 1:
            await asyncio.sleep(0.005)
    await replica.flush()
    journal.note("acked", acknowledged(replica))
    while not STOP.exists():
        await replica.fetch()  # also where it hears that the job has failed
        await asyncio.sleep(0.01)


def acknowledged(replica: dp.Replica) -> int:
    """Pushes are settled in their order, so a count says which."""
    counts = replica.statistics()
    assert counts.pushes_refused == 0
    return counts.pushes_acked
