"""The roles started one by one, as on machines of their own, with a token from the environment."""

from __future__ import annotations

import json
import shlex
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
import safetensors.numpy

from tests.chaos.processes import PROGRAM, ROOT, ByHand, Command, status, until

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.timeout(180)


def test_coordinator_two_shards_two_replicas_and_an_existing_loop(tmp_path: Path) -> None:
    with ByHand(EXAMPLES / "digits.py", tmp_path) as job:
        replicas = [job.replica("--name", name) for name in ("left", "right")]
        until(lambda: status(job.url)["samples_done"], "the first samples")
        loop = Command(EXAMPLES / "existing_loop.py", job.url, program=(sys.executable,))
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
        "--run-folder", tmp_path / "run",
    )  # fmt: skip
    with run:
        until(lambda: status(run.url)["replicas"], "a replica")
        lines = [" ".join(process.cmdline()) for process in run.descendants()]
        assert len(lines) == 4, "the roles, and the guard"
        assert psutil.Process(run.pid).is_running()
        assert [line for line in lines if "sesame" in line] == []
        assert run.wait() == 0, run.said
    assert "sesame" not in run.said
    for log in (tmp_path / "run").rglob("*"):
        assert not log.is_file() or b"sesame" not in log.read_bytes()
    assert not (tmp_path / "run" / "token").exists(), "whose token it is has it already"


OPEN = ("bash", "-c", 'umask 0; unset PYDOWNPOUR_TOKEN; exec "$@"', "bash", *PROGRAM)
"""No token, and a umask that takes no right away."""


def private(folder: Path) -> bool:
    """Everything in a run folder is its owner's alone."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    wrong = {path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert len(modes) > 3
    assert wrong == set()
    return True


def test_a_run_makes_a_token_and_says_how_to_join_with_it(tmp_path: Path) -> None:
    run = Command(
        "run", EXAMPLES / "digits.py", "--replicas", "1", "--json", "--run-folder",
        tmp_path / "run", program=OPEN,
    )  # fmt: skip
    with run:
        words = run.heard(r"to join by hand: pydownpour (.*)")[1]
        token = (tmp_path / "run" / "token").read_text().strip()
        assert len(token) == 64
        with Command(*shlex.split(words), program=OPEN) as joined:
            assert joined.wait() == 0, joined.said
            assert run.wait() == 0, run.said
        assert len(run.report["replicas"]) == 2
    assert token not in run.said + joined.said
    assert private(tmp_path / "run")


def test_a_coordinator_without_a_token_makes_one_and_with_no_token_it_has_none(
    tmp_path: Path,
) -> None:
    file = EXAMPLES / "digits.py"

    def start(*options: str) -> Command:
        return Command("coordinator", file, "--shards", "1", *options, program=OPEN, cwd=tmp_path)

    with start("--run-folder", "run") as coordinator:
        told = json.loads(coordinator.heard(r'(\{"event":"listening".*)')[1])
        assert told["token_file"] == str(tmp_path / "run" / "token")
        token = (tmp_path / "run" / "token").read_text().strip()
        assert status(told["url"], "guess")["code"] == "unauthorized"
        assert status(told["url"], token)["state"] == "waiting"
        shard = Command("shard", "--coordinator", told["url"], program=OPEN)
        with shard:
            assert shard.wait() == 2
            assert shard.heard("a job that made its own keeps it in its run folder's file 'token'")
        coordinator.signal(signal.SIGTERM)
        assert coordinator.wait() == 130
    with start("--no-token") as coordinator:
        assert status(coordinator.url, "")["state"] == "waiting"
        assert "token_file" not in coordinator.said
