"""What unit tests promise: they start no process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest


def test_a_unit_test_that_starts_a_process_is_told_where_it_belongs() -> None:
    with pytest.raises(AssertionError, match="belongs in tests/e2e"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(AssertionError, match="belongs in tests/e2e"):
        os.fork()


def test_also_one_that_awaits_it() -> None:
    """On asyncio's own loop: uvloop starts processes by itself, and async tests run on both."""

    async def start() -> None:
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")

    with pytest.raises(AssertionError, match="belongs in tests/e2e"):
        asyncio.run(start())
