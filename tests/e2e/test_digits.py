"""The demo that ships runs and reaches its accuracy: the quickest check of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.processes import ROOT, Command

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.timeout(300)


def run(folder: Path, *arguments: str, **env: str) -> Command:
    """``pydownpour run`` to its end."""
    command = Command("run", *arguments, "--json", "--run-folder", str(folder / "run"), env=env)
    with command:
        assert command.wait(250) == 0, command.said
    return command


def test_digits_is_the_demo_and_reaches_95_percent(tmp_path: Path) -> None:
    digits = str(EXAMPLES / "digits.py")
    report = run(tmp_path, digits, "--shards", "2", "--replicas", "4").report
    assert report["accuracy"] >= 0.95
    assert report["units"] == report["work"]["units_total"]
    assert (tmp_path / "run" / "events.jsonl").exists()
    assert (tmp_path / "run" / "report.json").exists()
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 7
