"""Ends whatever a run leaves, also when the engine was killed and could not do it itself.

A small process beside the engine, which imports nothing of ours. The engine writes the process
groups it starts to its standard input, one a line, and ``-`` before those that have ended. When
that input closes (the engine ended, however), the guard kills these groups and, where /proc tells
every process's environment, all processes that carry the run's mark in theirs: also those that left
their group, as a daemon does. Then it ends.

    python -I -S guard.py MARK
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

VARIABLE = "PYDOWNPOUR_RUN"
"""Environment variable of everything a run starts: its mark, behind those of runs around it."""
ROUNDS_MAX = 100
"""How often it looks for marked processes at most: one it finds may just have forked."""
ROUND_S = 0.01
"""Between two looks: what was killed needs a moment to be gone."""


def main() -> None:
    """Wait for the engine's end, then put an end to the rest."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)  # it outlives what it guards
    groups: dict[int, None] = {}
    for line in sys.stdin:
        group = int(line)
        if group > 0:
            groups[group] = None
        else:
            groups.pop(-group, None)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    mark = sys.argv[1].encode()
    for _ in range(ROUNDS_MAX):
        if not kill_marked(mark):
            return
        time.sleep(ROUND_S)


def kill_marked(mark: bytes) -> bool:
    """Kill every process that carries the mark; False if there was none."""
    found = False
    try:
        entries = os.listdir("/proc")
    except OSError:
        return False
    for entry in entries:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if any(v.startswith(f"{VARIABLE}=".encode()) and mark in v for v in variables):
                os.kill(int(entry), signal.SIGKILL)
                found = True
    return found


if __name__ == "__main__":
    main()
