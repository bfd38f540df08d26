"""Signals of a terminal: at any moment, at any process, they do what a person expects of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.processes import PROGRAM, ROOT, ByHand, Command, events, replica_named, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

JOBS = ROOT / "tests" / "chaos" / "jobs"
COUNTING = JOBS / "counting.py"

EARLY = """
import os, signal, sys, threading
from pydownpour.cli import main
class Interrupt:
    # The first of our own modules that a command imports brings the signal with it.
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
main(["run", "absent.py"])
"""


@pytest.mark.parametrize("module", ["click", "pydownpour.cli.run", "asyncio", "numpy"])
def test_ctrl_c_while_a_command_is_still_being_imported_is_one_line_and_130(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "pydownpour: stopped by SIGINT\n"


def test_ctrl_c_at_a_replica_started_by_hand_is_a_goodbye_and_130(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path, shards=1) as job:
        replica = job.replica()
        until(lambda: pushes(job.url) >= 1, "pushes")
        replica.signal(signal.SIGINT)
        assert replica.wait() == 130
        assert replica.said == "pydownpour: stopped by SIGINT"
        (goodbye,) = until(lambda: events(job.run_folder, "leave"), "its goodbye")
        assert goodbye["reason"] == "stopped", "nobody has to wait for its death"


def pushes(url: str) -> int:
    replica = replica_named(url, "replica-0")
    return int(replica["stats"]["pushes_acked"]) if replica else 0


BLOCKED = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}})
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv({PROGRAM[0]!r}, [*{PROGRAM!r}, *sys.argv[2:]])
"""


@pytest.mark.parametrize("how", ["blocked", "ignored"])
def test_a_run_whose_parent_hides_the_ends_of_children_sees_them(tmp_path: Path, how: str) -> None:
    run = Command(
        "run", JOBS / "units.py", "--replicas", "1", "--run-folder", tmp_path / "run",
        program=(sys.executable, "-c", BLOCKED, how), env={"CHAOS_FOLDER": str(tmp_path)},
    )  # fmt: skip
    with run:
        assert run.wait() == 0, run.said
    assert os.listdir(tmp_path / "run" / "logs")
