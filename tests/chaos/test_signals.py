"""Signals of a terminal: at any moment, at any process, they do what a person expects of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chaos.jobs.journal import read_notes
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


def steps(folder: Path) -> list[int]:
    """How many steps each replica has noted."""
    return [len(read_notes(path)) for path in sorted(folder.glob("journal-*"))]


def test_ctrl_z_stops_the_whole_job_and_fg_continues_it(tmp_path: Path) -> None:
    run = Command(
        "run", JOBS / "family.py", "--replicas", "2", "--run-folder", tmp_path / "run",
        env={"CHAOS_FOLDER": str(tmp_path)}, new_session=False,
    )  # fmt: skip
    with run:
        until(lambda: len(steps(tmp_path)) == 2 and min(steps(tmp_path)) > 2, "steps of both")
        roles = [p for p in run.descendants() if "guard.py" not in " ".join(p.cmdline())]
        assert len(roles) == 4 + 4
        daemons = [p for p in roles if os.getsid(p.pid) == p.pid and p.cmdline()[1] == "-c"]
        run.signal(signal.SIGTSTP)
        ours = [p for p in roles if p not in daemons]
        until(lambda: all(p.status() == psutil.STATUS_STOPPED for p in ours), "the job to stop")
        until(lambda: psutil.Process(run.pid).status() == psutil.STATUS_STOPPED, "run to stop")
        before = steps(tmp_path)
        assert steps(tmp_path) == before
        run.signal(signal.SIGCONT)
        until(lambda: min(map(int.__sub__, steps(tmp_path), before)) > 2, "more steps of both")
        run.signal(signal.SIGINT)
        assert run.wait() == 130
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["state"], report["reason"]) == ("stopped", "stopped: stopped by the operator")
    assert [replica["incarnations"] for replica in report["replicas"]] == [1, 1]
