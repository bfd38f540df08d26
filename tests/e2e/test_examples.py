"""Every example runs as its own docstring says, and reaches what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.test_digits import EXAMPLES, run

pytestmark = pytest.mark.timeout(300)


def test_mnist_learns_from_whole_mnist(tmp_path: Path, data_folder: Path) -> None:
    """One pass of the five, two replicas of the four."""
    code = (EXAMPLES / "mnist.py").read_text()
    short, count = re.subn(r"passes=\d+", "passes=1", code)
    assert count == 1
    (tmp_path / "mnist.py").write_text(short)
    (tmp_path / "mlp.py").write_text((EXAMPLES / "mlp.py").read_text())
    mnist = str(tmp_path / "mnist.py")
    env = {"PYDOWNPOUR_DATA": str(data_folder)}
    report = run(tmp_path, mnist, "--shards", "2", "--replicas", "2", **env).report
    assert report["samples"] == 60_000
    assert report["accuracy"] >= 0.93


@pytest.mark.slow
def test_mnist_reaches_97_percent_in_five_passes(tmp_path: Path, data_folder: Path) -> None:
    mnist = str(EXAMPLES / "mnist.py")
    env = {"PYDOWNPOUR_DATA": str(data_folder)}
    report = run(tmp_path, mnist, "--shards", "2", "--replicas", "4", **env).report
    assert report["passes"] == 5
    assert report["accuracy"] >= 0.97


def test_three_phases_come_one_after_the_other(tmp_path: Path) -> None:
    report = run(
        tmp_path, str(EXAMPLES / "phases.py"), "--shards", "2", "--replicas", "3"
    ).report  # fmt: skip
    assert [one["policy"]["name"] for one in report["policies"]] == ["downpour", "ssp", "downpour"]
    begun = [one["samples"] for one in report["policies"]]
    assert begun[0] == 0
    assert all(begin >= until for begin, until in zip(begun[1:], (1347, 13_470), strict=True))
    assert report["accuracy"] >= 0.94


def test_replicas_that_train_alone_push_every_twenty_steps(tmp_path: Path) -> None:
    local = str(EXAMPLES / "local_training.py")
    report = run(tmp_path, local, "--shards", "1", "--replicas", "2").report
    assert report["optimizer"].startswith("momentum(lr=0.7")
    assert report["local_optimizer"].startswith("adamw(lr=0.003")
    steps = sum(one["steps"] for one in report["replicas"])
    assert steps == 40 * 90  # nine units a pass, the last of them shorter
    assert report["pushes"]["sent"] <= steps / 20 + 2 * 40  # and at most a short block a pass
    assert report["accuracy"] >= 0.95


def test_the_oracle_counts_every_push_once(tmp_path: Path) -> None:
    oracle = str(EXAMPLES / "oracle.py")
    env = {"ORACLE_UNITS": "300", "ORACLE_PASSES": "2"}
    report = run(tmp_path, oracle, "--shards", "2", "--replicas", "2", **env).report
    assert report["metrics"] == {"pushes": 600.0, "least": 2.0, "most": 2.0, "wrong": 0.0}
    assert report["pushes"]["sent"] == report["pushes"]["applied"] == 600


def test_the_commands_of_three_terminals_are_commands() -> None:
    """What the page says is typed exists with these options; the tests by hand run it."""
    from click.testing import CliRunner

    from pydownpour.cli.app import app

    page = (EXAMPLES / "three_terminals.md").read_text().replace("\\\n", " ")
    lines = [line.strip().removesuffix(" &") for line in page.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("pydownpour ")]
    assert {command[0] for command in commands} == {"coordinator", "shard", "replica"}
    assert len(commands) >= 8
    for command in commands:
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0, command
        for option in (word for word in command if word.startswith("--")):
            assert option in result.output, (command, option)


def test_the_digits_in_synchronous_rounds(tmp_path: Path) -> None:
    synchronous = str(EXAMPLES / "synchronous.py")
    report = run(tmp_path, synchronous, "--shards", "2", "--replicas", "4").report
    assert report["accuracy"] >= 0.94
    assert report["policy"]["name"] == "hardsync"
    # Nobody knows how many will come, and whoever is first begins alone.
    assert report["staleness"]["mean"] < 0.5
