"""The command line with short pauses between restarts, so that ten of them fit a short test."""

from __future__ import annotations

from pydownpour import limits
from pydownpour.cli import main

if __name__ == "__main__":
    limits.RESTART_BACKOFF_S = limits.RESTART_BACKOFF_MAX_S = 0.05  # type: ignore[misc]
    main()
