"""The user's own code fails: who is told what at once, what is tried again, and what is kept."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.chaos.jobs import failing
from tests.chaos.processes import QUICK, ROOT, ByHand, Command, events, replica_named, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

JOB = ROOT / "tests" / "chaos" / "jobs" / "failing.py"
LINE = r"failing\.py:\d+ in compute"


def run(folder: Path, how: str, on_error: str = "stop", *, replicas: int = 2) -> Command:
    """Lives are short by any machine's clock: a busy one needs seconds to start a process."""
    return Command(
        "run", JOB, "--replicas", str(replicas), "--run-folder", folder / "run",
        *QUICK, "--limit", "restart_stable_s=60",
        env={"CHAOS_FAIL": how, "CHAOS_ON_ERROR": on_error, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return report


def counts(folder: Path) -> np.ndarray:
    return safetensors.numpy.load_file(folder / "run" / "parameters.safetensors")["counts"]


def test_a_corrupt_sample_ends_the_job_in_order_and_names_unit_line_and_samples(
    tmp_path: Path,
) -> None:
    with run(tmp_path, "raise") as command:
        assert command.wait() == 1
        first = next(n for n, line in enumerate(command.out) if "ValueError" in line)
        said = command.out[first]
        assert "at unit 3 of pass 1: places 12 to 15" in said, "at once, before any restart"
        assert "ValueError: sample 13 is corrupt (failing.py:" in said
        assert any("gradient" in line or "raise" in line for line in command.out[first + 1 :])
        assert command.heard(rf"pydownpour: .*unit 3 of pass 1.*{LINE}")
    report = report_of(tmp_path)
    assert report["state"] == "failed"
    assert "unit 3 of pass 1" in report["reason"]
    assert counts(tmp_path)[: failing.CORRUPT - 1].sum() > 0, "what was trained is kept"


def test_where_the_job_skips_it_the_unit_is_set_aside_and_the_rest_is_done(tmp_path: Path) -> None:
    with run(tmp_path, "raise", "skip") as command:
        assert command.wait() == 0, command.said
        assert command.heard("all 1 passes are complete but for 1 unit set aside")
    report = report_of(tmp_path)
    assert (report["state"], report["units"], report["audit"]) == ("done", 5, [])
    (aside,) = report["units_aside"]
    assert [aside[key] for key in ("pass_index", "unit", "start", "stop", "times")] == [
        0,
        3,
        12,
        16,
        3,
    ]
    assert "ValueError: sample 13 is corrupt" in aside["error"]
    assert 'raise ValueError(f"sample {CORRUPT} is corrupt")' in aside["traceback"]
    assert len(events(tmp_path / "run", "unit failed")) == 3
    others = np.delete(counts(tmp_path), range(12, 16))
    # A unit whose completion was on its way when its replica died is done again.
    assert set(others.tolist()) <= {1.0, 2.0}, "every other sample"
    assert (others == 1.0).sum() >= 12


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "ended with exit code 7 without a word, as os._exit does"),
        ("cancel", rf"was cancelled by its own code \(asyncio.CancelledError\) \({LINE}\)"),
        ("sysexit", rf"raised SystemExit\(0\); it ends by returning \({LINE}\)"),
        ("first", rf"ValueError: sample 13 is corrupt \({LINE}\)"),
    ],
)
def test_whatever_way_it_ends_itself_is_named_and_not_tried_for_ever(
    tmp_path: Path, how: str, words: str
) -> None:
    with run(tmp_path, how, replicas=1) as command:
        assert command.wait() == 1
        assert command.heard(words)
        restarts = [line for line in command.out if "starts again in" in line]
        assert len(restarts) == 2
    report = report_of(tmp_path)
    assert report["state"] == "failed"
    whole = (counts(tmp_path)[:12] >= 1.0).all()
    assert bool(whole) == (how != "first"), "the units before are kept"


def test_by_hand_the_replica_says_it_and_others_may_go_on(tmp_path: Path) -> None:
    with ByHand(JOB, tmp_path, shards=1, env={"CHAOS_ON_ERROR": "skip"}) as job:
        for _ in range(3):
            replica = job.replica()
            assert replica.wait() == 3
            assert replica.heard(rf"replica function failed: ValueError: .* \({LINE}\)")
            assert replica.heard("at unit 3 of pass 1: places 12 to 15 of the pass's order")
        assert job.replica().wait() == 0
        assert job.finish()["units"] == 5


UNFORGIVING = ("--limit", "restarts_max=1", *QUICK)


def test_crashes_that_a_restart_cured_end_no_run_however_many_they_are(tmp_path: Path) -> None:
    """One crash without work between is all this engine forgives, and there are two with."""
    command = Command(
        "run", ROOT / "tests" / "chaos" / "jobs" / "units.py", "--replicas", "1",
        "--run-folder", tmp_path / "run", *UNFORGIVING,
        env={"CHAOS_FOLDER": str(tmp_path), "CHAOS_UNITS": "40", "CHAOS_SLOW": "10"},
    )  # fmt: skip
    (tmp_path / "slow").touch()
    with command:
        for incarnation in (1, 2):
            pid = until(functools.partial(worked, command.url, incarnation), "work of this life")
            os.kill(pid, signal.SIGKILL)
        (tmp_path / "slow").unlink()
        assert command.wait() == 0, command.said
    report = report_of(tmp_path)
    assert (report["state"], report["units"], report["replicas"][0]["incarnations"]) == (
        "done", 80, 3,
    )  # fmt: skip


def worked(url: str, incarnation: int) -> int:
    """The pid of the replica's incarnation, once it has completed units."""
    replica = replica_named(url, "replica-0")
    if replica is None or replica["incarnation"] != incarnation:
        return 0
    return int(replica["pid"]) if replica["units"] >= incarnation * 2 else 0
