"""Every acknowledged push counts once: replicas killed while pushing, stopped, superseded."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from pydownpour import limits
from tests.chaos.jobs.journal import journal_path, read_notes
from tests.chaos.processes import (
    DEADLINE_S,
    QUICK,
    ROOT,
    ByHand,
    Command,
    replica_named,
    status,
    stopped,
    until,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

COUNTING = ROOT / "tests" / "chaos" / "jobs" / "counting.py"
SAMPLES_JOB = ROOT / "tests" / "chaos" / "jobs" / "samples.py"
LONG = os.environ.get("PYDOWNPOUR_CHAOS") == "long"
KILLS = 10
SEED = int(os.environ.get("DOWNPOUR_SEED", "7"))


def acked(folder: Path, replica: int, incarnation: int) -> int:
    """Pushes that incarnation knew to be acknowledged."""
    notes = read_notes(journal_path(folder, replica, incarnation))
    return max((int(words[1]) for words in notes if words[0] == "acked"), default=0)


def tried(folder: Path, replica: int, incarnation: int) -> int:
    """Pushes that incarnation had begun."""
    notes = read_notes(journal_path(folder, replica, incarnation))
    return 1 + max((int(words[1]) for words in notes if words[0] == "tried"), default=-1)


def check_counts(folder: Path, counts: NDArray[np.float32]) -> tuple[int, int]:
    """Compare the parameters with what the replicas wrote down.

    Returns how many pushes were begun and never acknowledged, and how many of those are lost.
    """
    unknown = lost = 0
    for index in np.ndindex(counts.shape[:2]):
        row = counts[index]
        replica, incarnation = index[0] + 1, index[1] + 1
        known, begun = acked(folder, replica, incarnation), tried(folder, replica, incarnation)
        assert known <= begun
        who = f"replica {replica}.{incarnation}: {known} acked, {begun} tried; seed {SEED}"
        assert np.flatnonzero(row[:known] != 1.0).tolist() == [], f"lost or doubled, {who}"
        assert set(row[known:begun].tolist()) <= {0.0, 1.0}, f"doubled, {who}"
        assert np.flatnonzero(row[begun:]).tolist() == [], f"invented, {who}"
        unknown += begun - known
        lost += int(np.count_nonzero(row[known:begun] == 0.0))
    return unknown, lost


def final_counts(run_folder: Path) -> NDArray[np.float32]:
    """The final parameters, read by the package everybody uses."""
    arrays = safetensors.numpy.load_file(run_folder / "parameters.safetensors")
    counts: NDArray[np.float32] = arrays["counts"]
    return counts


def until_pushing(folder: Path, replica: int, incarnation: int, pushes: int) -> None:
    until(
        lambda: acked(folder, replica, incarnation) >= pushes,
        f"{pushes} acknowledged pushes of replica {replica}.{incarnation}",
    )


def start_counting(folder: Path, *, replicas: int = 2) -> Command:
    return Command(
        "run", COUNTING, "--shards", "2", "--replicas", str(replicas), "--json",
        "--run-folder", folder / "run", *QUICK, env={"CHAOS_FOLDER": str(folder)},
    )  # fmt: skip


def joined(url: str, name: str, incarnation: int) -> dict[str, Any]:
    """A replica of the status, once it has joined for the n-th time."""

    def look() -> dict[str, Any] | None:
        replica = replica_named(url, name)
        return replica if replica and replica["incarnation"] == incarnation else None

    found: dict[str, Any] = until(look, f"{name}, incarnation {incarnation}")
    return found


def kill_with_unsent_pushes(
    victim: psutil.Process, url: str, folder: Path, replica: int, incarnation: int
) -> None:
    """While the shards stand still the window fills, and much of it never leaves the victim."""
    with contextlib.ExitStack() as stack:
        for shard in status(url)["shards"]:
            stack.enter_context(stopped(shard["pid"]))
        until(
            lambda: open_pushes(folder, replica, incarnation) > limits.PUSHES_IN_FLIGHT_MAX,
            "full window of open pushes",
        )
        victim.kill()
        victim.wait(DEADLINE_S)


def open_pushes(folder: Path, replica: int, incarnation: int) -> int:
    return tried(folder, replica, incarnation) - acked(folder, replica, incarnation)


@pytest.mark.parametrize("seed", range(SEED, SEED + (5 if LONG else 1)))
def test_a_replica_killed_ten_times_while_pushing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with start_counting(tmp_path) as run:
        for incarnation in range(1, KILLS + 1):
            victim = joined(run.url, "replica-0", incarnation)
            until_pushing(tmp_path, victim["id"], incarnation, rng.randint(20, 80))
            process = psutil.Process(victim["pid"])
            assert process.parent() == psutil.Process(run.pid)
            if incarnation % 2:
                process.kill()
            else:
                kill_with_unsent_pushes(process, run.url, tmp_path, victim["id"], incarnation)
        last = joined(run.url, "replica-0", KILLS + 1)
        until_pushing(tmp_path, last["id"], KILLS + 1, 20)
        (tmp_path / "stop").touch()
        assert run.wait() == 0, run.said
    report = run.report
    unknown, lost = check_counts(tmp_path, final_counts(tmp_path / "run"))
    print(f"{KILLS} kills: {unknown} pushes of unknown outcome, of which {lost} were lost")
    assert unknown >= KILLS, "the kills must strike while pushes are open"
    assert lost > 0, "a push that was not acknowledged must be able to get lost"
    assert report["state"] == "done"
    assert report["pushes"]["refused"] == 0
    survivor, killed = sorted(report["replicas"], key=lambda replica: int(replica["incarnations"]))
    assert survivor["incarnations"] == 1
    assert killed["incarnations"] == KILLS + 1


@pytest.mark.parametrize("push_every", [7, 1000])
def test_work_recorded_beside_kills_was_applied(tmp_path: Path, push_every: int) -> None:
    rng = random.Random(SEED)
    env = {"CHAOS_PUSH_EVERY": str(push_every)}
    with ByHand(SAMPLES_JOB, tmp_path, env=env) as job:
        steps = 0
        for incarnation in range(1, 4):
            victim = job.replica("--name", "victim", PYDOWNPOUR_OWNER="the victim's")
            joined(job.url, "victim", incarnation)
            steps += rng.randint(5, 25)
            until_steps(job.url, steps)
            victim.kill()
            steps = steps_of(job.url)
        kept = job.replica()
        assert kept.wait() == 0, kept.said
        report = job.finish()
    counts = final_counts(job.run_folder)
    assert report["units"] == report["work"]["units_total"] == 300
    assert report["work"]["leases_ended"] > 0, "the kills must strike while units are worked on"
    assert counts.min() >= 2.0, f"{np.sum(counts < 2.0)} samples recorded and not applied"


def steps_of(url: str) -> int:
    """Steps of the victim, over its incarnations, as far as it told."""
    victim = replica_named(url, "victim")
    return int(victim["stats"]["steps"]) if victim else 0


def until_steps(url: str, steps: int) -> None:
    until(lambda: steps_of(url) >= steps, f"{steps} steps of the victim")


def test_a_stopped_replica_is_called_dead_and_pushes_on_when_it_wakes(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        sleeper, other = job.replica(), job.replica()
        who = joined(job.url, "replica-0", 1)
        until_pushing(tmp_path, who["id"], 1, 20)
        with stopped(sleeper.pid):
            until(lambda: in_state(job.url, "replica-0") == "dead", "death of the stopped replica")
            before = acked(tmp_path, who["id"], 1)
            mate = joined(job.url, "replica-1", 1)
            until_pushing(tmp_path, mate["id"], 1, acked(tmp_path, mate["id"], 1) + 20)
        until_pushing(tmp_path, who["id"], 1, before + 20)
        until(lambda: in_state(job.url, "replica-0") == "live", "return of the stopped replica")
        (tmp_path / "stop").touch()
        assert (sleeper.wait(), other.wait()) == (0, 0), sleeper.said + other.said
        report = job.finish()
    assert check_counts(tmp_path, final_counts(job.run_folder)) == (0, 0), "a clean end settles all"
    assert report["pushes"]["sent"] == report["pushes"]["acked"] == report["pushes"]["applied"]


def test_a_replica_whose_place_was_taken_is_fenced_in_words(tmp_path: Path) -> None:
    with ByHand(COUNTING, tmp_path) as job:
        zombie = job.replica(PYDOWNPOUR_OWNER="one owner's")
        who = joined(job.url, "replica-0", 1)
        until_pushing(tmp_path, who["id"], 1, 20)
        with stopped(zombie.pid):
            heir = job.replica("--name", "replica-0", PYDOWNPOUR_OWNER="one owner's")
            joined(job.url, "replica-0", 2)
            until_pushing(tmp_path, who["id"], 2, 20)
        assert zombie.wait() == 1
        assert zombie.heard(r"incarnation 1 is fenced: incarnation 2 took its place")
        (tmp_path / "stop").touch()
        assert heir.wait() == 0, heir.said
        job.finish()
    check_counts(tmp_path, final_counts(job.run_folder))


def test_two_jobs_on_one_machine_do_not_know_each_other(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with start_counting(folders[0], replicas=1) as first:
        with start_counting(folders[1], replicas=1) as second:
            assert first.url != second.url
            urls = until_shards(first.url) | until_shards(second.url)
            assert len(urls) == 4
            for folder in folders:
                until_pushing(folder, 1, 1, 50)
            (folders[0] / "stop").touch()
            assert first.wait() == 0, first.said
            until_pushing(folders[1], 1, 1, acked(folders[1], 1, 1) + 20)
            (folders[1] / "stop").touch()
            assert second.wait() == 0, second.said
    for folder, run in zip(folders, (first, second), strict=True):
        assert check_counts(folder, final_counts(folder / "run")) == (0, 0)
        assert run.report["pushes"]["acked"] == run.report["pushes"]["applied"]


def until_shards(url: str) -> set[str]:
    """The URLs of a job's shards, once all have come."""

    def look() -> set[str]:
        urls = {shard["url"] for shard in status(url)["shards"]}
        return set() if "" in urls else urls

    found: set[str] = until(look, "all shards")
    return found


def in_state(url: str, name: str) -> str:
    replica = replica_named(url, name)
    return str(replica["state"]) if replica else ""
