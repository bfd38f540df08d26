"""Synchronous rounds of real processes: who is killed, stopped or comes late holds nobody for ever.

Each sample's parameter counts how often it was applied (combine="sum", whole numbers).
"""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pydownpour.limits import DEFAULT
from tests.chaos.processes import ROOT, ByHand, events, replica_named, status, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SAMPLES_JOB = ROOT / "tests" / "chaos" / "jobs" / "samples.py"


def done(url: str) -> int:
    return int(status(url)["samples_done"])


def test_rounds_go_on_without_the_dead_and_with_whoever_comes(tmp_path: Path) -> None:
    with ByHand(SAMPLES_JOB, tmp_path, env={"CHAOS_POLICY": "hardsync"}) as job:
        victim, _ = job.replica(), job.replica()
        until(lambda: done(job.url) > 60, "the first rounds")
        victim.signal(signal.SIGSTOP)
        words = until(lambda: _waits(job.url), "the other to say for whom it waits")
        assert "waits for replica " in words
        victim.kill()
        at_kill = done(job.url)
        until(lambda: done(job.url) > at_kill + 60, "rounds without it")
        late = job.replica()
        until(lambda: replica_named(job.url, "replica-2"), "one more replica")
        assert late.wait() == 0, late.said
        job.replicas.remove(victim)
        report = job.finish()
    assert (report["state"], report["audit"]) == ("done", [])
    final = safetensors.numpy.load_file(job.run_folder / "parameters.safetensors")["counts"]
    assert final.min() >= report["passes"]
    np.testing.assert_array_equal(final, np.floor(final))
    again = int(np.sum(final - report["passes"]))
    assert again <= report["work"]["leases_ended"] * 4, "only what was given back is repeated"
    assert sum(shard["pushes_refused"] for shard in report["shards"]) == 0


def test_who_waited_for_a_replica_that_stood_still_is_reported_and_how_long(tmp_path: Path) -> None:
    """Two shards, one wait: an event when it is notable and when it is over, and the table."""
    with ByHand(SAMPLES_JOB, tmp_path, env={"CHAOS_POLICY": "hardsync"}) as job:
        still, _ = job.replica(), job.replica()
        until(lambda: done(job.url) > 60, "the first rounds")
        ids = [replica_named(job.url, f"replica-{n}")["id"] for n in (0, 1)]  # type: ignore[index]
        still.signal(signal.SIGSTOP)
        (began, *_) = until(lambda: events(job.run_folder, "wait"), "a wait worth an event")
        still.signal(signal.SIGCONT)
        for process in job.replicas:
            assert process.wait() == 0, process.said
        report = job.finish()
    by_pid = {one["name"]: one["id"] for one in report["replicas"]}
    assert sorted(by_pid.values()) == sorted(ids)
    who, on = (by_pid[name] for name in ("replica-1", "replica-0"))
    assert (began["replica"], began["on"]) == (who, [on])
    assert began["seconds"] >= DEFAULT.wait_notable_s
    over = [one for one in events(job.run_folder, "wait over") if one["on"] == [on]]
    assert any(one["seconds"] >= began["seconds"] for one in over)
    pairs = {(one["replica"], one["on"]): one["seconds"] for one in report["waits"]["pairs"]}
    assert pairs[who, on] >= began["seconds"]
    assert max(pairs, key=lambda pair: pairs[pair]) == (who, on)
    waited = {one["id"]: one["waited_s"] for one in report["replicas"]}
    assert waited[who]["round"] >= began["seconds"]
    assert report["waits"]["by_waited_for"][str(on)] >= pairs[who, on]


def _waits(url: str) -> str:
    """What the one that goes on says of a round."""
    words = [row["stats"].get("waiting_for", "") for row in status(url)["replicas"]]
    return next((one for one in words if "waits for replica" in one), "")
