"""The other processes of a measurement, seen from this one.

A child prints one JSON line when it is ready, answers each JSON line on its standard input with
one on its standard output, and ends when its standard input closes: it cannot outlive us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any, final

_alive: dict[int, Child] = {}

CHILD_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""BLAS threads spin; a server computes nothing with BLAS."""
READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0
LINE_SIZE_MAX = 1 << 20


@final
class Child:
    """A process of ours in one role; an async context manager.

    Args:
        role: One of the roles in ``peers``.
        settings: Its settings, as JSON.
    """

    def __init__(self, role: str, **settings: Any) -> None:
        self._role, self._settings = role, settings
        self._process: asyncio.subprocess.Process | None = None
        self.ready: dict[str, Any] = {}
        """What the child said when it was ready."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Child:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pydownpour.bench.peers",
            self._role,
            json.dumps(self._settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **CHILD_ENVIRONMENT},
            limit=LINE_SIZE_MAX,
        )
        _alive[self.pid] = self
        try:
            self.ready = await self._answer()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _alive.pop(process.pid, None)
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def ask(self, **question: Any) -> dict[str, Any]:
        """Send one line, wait for one line."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        return await self._answer()

    async def last(self) -> dict[str, Any]:
        """The line it says by itself before it ends."""
        return await self._answer(timeout_s=None)

    async def _answer(self, timeout_s: float | None = READY_TIMEOUT_S) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise RuntimeError(f"the bench's {self._role} process ended with code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def pids() -> tuple[int, ...]:
    """Process ids of all children that live."""
    return tuple(_alive)
