"""Writing the final parameters takes longer than Ctrl-C usually does: it has the time it needs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import safetensors.numpy

from pydownpour import limits
from tests.chaos.processes import ROOT, ByHand, Command, gone, replica_named, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

JOB = ROOT / "tests" / "chaos" / "jobs" / "large.py"
SLOW_DISK = ROOT / "tests" / "chaos" / "slow_disk"
WRITES_S = 3.0
"""Twice what an engine gives processes that have nothing to write."""
SIZE = 12_000_000
"""Bytes of the parameters."""
LONG_S = 60.0
"""For a write that shall not be over when the third signal comes."""


def slow_disk(writes_s: float) -> dict[str, str]:
    """The environment of a run whose parameters take so long to write."""
    return {
        "PYTHONPATH": os.pathsep.join((str(SLOW_DISK), str(ROOT))),
        "SLOW_BYTES_PER_S": str(SIZE / writes_s),
    }


def start(folder: Path, writes_s: float = WRITES_S) -> Command:
    env = slow_disk(writes_s)
    run = Command("run", JOB, "--replicas", "1", "--run-folder", folder / "run", env=env)
    until(lambda: replica_named(run.url, "replica-0"), "the replica")
    return run


def after_a_while(run: Command) -> None:
    """A second request is one that comes later than a bouncing key."""
    time.sleep(1.2 * limits.DEFAULT.signals_one_s)
    assert run.is_running


def check_kept(folder: Path) -> None:
    """All that was trained is there."""
    weights = safetensors.numpy.load_file(folder / "run" / "parameters.safetensors")
    assert sum(array.nbytes for array in weights.values()) == SIZE
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["state"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_waits_for_the_parameters_and_says_how_far_they_are(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path) as run:
        run.signal(number)
        run.heard(r"writing the final parameters: \d+\.\d of 12\.0 MB")
        assert run.wait() == 130
        assert run.heard("what was trained is in ")
    check_kept(tmp_path)


def test_two_signals_in_a_moment_are_one_and_a_second_one_only_asks(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.signal(signal.SIGINT)
        run.signal(signal.SIGTERM)
        run.heard("writing the final parameters")
        after_a_while(run)
        run.signal(signal.SIGINT)
        run.heard("still writing what was trained; the next Ctrl-C ends everything at once")
        assert run.wait() == 130
    check_kept(tmp_path)


def test_the_third_ends_everything_at_once_and_promises_nothing(tmp_path: Path) -> None:
    with start(tmp_path, LONG_S) as run:
        processes = run.descendants()
        run.signal(signal.SIGINT)
        run.heard("writing the final parameters")
        for _ in range(2):
            after_a_while(run)
            run.signal(signal.SIGINT)
        assert run.wait() == 130
        gone(processes, "the run's processes")
        assert "what was trained is in" not in run.said
        assert run.heard("neither parameters nor a report were kept; logs are in")
    assert not (tmp_path / "run" / "parameters.safetensors").exists()


def test_by_hand_a_coordinator_has_the_same_time(tmp_path: Path) -> None:
    with ByHand(JOB, tmp_path, shards=1, env=slow_disk(WRITES_S)) as job:
        job.replica()
        until(lambda: replica_named(job.url, "replica-0"), "the replica")
        job.coordinator.signal(signal.SIGINT)
        job.coordinator.wait()
    check_kept(tmp_path)
