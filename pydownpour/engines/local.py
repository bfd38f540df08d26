"""The local engine: every role is a child process of this one.

Each child leads its own process group, so a Ctrl-C in the terminal reaches the engine alone, which
ends the children in order, and so a child can be stopped, continued and killed together with
whatever it started. Its standard output is the channel of ``child``, its standard error a file in
the run folder. A ``guard`` ends what is left when this process ends, however it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, final

import msgspec

from pydownpour.engines import guard, logs
from pydownpour.engines.base import Engine, Exit, OnEvent, Process, Role
from pydownpour.engines.child import SUPERVISED
from pydownpour.errors import JobFailed
from pydownpour.limits import KIB, Limits
from pydownpour.storage.files import FOLDER_MODE
from pydownpour.storage.rundir import LOGS

TOKEN_VARIABLE = "PYDOWNPOUR_TOKEN"
"""How a token travels to children: a command line can be read by every user of the machine."""

log = logging.getLogger(__name__)

BLAS_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Set to 1 in children: many processes with many spinning threads each slow one another down."""


_PROGRAM = Path(__file__).resolve().parents[1] / "__main__.py"
"""What children run: the very package that we are, not one that their current folder may hold."""


@final
class LocalEngine(Engine):
    """Child processes; their logs are in the run folder's ``logs``.

    Args:
        command: What stands before a role's arguments; tests put their own programs here.
    """

    name: ClassVar[str] = "local"

    def __init__(self, command: Sequence[str] = ()) -> None:
        self._command = tuple(command) or (sys.executable, "-P", str(_PROGRAM))
        self._mark = secrets.token_hex(16)
        self._logs = Path()
        self._environment: dict[str, str] = {}
        self._running: set[_Child] = set()
        self._guard: asyncio.subprocess.Process | None = None
        self._cutting: asyncio.Task[None] | None = None

    async def start(self, role: Role, on_event: OnEvent) -> Process:
        """Start a child.

        Raises:
            JobFailed: no more processes, no such program, a log that cannot be written.
        """
        path = self._logs / f"{role.title}.log"
        try:
            path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            with open(path, "ab", opener=logs.for_its_owner) as log:
                making = asyncio.create_task(self._spawn(role, log))
                try:
                    process = await asyncio.shield(making)
                except asyncio.CancelledError:
                    # A child half made is still a child: take it in, so that leaving reaps it.
                    self._take(_Child(role, await making, path, on_event, self.limits))
                    raise
        except OSError as error:
            raise JobFailed(
                f"cannot start {role.title}: {error.strerror or error}", role=role.title
            ) from error
        return self._take(_Child(role, process, path, on_event, self.limits))

    def _take(self, child: _Child) -> _Child:
        self._running.add(child)
        self._tell_guard(child.pid)
        child.reader.add_done_callback(lambda _: self._ended(child))
        return child

    def _ended(self, child: _Child) -> None:
        self._running.discard(child)
        self._tell_guard(-child.pid)

    def pause(self) -> None:
        """Stop every child, and what it started."""
        for child in self._running:
            child.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        for child in self._running:
            child.signal_group(signal.SIGCONT)

    async def open(self, run_folder: Path, token: str | None) -> None:
        """Start the guard.

        Raises:
            JobFailed: no more processes.
        """
        self._logs = run_folder / LOGS
        self._environment = environment(token, mark=self._mark)
        try:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", guard.__file__, self._mark,
                stdin=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise JobFailed(f"cannot start a process: {error.strerror or error}") from error
        self._cutting = asyncio.create_task(self._keep_logs_short(), name="logs")

    async def _keep_logs_short(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.log_look_s)
            for child in list(self._running):
                with contextlib.suppress(OSError):  # said by whoever needs the log
                    await loop.run_in_executor(
                        None, logs.keep_short, Path(child.log), self.limits.log_size_max
                    )

    def _tell_guard(self, group: int) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):  # somebody killed it: we end our children ourselves
                self._guard.stdin.write(f"{group}\n".encode())

    async def _spawn(self, role: Role, log: BinaryIO) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            *role.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**self._environment, **role.environment},
            limit=self.limits.channel_line_size_max,
            start_new_session=True,
        )

    async def close(self) -> None:
        """Kill and reap whatever still runs, even while being cancelled."""
        if self._cutting is not None:
            self._cutting.cancel()
        running = list(self._running)
        for child in running:
            child.stop(kill=True)
        reaping = asyncio.gather(
            *(child.wait() for child in running),
            self._dismiss_guard(running),
            *filter(None, [self._cutting]),
            return_exceptions=True,
        )
        cancelled = False
        while not reaping.done():
            try:
                await asyncio.shield(reaping)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def _dismiss_guard(self, running: list[_Child]) -> None:
        """Once every child has ended: let it end what they left behind, and itself."""
        await asyncio.gather(*(child.wait() for child in running), return_exceptions=True)
        if self._guard is None or self._guard.stdin is None:
            return
        self._guard.stdin.close()
        try:
            async with asyncio.timeout(self.limits.shutdown_s):
                await self._guard.wait()
        except TimeoutError:
            log.warning("the guard of this run is slow to end: pid %d", self._guard.pid)


def environment(token: str | None, *, mark: str = "") -> dict[str, str]:
    """What children see: ours, plus whose they are, the token, and one BLAS thread each."""
    marks = [*filter(None, [os.environ.get(guard.VARIABLE), mark])]
    values = {
        **{name: "1" for name in BLAS_VARIABLES if name not in os.environ},
        **os.environ,
        SUPERVISED: str(os.getpid()),
        **({guard.VARIABLE: ":".join(marks)} if marks else {}),
        "PYTHONUNBUFFERED": "1",
    }
    # A token that the engine itself does not use would lock it out of its own job.
    values.pop(TOKEN_VARIABLE, None)
    if token is not None:
        values[TOKEN_VARIABLE] = token
    return values


class _Child(Process):
    """One child and the task that reads its channel until it has ended."""

    def __init__(
        self,
        role: Role,
        process: asyncio.subprocess.Process,
        log: Path,
        on_event: OnEvent,
        limits: Limits,
    ) -> None:
        super().__init__(role)
        self._limits = limits
        self._process = process
        self._log = log
        self._on_event = on_event
        self.reader = asyncio.create_task(self._read(), name=f"{role.title} channel")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return str(self._log)

    async def wait(self) -> Exit:
        return await asyncio.shield(self.reader)

    async def _read(self) -> Exit:
        lines = asyncio.create_task(self._lines(), name=f"{self.role.title} lines")
        code = await self._process.wait()
        # Whatever it started ends with it; also, a grandchild could hold the channel open.
        self.signal_group(signal.SIGKILL)
        await asyncio.wait([lines], timeout=self._limits.shutdown_s)
        lines.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lines
        if self._process.stdin is not None:
            self._process.stdin.close()
        return Exit(code)

    async def _lines(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than the limit: no message of ours
                continue
            if not line:
                return
            with contextlib.suppress(msgspec.DecodeError):
                message = msgspec.json.decode(line)
                if isinstance(message, dict):
                    self._on_event(message)

    def stop(self, *, kill: bool = False) -> None:
        if self._process.returncode is not None:
            return
        if kill:
            self.signal_group(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to it and to all it started that did not leave its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def tail(self) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16 * KIB))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return text.rstrip().splitlines()[-self._limits.log_tail_lines :]
