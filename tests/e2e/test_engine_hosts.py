"""A second engine: what hosts differ in is the engine's, and nothing else has to know."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.chaos.processes import ROOT, Command

pytestmark = pytest.mark.timeout(180)


def test_an_engine_of_the_user_s_own_ships_the_job_and_chooses_where_shards_listen(
    tmp_path: Path,
) -> None:
    run_folder = tmp_path / "run"
    with Command(
        "run", ROOT / "examples" / "digits.py", "--shards", "2", "--replicas", "2", "--json",
        "--engine", "tests.fakes.hosts:HostsEngine", "--run-folder", run_folder,
        env={"PYTHONPATH": os.fspath(ROOT)},
    ) as command:  # fmt: skip
        assert command.wait() == 0, command.said
    report = json.loads((run_folder / "report.json").read_text())
    assert report["accuracy"] >= 0.9
    events = [json.loads(line) for line in (run_folder / "events.jsonl").read_text().splitlines()]
    urls = {str(event.get("url", "")).rpartition(":")[0] for event in events}
    assert {"http://127.0.1.1", "http://127.0.1.2"} <= urls, urls
    hosts = sorted(path.name for path in (run_folder / "hosts").iterdir())
    assert hosts == ["coordinator-0.0", "replica-0.3", "replica-1.4", "shard-0.1", "shard-1.2"]


def test_an_unknown_engine_is_wrong_usage_that_begins_nothing(tmp_path: Path) -> None:
    with Command("run", ROOT / "examples" / "digits.py", "--engine", "slurm",
                 "--run-folder", tmp_path / "run") as command:  # fmt: skip
        assert command.wait() == 2
        assert command.heard("there is no engine 'slurm'; known are local, and MODULE:CLASS")
    assert not (tmp_path / "run").exists()
