"""How long ``import pydownpour`` takes beyond numpy: the median of several fresh interpreters.

Prints the figure; the goal is a matter of record, not a gate, because CI machines are noisy. What
is a gate: importing the package must not pull in the heavy parts at all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

RUNS = 7
GOAL_S = 0.15
HEAVY = ("aiohttp", "rich", "click", "uvloop")
PROBE = f"""
import json, sys, time
import numpy
start = time.perf_counter()
import pydownpour
seconds = time.perf_counter() - start
print(json.dumps([seconds, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def main() -> int:
    """Measure and print; 1 if a heavy module came along."""
    seconds: list[float] = []
    heavy: list[str] = []
    for _ in range(RUNS):
        out = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True)
        took, heavy = json.loads(out.stdout)
        seconds.append(took)
    print(
        f"import pydownpour beyond numpy: {statistics.median(seconds):.3f} s "
        f"(median of {RUNS}, best {min(seconds):.3f}; goal {GOAL_S})"
    )
    if heavy:
        print(f"it imports {', '.join(heavy)}, which should load when first used", file=sys.stderr)
    return 1 if heavy else 0


if __name__ == "__main__":
    sys.exit(main())
