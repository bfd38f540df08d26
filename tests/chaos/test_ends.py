"""However a run ends, it says why, with the right exit code, and no process stays behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.processes import (
    ROOT,
    ByHand,
    Command,
    events,
    gone,
    replica_named,
    status,
    stop,
    until,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

JOBS = ROOT / "tests" / "chaos" / "jobs"
COUNTING = JOBS / "counting.py"
"""Goes on until it is told to stop: these tests end it in other ways."""
ROLES = 4
"""Coordinator, shard, two replicas."""
GUARD = 1
"""The process that ends the others if the run cannot."""


def start(folder: Path, job: Path = COUNTING, *, shards: int = 1) -> Command:
    return Command(
        "run", job, "--shards", str(shards), "--replicas", "2", "--run-folder", folder / "run",
        env={"CHAOS_FOLDER": str(folder)},
    )  # fmt: skip


def until_training(run: Command) -> list[psutil.Process]:
    """Every process of the run, once both replicas push."""

    def pushing() -> bool:
        replicas = status(run.url)["replicas"]
        return len(replicas) == 2 and all(r["stats"]["pushes_acked"] >= 5 for r in replicas)

    until(pushing, "pushes of both replicas")
    return run.descendants()


def test_a_crashed_shard_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with start(tmp_path, shards=2) as run:
        processes = until_training(run)
        shard = psutil.Process(next(s["pid"] for s in status(run.url)["shards"] if s["index"] == 1))
        assert shard in processes
        shard.kill()
        assert run.wait() == 1
        assert run.heard(r"shard 1 was killed by SIGKILL; without durable shards")
        assert run.heard(r"its whole log: .*shard-1\.log")
        gone(processes, "the run's processes")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "shard 1" in report["reason"]
    assert "was killed by SIGKILL" in report["reason"]
    assert [part["shard"] for part in report["parameters_missing"]] == [1]
    assert (tmp_path / "run" / "parameters.partial.safetensors").exists(), "the rest is kept"


def test_a_crashed_coordinator_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        processes = until_training(run)
        coordinator = next(p for p in processes if "coordinator" in p.cmdline())
        coordinator.kill()
        assert run.wait() == 1
        assert run.heard(r"coordinator 0 was killed by SIGKILL")
        assert "replica" not in run.err[0], "the first cause is named, not what it pulled down"
        gone(processes, "the run's processes")


def test_by_hand_a_dead_shard_fails_the_job_for_everybody(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        replica = job.replica()
        until(lambda: _acked(job.url, "replica-0") >= 5, "pushes")
        job.shards[0].kill()
        assert job.coordinator.wait() == 1
        assert job.coordinator.heard(r"shard \d .*died: no sign of life")
        assert job.shards[1].wait() == 1
        assert job.shards[1].heard(r"died: no sign of life")
        assert replica.wait() == 1
        assert replica.heard(r"died: no sign of life")
        assert job.coordinator.report["state"] == "failed"
    assert events(job.run_folder, "failure")


def _acked(url: str, name: str) -> int:
    replica = replica_named(url, name)
    return int(replica["stats"]["pushes_acked"]) if replica else 0


def test_no_child_outlives_a_run_that_was_killed(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        processes = until_training(run)
        assert len(processes) == ROLES + GUARD
        run.kill()
        gone(processes, "the children of a run that was killed")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_nothing_that_a_replica_started_outlives_the_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path, JOBS / "family.py") as run:
        until(lambda: len(list(tmp_path.glob("grandchild-*"))) == 4, "the replicas' children")
        pids = [int(path.name.rpartition("-")[2]) for path in tmp_path.glob("grandchild-*")]
        processes = [*run.descendants(), *map(psutil.Process, pids)]
        run.signal(number)
        gone(processes, "the run's processes and what they started")
        assert run.wait() == (130 if number == signal.SIGTERM else -signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_ends_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path) as run:
        processes = until_training(run)
        began = time.monotonic()
        run.signal(number)
        assert run.wait() == 130
        print(f"{number.name}: everything ended after {time.monotonic() - began:.2f} s")
        gone(processes, "the run's processes")
        assert run.heard(rf"pydownpour: stopped by {number.name}")
    assert (tmp_path / "run" / "report.json").exists(), "what was trained is kept"
    assert (tmp_path / "run" / "parameters.safetensors").exists()


def test_a_second_ctrl_c_ends_a_job_that_hangs_at_once(tmp_path: Path) -> None:
    with start(tmp_path, JOBS / "hanging.py") as run:
        until(lambda: len(list(tmp_path.glob("journal-*"))) == 2, "both replicas to hang")
        processes = run.descendants()
        run.signal(signal.SIGINT)
        run.heard("stopping")
        began = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        print(f"second SIGINT: everything ended after {time.monotonic() - began:.2f} s")
        gone(processes, "the run's processes")


def test_ctrl_c_before_anybody_has_joined(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        until(lambda: run.descendants() or not run.is_running, "the first child")
        processes = run.descendants()
        run.signal(signal.SIGINT)
        assert run.wait() == 130, run.said
        gone([*processes, *run.descendants()], "the run's processes")


def test_what_a_replica_started_ends_with_it(tmp_path: Path) -> None:
    with start(tmp_path, JOBS / "hanging.py") as run:
        until(lambda: len(list(tmp_path.glob("grandchild-*"))) == 2, "both replicas' children")
        before = run.descendants()
        victim = psutil.Process(until(lambda: replica_named(run.url, "replica-0"), "pid")["pid"])
        grandchildren = victim.children()
        assert len(grandchildren) == 1
        assert victim in before
        victim.kill()
        gone([victim, *grandchildren], "a killed replica and what it had started")
        until(lambda: len(list(tmp_path.glob("grandchild-*"))) == 3, "the restarted replica's")
        after = run.descendants()
        run.signal(signal.SIGTERM)
        assert run.wait() == 130
        gone(after, "the run's processes, and what they had started")


def test_an_operator_s_stop_ends_replicas_that_would_go_on_for_ever(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        replica = job.replica()
        until(lambda: _acked(job.url, "replica-0") >= 5, "pushes")
        stop(job.url)
        assert replica.wait() == 0, replica.said
        assert job.finish()["reason"] == "stopped: enough"
        assert replica.said == ""
