"""Work in units: each sample's push raises its unit's element by one.

Notes: ``step t`` after each step, ``unit number unit`` when a unit is taken. A replica whose
CHAOS_HOLD names a file holds still inside its third step: it notes ``held`` and waits for the
file. CHAOS_SLOW is the factor by which its steps take longer while the file ``slow`` is there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import pydownpour as dp
from tests.chaos.jobs.journal import FOLDER, Journal

UNITS = int(os.environ.get("CHAOS_UNITS", "40"))
UNIT = 4
"""Samples in a unit, one push each."""
PASSES = int(os.environ.get("CHAOS_PASSES", "2"))
STEP_S = 0.002
"""What one gradient takes to compute: sleep, so that cores are not what replicas compete for."""
HOLD_STEP = 3

job = dp.Job(
    parameters={"counts": np.zeros(UNITS, np.float32), "more": np.zeros(5000, np.float32)},
    optimizer=dp.SGD(lr=1.0),
    policy=dp.Downpour(push_every=1, fetch_every=1, local_rate=0.0),
    data=dp.Work(UNITS * UNIT, unit=UNIT, passes=PASSES),
)


@job.replica
async def train(replica: dp.Replica) -> None:
    journal = Journal(replica.id, replica.incarnation)
    hold = os.environ.get("CHAOS_HOLD")
    gradient = {name: np.zeros_like(array) for name, array in replica.parameters.items()}
    async for unit in replica.work():
        journal.note("unit", unit.pass_index, unit.unit)
        for _ in unit.batches(1):
            if hold and replica.steps == HOLD_STEP - 1:
                journal.note("held")
                wait_for(Path(hold))
            time.sleep(STEP_S * slowness())
            gradient["counts"][unit.unit] = -1.0
            await replica.step(gradient)
            gradient["counts"][unit.unit] = 0.0
            journal.note("step", time.monotonic())


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def slowness() -> float:
    factor = float(os.environ.get("CHAOS_SLOW", "1"))
    return factor if (FOLDER / "slow").exists() else 1.0
