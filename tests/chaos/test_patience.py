"""Processes that stand still and come back; an operator at the coordinator's terminal."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.processes import ROOT, ByHand, events, replica_named, status, stopped, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

COUNTING = ROOT / "tests" / "chaos" / "jobs" / "counting.py"


def acked(job: ByHand, name: str = "replica-0") -> int:
    replica = replica_named(job.url, name)
    return int(replica["stats"]["pushes_acked"]) if replica else 0


def test_a_shard_that_was_stopped_and_wakes_costs_nothing_but_time(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        replica = job.replica()
        until(lambda: acked(job) >= 5, "pushes")
        with stopped(job.shards[1].pid):
            words = until(lambda: _reason(job, "silent for"), "the wait, in words")
            assert "holds updates nobody else has and is waited for" in words
        before = acked(job)
        until(lambda: acked(job) > before, "pushes after the shard woke")
        (tmp_path / "stop").touch()
        assert replica.wait() == 0, replica.said
        assert job.finish()["state"] == "done"
    assert [e["shard"] for e in events(job.run_folder, "silent")]
    assert [e["was"] for e in events(job.run_folder, "alive")] == ["silent"]


def _reason(job: ByHand, words: str) -> str:
    reason = str(status(job.url)["reason"])
    return reason if words in reason else ""


def test_ctrl_c_at_a_coordinator_by_hand_keeps_everything_and_tells_everybody(
    tmp_path: Path,
) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        replicas = [job.replica(), job.replica()]
        until(lambda: acked(job) >= 5 and acked(job, "replica-1") >= 5, "pushes")
        began = time.monotonic()
        job.coordinator.signal(signal.SIGINT)
        assert job.coordinator.wait() == 130, job.coordinator.said
        for process in [*job.shards, *replicas]:
            assert process.wait() == 0, process.said
        print(f"SIGINT at the coordinator: everything ended after {time.monotonic() - began:.2f} s")
        report = job.coordinator.report
    assert (report["state"], report["reason"]) == ("stopped", "stopped by SIGINT")
    assert (job.run_folder / "parameters.safetensors").exists()
    assert (job.run_folder / "report.json").exists()


def test_a_shard_that_died_before_the_job_ran_is_replaced_by_the_next(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        until(lambda: all(s["state"] == "ready" for s in status(job.url)["shards"]), "both shards")
        job.shards[0].kill()
        successor = job.shard()
        until(lambda: _pids(job) == {job.shards[1].pid, successor.pid}, "its place")
        replica = job.replica()
        until(lambda: acked(job) >= 5, "pushes")
        (tmp_path / "stop").touch()
        assert replica.wait() == 0, replica.said
        del job.shards[0]
        assert job.finish()["state"] == "done"


def _pids(job: ByHand) -> set[int]:
    return {s["pid"] for s in status(job.url)["shards"] if s["state"] == "ready"}


def test_a_coordinator_that_was_killed_is_not_waited_for_long(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        replica = job.replica()
        until(lambda: acked(job) >= 5, "pushes")
        job.coordinator.kill()
        began = time.monotonic()
        for process in [*job.shards, replica]:
            assert process.wait() == 1
            assert process.heard(r"the coordinator at http\S+ is gone")
        print(f"SIGKILL of the coordinator: all gave up after {time.monotonic() - began:.2f} s")
