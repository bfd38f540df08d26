"""What a push costs a world does not grow with how many replicas there are: counted, not timed."""

from __future__ import annotations

import cProfile
from collections import Counter

import numpy as np

import pydownpour as dp

BEFORE, COUNTED, AFTER = 3, 20, 3
"""Pushes of each replica: while others join, in the middle, and while others leave."""
FEW, MANY = 10, 40


def calls_a_push(replicas: int) -> Counter[str]:
    """How often each function is called, Python's and C's, in a calm world where all push."""
    gradients = {"w": np.zeros(1000, np.float32)}
    pushes = BEFORE + COUNTED + AFTER
    job = dp.Job(
        parameters=gradients, optimizer=dp.SGD(lr=1.0), data=dp.Work(pushes * replicas, unit=pushes)
    )
    profile, steps = cProfile.Profile(), 0

    @job.replica
    async def train(replica: dp.Replica) -> None:
        nonlocal steps
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(gradients)
                steps += 1
                if steps == BEFORE * replicas:
                    profile.enable()
                if steps == (BEFORE + COUNTED) * replicas:
                    profile.disable()

    report = dp.simulate(job, replicas=replicas, shards=2, seed=1)
    assert (report["failure"], report["violations"]) == ("", [])
    assert report["pushes"]["applied"] == pushes * replicas
    calls: Counter[str] = Counter()
    for entry in profile.getstats():
        calls[str(entry.code)] += entry.callcount
    return Counter({name: count / (COUNTED * replicas) for name, count in calls.items()})


def test_nothing_is_called_more_often_for_each_push_where_more_replicas_push() -> None:
    """Whatever looks at each replica with each push, or heartbeat, is called so much more often."""
    few, many = calls_a_push(FEW), calls_a_push(MANY)
    assert few.total() > 1000
    grown = {
        name: (few[name], count) for name, count in many.items() if count > 1.1 * few[name] + 0.5
    }
    assert grown == {}
