"""Row: how long ``import pydownpour`` takes beyond numpy."""

from __future__ import annotations

import subprocess
import sys

from pydownpour.bench.rows import Row, constant_row
from pydownpour.bench.scale import Scale

BUDGET_MS = 150.0
PROGRAM = """
import time, numpy
began = time.perf_counter()
import pydownpour
print((time.perf_counter() - began) * 1e3)
"""


async def imports(scale: Scale) -> list[Row]:
    """In a fresh interpreter each time, compiled files warm. Others' CPU time is not known here."""
    times = []
    for _ in range(scale.rounds + 1):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    note = "the budget; a fresh interpreter in which numpy is imported already"
    return [constant_row("import", times[1:], BUDGET_MS, unit="ms", note=note)]
