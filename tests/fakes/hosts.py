"""A second engine: several hosts, pretended on this one.

Each role has a host of its own: a loopback address, a working folder, and the job file in that
folder and nowhere else. So what a cluster's engine has to do is done: files are shipped, and every
host chooses where it listens.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import ClassVar, final

import msgspec

from pydownpour.engines.base import Engine, Exit, OnEvent, Process, Role
from pydownpour.engines.local import environment
from pydownpour.engines.logs import for_its_owner


@final
class HostsEngine(Engine):
    """Each role on an address and in a folder of its own."""

    name: ClassVar[str] = "hosts"

    def __init__(self) -> None:
        self._hosts = self._file = Path()
        self._token: str | None = None
        self._running: list[_Remote] = []
        self._numbers = itertools.count()

    async def open(self, run_folder: Path, token: str | None) -> None:
        """Make room for the hosts' folders."""
        self._hosts, self._token = run_folder / "hosts", token
        self._hosts.mkdir()

    async def ship(self, file: str) -> str:
        """Each host gets a copy in its working folder."""
        self._file = Path(file).absolute()
        return self._file.name

    def bind(self, shard: int, wanted: str) -> str:
        """An address of its own."""
        return f"127.0.1.{1 + shard}:0"

    async def start(self, role: Role, on_event: OnEvent) -> Process:
        """Start a role in its host's folder."""
        folder = self._hosts / f"{role.title}.{next(self._numbers)}"
        folder.mkdir()
        for file in self._file.parent.glob("*.py"):  # the job's, and what it imports
            shutil.copy(file, folder)
        with open(folder / "log", "ab", opener=for_its_owner) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pydownpour", *role.arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**environment(self._token), **role.environment}, cwd=folder,
            )  # fmt: skip
        remote = _Remote(role, process, folder / "log", on_event)
        self._running.append(remote)
        return remote

    def pause(self) -> None:
        """Nobody asks for it here."""

    def resume(self) -> None:
        """Nobody asks for it here."""

    async def close(self) -> None:
        """Kill and reap all."""
        for remote in self._running:
            remote.stop(kill=True)
        await asyncio.gather(*(remote.wait() for remote in self._running))


@final
class _Remote(Process):
    def __init__(
        self, role: Role, process: asyncio.subprocess.Process, log: Path, on_event: OnEvent
    ) -> None:
        super().__init__(role)
        self._process, self._log = process, log
        self._reading = asyncio.create_task(self._read(on_event))

    async def _read(self, on_event: OnEvent) -> Exit:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            on_event(msgspec.json.decode(line))
        return Exit(await self._process.wait())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return os.fspath(self._log)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._reading)

    def stop(self, *, kill: bool = False) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def tail(self) -> list[str]:
        return self._log.read_text().splitlines()[-20:]
