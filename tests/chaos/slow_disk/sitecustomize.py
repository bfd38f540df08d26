"""A disk that takes its time, for every process that finds this folder on PYTHONPATH.

What is written whole (parameters, reports) arrives at SLOW_BYTES_PER_S.
"""

from __future__ import annotations

import os
import time
from typing import Any

from pydownpour.storage import files

BYTES_PER_S = float(os.environ["SLOW_BYTES_PER_S"])
write_all: Any = files._write_all


def write_slowly(descriptor: int, data: Any) -> None:
    """As the original, and then the pause of a disk of this speed."""
    write_all(descriptor, data)
    time.sleep(memoryview(data).nbytes / BYTES_PER_S)


files._write_all = write_slowly
