"""Whoever watches a run can neither end it nor change its exit code: real pipes and terminals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydownpour.engines.local import environment
from tests.chaos.processes import DEADLINE_S, PROGRAM, Command, status, until

GOOD = """
import os
import time
import numpy as np
import pydownpour as dp

job = dp.Job(
    parameters={"w": np.zeros(3, np.float32)}, optimizer=dp.SGD(lr=1.0), data=dp.Work(4, unit=1)
)

@job.replica
async def train(replica):
    async for unit in replica.work():
        for batch in unit.batches(1):
            await replica.step({"w": np.ones(3, np.float32)}, loss=1.0 / (2 + batch[0]))
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def shell(words: str) -> tuple[str, ...]:
    """What stands before the arguments so that a shell runs them; they are its ``"$@"``."""
    return ("bash", "-c", words, "bash", *PROGRAM)


WATCHERS = {
    "a reader who leaves": 'set -o pipefail; "$@" | head -1',
    "a reader who never was": 'set -o pipefail; "$@" | true',
    "a full device": '"$@" > /dev/full',
    "two full devices": '"$@" > /dev/full 2>&1',
    "no standard input": '"$@" <&-',
    "no standard output": '"$@" >&-',
    "no standard error": '"$@" 2>&-',
    "nothing at all": '"$@" <&- >&- 2>&-',
    "few letters": 'LC_ALL=C PYTHONIOENCODING=latin-1 PYTHONUTF8=0 "$@"',
}


@pytest.mark.parametrize("watcher", WATCHERS)
def test_no_watcher_ends_a_run_or_changes_its_exit_code(folder: Path, watcher: str) -> None:
    (folder / "go").touch()
    with Command(
        "run", "good.py", "--run-folder", "run", program=shell(WATCHERS[watcher]), cwd=folder
    ) as run:
        assert run.wait() == 0, run.said
    assert json.loads((folder / "run" / "report.json").read_text())["state"] == "done"
    assert (folder / "run" / "parameters.safetensors").exists()
    assert "Traceback" not in run.said
    if watcher == "a full device":
        assert run.err == [
            "pydownpour: standard output could not be written (No space left on device); the run "
            "went on without; its files are in run"
        ]


PRINTING = GOOD.replace(
    "await replica.step",
    """print(f"sample {batch[0]} of {replica.id}", flush=True)
            sys.stderr.write("a warning\\n")
            await replica.step""",
).replace("import os", "import os, sys")


def test_what_a_replica_prints_is_shown_with_its_name(folder: Path) -> None:
    (folder / "good.py").write_text(PRINTING)
    (folder / "go").touch()
    with Command("run", "good.py", "--replicas", "1", "--run-folder", "run", cwd=folder) as run:
        assert run.wait() == 0, run.said
    shown = sorted(line for line in run.out if line.startswith("replica-0: "))
    assert shown == [f"replica-0: sample {number} of 1" for number in range(4)]
    log = (folder / "run" / "logs" / "replica-0.log").read_text()
    assert log.count("sample ") == log.count("a warning") == 4


def test_a_log_that_takes_nothing_ends_no_replica_that_prints(folder: Path) -> None:
    (folder / "good.py").write_text(PRINTING)
    (folder / "go").touch()
    (folder / "run" / "logs").mkdir(parents=True)
    (folder / "run" / "logs" / "replica-0.log").symlink_to("/dev/full")
    with Command("run", "good.py", "--replicas", "1", "--run-folder", "run", cwd=folder) as run:
        assert run.wait() == 0, run.said
    assert run.heard("replica-0: sample 3 of 1")


def by_hand(folder: Path, words: str, stack: contextlib.ExitStack) -> list[Command]:
    """A coordinator, a shard and a replica that has joined, each started by a shell."""

    def start(*arguments: str) -> Command:
        return stack.enter_context(Command(*arguments, program=shell(words), cwd=folder))

    roles = [start("coordinator", "good.py", "--shards", "1", "--run-folder", "run")]
    url = roles[0].url
    roles.append(start("shard", "--coordinator", url))
    roles.append(start("replica", "good.py", "--coordinator", url))
    until(lambda: status(url)["replicas"], "a replica")
    return roles


