"""Real processes of a job, started, watched, killed and always reaped.

Nothing here waits for a length of time: ``until`` polls a condition, and its deadline is only
there so that a fault ends a test in words.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from pydownpour.engines.local import environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "pydownpour")
DEADLINE_S = 60.0
"""Far beyond anything a healthy job needs, below pytest's own timeout."""
POLL_S = 0.01
TOKEN = "open sesame"
"""What every process of these jobs has in its environment, unless a test says otherwise."""


def until(condition: Callable[[], Any], what: str, *, deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"after {deadline_s:g} s: still no {what}"
        time.sleep(POLL_S)


QUICK = ("--limit", "restart_backoff_s=0.05", "--limit", "restart_backoff_max_s=0.05")
"""Short pauses between restarts, so that ten of them fit a short test."""


class Command:
    """One process, its output read line by line. A context manager that leaves nothing behind.

    Args:
        arguments: Of ``pydownpour``.
        env: Added to the environment, which has the token.
        program: What stands before the arguments.
        cwd: The current folder; job files find ``tests`` from the checkout's.
        new_session: It leads a session of its own. Where it does, nobody could continue it, and
            the system ignores Ctrl-Z.
    """

    def __init__(
        self,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        program: tuple[str, ...] = PROGRAM,
        cwd: Path = ROOT,
        new_session: bool = True,
    ) -> None:
        # As the engine's children, but supervised by nobody.
        values = {**environment(TOKEN), **(env or {})}
        del values["PYDOWNPOUR_SUPERVISED"]
        self.process = subprocess.Popen(
            [*program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=values,
            cwd=cwd,
            start_new_session=new_session,
            # A group of its own all the same: one whose parent is not in it can be stopped.
            process_group=None if new_session else 0,
        )
        self.pid = self.process.pid
        self.out: list[str] = []
        self.err: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=_read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exc: object) -> None:
        children = self.descendants()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for reader in self._readers:
            reader.join(DEADLINE_S)

    def descendants(self) -> list[psutil.Process]:
        """Everything it started and that still runs."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, once everything it said was read."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"pid {self.pid} did not end within {deadline_s:g} s; it said:\n{self.said}"
            ) from None
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """All its output so far."""
        return "\n".join([*self.out, *self.err])

    def heard(self, pattern: str) -> re.Match[str]:
        """Wait for a line on either stream.

        The process may have ended: then what it said must contain the pattern.
        """

        def found() -> re.Match[str] | None:
            running = self.is_running
            match = re.search(pattern, self.said)
            assert match or running, f"it ended without saying {pattern!r}:\n{self.said}"
            return match

        match: re.Match[str] = until(found, f"line {pattern!r} in\n{self.said}")
        return match

    @property
    def url(self) -> str:
        """Where the coordinator, or this shard, listens."""
        return self.heard(r"(https?://[\d.:]+)")[1]

    @property
    def report(self) -> dict[str, Any]:
        """The last line of standard output, once it has ended."""
        report: dict[str, Any] = json.loads(self.out[-1])
        return report


def _read(stream: IO[str], lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))


def status(url: str, token: str = TOKEN) -> dict[str, Any]:
    """What the coordinator says of the job."""
    return _ask(url, "GET", "/v1/status", None, token)


def stop(url: str) -> None:
    """End the job early, as an operator would."""
    _ask(url, "POST", "/v1/stop", b'{"reason": "enough"}', TOKEN)


def _ask(url: str, method: str, path: str, body: bytes | None, token: str) -> dict[str, Any]:
    host = url.removeprefix("http://")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with contextlib.closing(http.client.HTTPConnection(host, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, body=body, headers=headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


def replica_named(url: str, name: str) -> dict[str, Any] | None:
    """One replica of the job's status."""
    return next((r for r in status(url)["replicas"] if r["name"] == name), None)


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """The events of one kind that are in the run folder so far."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    listed = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in listed if entry["event"] == event]


def gone(processes: list[psutil.Process], what: str) -> None:
    """Wait until none of these processes runs (a zombie that nobody reaps has ended)."""
    try:
        until(lambda: not [p for p in processes if _runs(p)], f"end of {what}: {processes}")
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class ByHand:
    """A job whose processes this test starts itself: coordinator, shards, then replicas.

    Args:
        file: The job file.
        folder: For the run folder, and what the job's own functions write (CHAOS_FOLDER).
        shards: Shard processes. 0: the test starts two itself.
        env: Added to every process's environment.
        options: Added to the command lines of coordinator and shards.
        program: What stands before the arguments of every command.
        bind: Where the coordinator listens; any free port of 127.0.0.1 unless told.
    """

    def __init__(
        self,
        file: Path,
        folder: Path,
        *,
        shards: int = 2,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        program: tuple[str, ...] = PROGRAM,
        bind: str = "",
    ) -> None:
        self._program, self._bind = program, ("--bind", bind) if bind else ()
        self.file, self.folder, self.run_folder = file, folder, folder / "run"
        self._env = {"CHAOS_FOLDER": str(folder), **(env or {})}
        self._stack = contextlib.ExitStack()
        self._count, self._options = shards, options
        self.shards: list[Command] = []
        self.replicas: list[Command] = []

    def __enter__(self) -> ByHand:
        with contextlib.ExitStack() as stack:
            self.coordinator = stack.enter_context(
                self._command(
                    "coordinator", self.file, "--shards", str(self._count or 2),
                    "--run-folder", self.run_folder, *self._bind, *self._options,
                )
            )  # fmt: skip
            self.url = self.coordinator.url
            self._stack = stack.pop_all()
        for _ in range(self._count):
            self.shard()
        return self

    def _command(self, *arguments: str | os.PathLike[str], **env: str) -> Command:
        return Command(*arguments, env={**self._env, **env}, program=self._program)

    def shard(self, *options: str) -> Command:
        """Start a shard."""
        command = self._command("shard", "--coordinator", self.url, *self._options, *options)
        self.shards.append(self._stack.enter_context(command))
        return command

    def replica(self, *options: str, coordinator: str = "", **env: str) -> Command:
        """Start a replica, named replica-0, replica-1, ... unless the options say so.

        ``coordinator`` is its URL, where that is another than the coordinator's own.
        """
        name = () if "--name" in options else ("--name", f"replica-{len(self.replicas)}")
        command = self._command(
            "replica", self.file, "--coordinator", coordinator or self.url, *name, *options, **env
        )
        self.replicas.append(self._stack.enter_context(command))
        return command

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def finish(self) -> dict[str, Any]:
        """Wait for the job's own end; every process that still ran ended well."""
        assert self.coordinator.wait() == 0, self.coordinator.said
        for shard in self.shards:
            assert shard.wait() == 0, shard.said
        return self.coordinator.report


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
