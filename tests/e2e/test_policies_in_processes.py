"""Policies by `pydownpour run`, with a process of its own for each role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from tests.chaos.processes import ROOT, Command

JOB = ROOT / "tests" / "e2e" / "policies_job.py"
DIES = 10
"""The step before which one replica of SSP's is killed."""


def run(
    folder: Path, policy: str, *options: str, replicas: int = 2, **env: str
) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """The report of a run that ends well, and how often each sample is in the parameters."""
    command = Command(
        "run", JOB, "--shards", "1", "--replicas", str(replicas), "--json",
        "--run-folder", folder / "run", *options,
        env={"POLICY": policy, "FOLDER": str(folder), "REPLICAS": str(replicas), **env},
    )  # fmt: skip
    with command:
        assert command.wait() == 0, command.said
    report = command.report
    assert (report["state"], report["audit"]) == ("done", [])
    assert report["policy"]["name"] == policy
    assert report["units"] == report["work"]["units_total"]
    counts = safetensors.numpy.load_file(folder / "run" / "parameters.safetensors")["counts"]
    return report, counts


@pytest.mark.parametrize("policy", ["softsync", "staleness_aware", "bfasgd"])
def test_a_policy_in_real_processes(tmp_path: Path, policy: str) -> None:
    report, counts = run(tmp_path, policy)
    steps = report["gradients"]["computed"]
    assert report["pushes"]["applied"] == steps == report["samples"] / 2
    assert report["waits"]["count"] == 0, "nobody waits for anybody"
    stalest = report["staleness"]["max"] if policy == "staleness_aware" else 1
    shares = {float(np.float32(1 / tau)) for tau in range(1, max(stalest, 1) + 1)}
    assert set(counts.tolist()) <= shares, "each sample once, over its gradient's staleness"
    fetches = sum(replica["fetches"] for replica in report["replicas"])
    # Half of them are dropped; all but a few of the others are behind a step.
    assert (fetches < 0.75 * steps) == (policy == "bfasgd")


def test_ssp_does_not_wait_for_a_replica_that_was_killed(tmp_path: Path) -> None:
    """It does not come back either: whoever waited for its clock would wait for ever."""
    never = ("--limit", "restart_backoff_s=3600", "--limit", "restart_backoff_max_s=3600")
    report, counts = run(tmp_path, "ssp", *never, replicas=3, DIES=str(DIES))
    dead, *others = sorted(report["replicas"], key=lambda replica: int(replica["id"]))
    assert (dead["incarnations"], dead["state"]) == (1, "dead")
    furthest = DIES + report["policy"]["slack"] + 1
    assert [one for one in others if one["steps"] <= furthest] == [], "held where it stood"
    assert counts.min() >= 1, "its unit was done by the others"
    np.testing.assert_array_equal(counts, np.floor(counts))