def test_roles_by_hand_outlive_whoever_read_their_words(folder: Path) -> None:
    """The coordinator's report finds a pipe without a reader, and errors a full device."""
    with contextlib.ExitStack() as stack:
        roles = by_hand(folder, 'exec "$@" > >(head -1) 2> /dev/full', stack)
        (folder / "go").touch()
        assert [role.wait() for role in roles] == [0, 0, 0], [role.said for role in roles]
    assert json.loads((folder / "run" / "report.json").read_text())["state"] == "done"


# -- signals that were ignored before we came ------------------------------------------------------

IGNORED = (signal.SIGHUP, signal.SIGINT)


IGNORING = 'trap "" HUP INT; exec "$@"'


def test_a_run_that_ignores_hangups_and_ctrl_c_goes_on(folder: Path) -> None:
    with Command(
        "run", "good.py", "--run-folder", "run", "--json", program=shell(IGNORING), cwd=folder
    ) as run:
        until(lambda: status(run.url)["replicas"], "a replica")
        for number in IGNORED:
            run.signal(number)  # to it alone: its children have sessions of their own
        (folder / "go").touch()
        assert run.wait() == 0, run.said
    assert run.report["state"] == "done"


def test_each_role_that_ignores_hangups_and_ctrl_c_goes_on(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        roles = by_hand(folder, IGNORING, stack)
        for role in roles:
            for number in IGNORED:
                role.signal(number)
        (folder / "go").touch()
        assert [role.wait() for role in roles] == [0, 0, 0], [role.said for role in roles]


# -- terminals -------------------------------------------------------------------------------------

OWN_TERMINAL = (
    "import fcntl, signal, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "if sys.argv.pop(1) == 'ignore':\n"
    "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    "from pydownpour.cli import main\n"
    "main()\n"
)


class Terminal:
    """A run on a terminal of its own, which can hang up."""

    def __init__(self, folder: Path, hangups: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        values = {**environment(None), "TERM": "xterm", "COLUMNS": "100", **env}
        del values["PYDOWNPOUR_SUPERVISED"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, hangups, "run", "good.py", "--run-folder", "run"],
            stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=values, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = b""
        self._hung_up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Ends when the last process has closed the terminal, or when somebody hangs up.
        with contextlib.suppress(OSError):
            while not self._hung_up.is_set() and (data := os.read(self.master, 4096)):
                self.shown += data
        os.close(self.master)

    def hang_up(self) -> None:
        self._hung_up.set()  # the reader closes it behind the next thing the run draws
        self._reader.join(DEADLINE_S)

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code


@contextlib.contextmanager
def terminal(folder: Path, hangups: str, **env: str) -> Iterator[Terminal]:
    run = Terminal(folder, hangups, **env)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.wait()


def test_a_terminal_that_goes_away_ends_no_run_that_ignores_hangups(folder: Path) -> None:
    with terminal(folder, "ignore") as run:
        until(lambda: b"samples/s" in run.shown, "the display")
        run.hang_up()
        (folder / "go").touch()
        assert run.wait() == 0
    assert json.loads((folder / "run" / "report.json").read_text())["state"] == "done"


def test_a_terminal_that_goes_away_stops_any_other_run_and_its_results_are_kept(
    folder: Path,
) -> None:
    with terminal(folder, "obey") as run:
        until(lambda: b"samples/s" in run.shown, "the display")
        run.hang_up()
        (folder / "go").touch()
        assert run.wait() == 130
    assert (folder / "run" / "parameters.safetensors").exists()


def test_a_terminal_of_few_letters_shows_the_losses_in_ascii(folder: Path) -> None:
    with terminal(folder, "obey", LC_ALL="C", PYTHONIOENCODING="latin-1", PYTHONUTF8="0") as run:
        until(lambda: b"loss" in run.shown, "the losses")
        (folder / "go").touch()
        assert run.wait() == 0
    assert run.shown.isascii()
    assert b"good: done" in run.shown
