"""A replica that dies, or crawls: the others go on as if nothing had happened.

Progress is asserted in events, not in seconds. The figures (largest pause of a survivor, rate
beside a slow one) are printed: `pytest -rP`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.chaos.jobs.journal import journal_path, read_notes
from tests.chaos.processes import ROOT, ByHand, events, replica_named, status, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

UNITS_JOB = ROOT / "tests" / "chaos" / "jobs" / "units.py"
UNIT = 4


def held(folder: Path, url: str, name: str) -> dict[str, Any]:
    """The replica, once it stands still inside its third step."""

    def look() -> dict[str, Any] | None:
        replica = replica_named(url, name)
        if replica is None:
            return None
        notes = read_notes(journal_path(folder, replica["id"], replica["incarnation"]))
        return replica if ["held"] in notes else None

    found: dict[str, Any] = until(look, f"{name} inside its third step")
    return found


def steps(folder: Path, replica: int) -> list[float]:
    """When the replica finished each step, on the clock all processes share."""
    notes = read_notes(journal_path(folder, replica, 1))
    return [float(words[1]) for words in notes if words[0] == "step"]


def largest_pause(folder: Path, replica: int) -> float:
    times = steps(folder, replica)
    return max(b - a for a, b in itertools.pairwise(times))


def check_books(report: dict[str, Any], folder: Path, *, passes: int) -> None:
    """Every unit recorded once, every sample computed at least once."""
    work = report["work"]
    assert report["state"] == "done"
    assert report["audit"] == []
    assert report["passes"] == passes
    assert report["units"] == work["units_total"]
    assert report["samples"] == work["samples_total"]
    assert sum(replica["units"] for replica in report["replicas"]) == work["units_total"]
    counts = safetensors.numpy.load_file(folder / "run" / "parameters.safetensors")["counts"]
    once = passes * UNIT
    assert counts.min() >= once
    again = int(np.sum(counts - once))
    assert again <= work["leases_ended"] * UNIT, "only units that were given back are repeated"


def test_a_killed_replica_s_unit_is_done_by_others_who_never_wait_for_it(tmp_path: Path) -> None:
    passes, units = 12, 60
    env = {"CHAOS_UNITS": str(units), "CHAOS_PASSES": str(passes)}
    with ByHand(UNITS_JOB, tmp_path, env=env) as job:
        victim = job.replica(CHAOS_HOLD=str(tmp_path / "never"))
        survivors = [job.replica(), job.replica()]
        who = held(tmp_path, job.url, "replica-0")
        until(lambda: len(status(job.url)["replicas"]) == 3, "three replicas")
        victim.kill()
        killed_at = time.monotonic()
        done_at_kill = status(job.url)["units_done"]
        until(
            lambda: status(job.url)["units_done"] >= done_at_kill + 20 or events_of_death(job),
            "units of the survivors",
        )
        assert not events_of_death(job), "survivors went on while the dead one held its lease"
        death = until(lambda: events_of_death(job), "the death to be noticed")[0]
        assert death["replica"] == who["id"]
        assert len(death["units_returned"]) >= 1
        for survivor in survivors:
            assert survivor.wait() == 0, survivor.said
        report = job.finish()
    check_books(report, tmp_path, passes=passes)
    assert report["work"]["leases_ended"] >= 1
    for replica in report["replicas"]:
        if replica["id"] != who["id"]:
            assert steps(tmp_path, replica["id"])[-1] > killed_at
            print(f"largest pause of a survivor: {largest_pause(tmp_path, replica['id']):.3f} s")


def events_of_death(job: ByHand) -> list[dict[str, Any]]:
    return [event for event in events(job.run_folder, "dead") if "replica" in event]


def test_nobody_waits_for_a_replica_that_stands_still_inside_a_step(tmp_path: Path) -> None:
    go = tmp_path / "go"
    env = {"CHAOS_UNITS": "40", "CHAOS_PASSES": "10"}
    with ByHand(UNITS_JOB, tmp_path, env=env) as job:
        job.replica(CHAOS_HOLD=str(go))
        held(tmp_path, job.url, "replica-0")
        job.replica()
        job.replica()
        for name in ("replica-1", "replica-2"):
            until_steps(job.url, name, 100)
        assert steps_of(job.url, "replica-0") == 2
        assert in_state(job.url, "replica-0") == "live", "slow is not dead: it sends heartbeats"
        go.touch()
        for process in job.replicas:
            assert process.wait() == 0, process.said
        report = job.finish()
    check_books(report, tmp_path, passes=10)
    assert report["work"]["leases_ended"] == 0, "a live replica's lease does not end"


def until_steps(url: str, name: str, count: int) -> None:
    until(lambda: steps_of(url, name) >= count, f"{count} steps of {name}")


def until_noted(folder: Path, replica: int, count: int) -> None:
    until(lambda: len(steps(folder, replica)) >= count, f"step {count} of replica {replica}")


def steps_of(url: str, name: str) -> int:
    replica = replica_named(url, name)
    return int(replica["stats"]["steps"]) if replica else 0


def in_state(url: str, name: str) -> str:
    replica = replica_named(url, name)
    return str(replica["state"]) if replica else ""


@pytest.mark.slow
def test_the_others_rate_beside_a_replica_slowed_ten_times(tmp_path: Path) -> None:
    """Phases of even and slowed pace alternate in one run; the others' step rates are compared."""
    phases, phase_steps = 10, 300
    env = {"CHAOS_UNITS": "2000", "CHAOS_PASSES": "16"}
    rates: dict[bool, list[float]] = {False: [], True: []}
    with ByHand(UNITS_JOB, tmp_path, env=env) as job:
        job.replica(CHAOS_SLOW="10")
        job.replica()
        job.replica()
        until(lambda: len(status(job.url)["replicas"]) == 3, "three replicas")
        members = [replica_named(job.url, f"replica-{i}") for i in (1, 2)]
        ids = [int(member["id"]) for member in members if member is not None]
        for phase in range(phases):
            slowed = phase % 2 == 1
            if slowed:
                (tmp_path / "slow").touch()
            else:
                (tmp_path / "slow").unlink(missing_ok=True)
            counts = [len(steps(tmp_path, i)) for i in ids]
            for i, count in zip(ids, counts, strict=True):
                until_noted(tmp_path, i, count + phase_steps)
            for i, count in zip(ids, counts, strict=True):
                # The first part of a phase still has what was under way at its start.
                times = steps(tmp_path, i)[count + 30 : count + phase_steps]
                rates[slowed].append(len(times) / (times[-1] - times[0]))
        for process in job.replicas:
            process.kill()
    even, beside = statistics.median(rates[False]), statistics.median(rates[True])
    print(f"others' steps/s: {even:.0f} even, {beside:.0f} beside a 10x slower one")
    print(f"ratio {beside / even:.3f}")
    assert min(map(len, rates.values())) == phases
