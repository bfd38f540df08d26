"""The roles started one by one, as on machines of their own, with a token from the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import safetensors.numpy

from tests.chaos.processes import ROOT, ByHand, Command, status, until

EXAMPLES = ROOT / "examples"
TOKEN = {"PYDOWNPOUR_TOKEN": "open sesame"}

pytestmark = pytest.mark.timeout(180)


def test_coordinator_two_shards_two_replicas_and_an_existing_loop(tmp_path: Path) -> None:
    with ByHand(EXAMPLES / "digits.py", tmp_path, env=TOKEN) as job:
        replicas = [job.replica("--name", name) for name in ("left", "right")]
        until(lambda: status(job.url, "open sesame")["samples_done"], "the first samples")
        loop = Command(EXAMPLES / "existing_loop.py", job.url, env=TOKEN, program=(sys.executable,))
        with loop:
            for replica in [*replicas, loop]:
                assert replica.wait() == 0, replica.said
            assert loop.heard(r"\d+ steps here; test accuracy 0\.9")
        report = job.finish()
    assert report["state"] == "done"
    assert report["accuracy"] >= 0.95
    assert report["audit"] == []
    assert {"left", "right"} < {replica["name"] for replica in report["replicas"]}
    assert len(report["replicas"]) == 3
    assert all(replica["units"] > 0 for replica in report["replicas"]), "all three took part"
    final = safetensors.numpy.load_file(job.run_folder / "parameters.safetensors")
    assert {name: array.shape for name, array in final.items()} == {
        "b1": (64,), "b2": (10,), "w1": (64, 64), "w2": (64, 10),
    }  # fmt: skip


def test_the_order_of_starting_does_not_matter(tmp_path: Path) -> None:
    """A replica and a second shard that are early wait, and the status says for whom."""
    with ByHand(EXAMPLES / "digits.py", tmp_path, shards=0) as job:
        replica = job.replica()
        first = job.shard()
        words = until(lambda: _waiting_for_one(job.url), "one shard of two")
        assert words == "waiting for shard 1 to start"
        assert replica.is_running
        second = job.shard()
        assert replica.wait() == 0, replica.said
        assert job.finish()["accuracy"] >= 0.9
    assert (first.process.returncode, second.process.returncode) == (0, 0)


def _waiting_for_one(url: str) -> str:
    state = status(url)
    ready = [shard for shard in state["shards"] if shard["state"] == "ready"]
    return str(state["reason"]) if len(ready) == 1 else ""


def test_a_token_is_on_no_command_line(tmp_path: Path) -> None:
    run = Command(
        "run", EXAMPLES / "digits.py", "--shards", "1", "--replicas", "1", "--json",
        "--run-folder", tmp_path / "run", env=TOKEN,
    )  # fmt: skip
    with run:
        until(lambda: status(run.url, "open sesame")["replicas"], "a replica")
        lines = [" ".join(process.cmdline()) for process in run.descendants()]
        assert len(lines) == 3
        assert psutil.Process(run.pid).is_running()
        assert [line for line in lines if "sesame" in line] == []
        assert run.wait() == 0, run.said
    assert "sesame" not in run.said
    for log in (tmp_path / "run").rglob("*"):
        assert not log.is_file() or b"sesame" not in log.read_bytes()
