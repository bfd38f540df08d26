"""The experiments: every script's claims in its short form, and what the runner promises.

``make experiments`` has the full forms and those with real processes.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.processes import ROOT, until

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(p.stem for p in (EXAMPLES / "experiments").glob("*.py") if p.stem != "run")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def frame() -> Iterator[Any]:
    """The frame as a module, and nothing left of it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        before = set(sys.modules)
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        yield importlib.import_module("experiments.frame.experiment")
        for name in set(sys.modules) - before:
            if name == "mlp" or name.startswith("experiments"):
                del sys.modules[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_claims_hold_in_the_short_form(frame: Any, name: str) -> None:
    experiment = frame.load(name)
    form = experiment.short
    cells = {
        (setting, seed): experiment.run("short", setting, seed)
        for setting in form.settings
        for seed in range(form.seeds)
    }
    for setting in {setting for setting, _ in cells}:
        assert experiment.read_setting(frame.write_setting(setting)) == setting
    results = frame.Results("short", cells)
    claims = list(experiment.claims(results))
    assert claims
    assert [f"{c.words}: {c.value}, band {c.band}" for c in claims if not c.holds] == []
    page = importlib.import_module("experiments.frame.page")
    section = page.Section(name, experiment, results, claims)
    assert page.words(section).count("--cell") == 1
    assert page.page([section], "").count("<svg") == len(experiment.charts(results)) >= 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_it_compares_with_is_what_it_runs(frame: Any, name: str) -> None:
    experiment = frame.load(name)
    assert set(experiment.beside) <= set(experiment.full.settings)
    figures = {column.figure for column in experiment.columns}
    assert all(set(beside) <= figures for beside in experiment.beside.values())
    for form in (experiment.full, experiment.short, experiment.real):
        assert form is None or len(set(form.settings)) == len(form.settings)
    assert (experiment.real is None) == (experiment.measure_real is None)


def test_a_setting_is_written_without_what_is_usual_and_never_as_nothing(frame: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Setting:
        rule: str = "sgd"
        lr: float = 0.5

    written = [frame.write_setting(Setting(*one)) for one in ((), ("sgd", 0.25), ("adam", 0.5))]
    assert written == ["rule=sgd", "lr=0.25", "rule=adam"]


def test_over_real_sockets(frame: Any) -> None:
    experiment = frame.load("downpour_adagrad")
    setting = experiment.read_setting("rule=adagrad,lr=0.05,replicas=8,passes=2")
    figures = experiment.run("real", setting, 0)
    assert figures["pushes"] == 2 * 169
    assert 0.8 * 7 < figures["staleness"] < 8  # replicas of equal speed
    assert figures["stalest"] < 24


TINY = """
import asyncio, dataclasses, os, pathlib, time
import numpy as np
import pydownpour as dp
from experiments.frame import processes
from experiments.frame.charts import Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    rate: float


def begun():
    pathlib.Path("FOLDER", f"stuck-{os.getpid()}").touch()


def make_job(setting, seed):
    job = dp.Job(parameters={"w": np.zeros(1, "f4")}, optimizer=dp.SGD(1.0))

    @job.replica
    async def train(replica):
        begun()
        await asyncio.Event().wait()

    return job


def in_processes(setting, seed):
    return processes.run("tiny", setting, seed, replicas=2, shards=1)


def measure(setting, seed):
    if setting.name == "stuck":
        begun()
    while setting.name == "stuck":
        time.sleep(0.01)
    return {"loss": setting.rate * (seed + 1), "gone": float("inf")}


def claims(results):
    for setting in results.settings():
        yield Claim(f"loss <{setting.name}>", results.mean(setting, "loss"), at_most=1.0)


def form(*settings):
    return Form([Setting(name, rate) for name, rate in settings], seeds=2)


EXPERIMENT = Experiment(
    title="Tiny",
    source="nobody",
    setting=Setting,
    measure=measure,
    columns=[Column("loss", "loss", ".2f"), Column("gone", "gone")],
    full=form(("a", 0.5), ("b", 2.0)),
    short=form(("a", 0.25)),
    real=form(("stuck", 1.0)),
    measure_real=measure,
    claims=claims,
    charts=lambda r: [Lines("t", "x", "y", [Series("s", [(0, 1), (1, 2)])])],
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples with one script, which trains nothing."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SCRIPTS:
        (tmp_path / "examples" / "experiments" / f"{name}.py").unlink()
    tiny = tmp_path / "examples" / "experiments" / "tiny.py"
    tiny.write_text(TINY.replace("FOLDER", str(tmp_path)))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "examples/experiments/run.py", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_page_has_the_line_that_runs_a_row_again(folder: Path) -> None:
    done = run(folder, "tiny", "--short")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 claims hold" in done.stdout
    page = (folder / "runs" / "experiments" / "report.html").read_text()
    assert "loss &lt;a&gt;" in page
    assert "0.38 ± 0.18" in page
    assert "<td>1 of 1</td>" in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="', page)  # nothing that stands elsewhere
    rows = json.loads((folder / "runs" / "experiments" / "tiny-short.json").read_text())
    assert [row["figures"] for row in rows] == [
        {"loss": 0.25, "gone": None},
        {"loss": 0.5, "gone": None},
    ]
    [line] = re.findall(r"<code>(python [^<]*)</code>", page)
    program, script, *arguments = shlex.split(html.unescape(line))
    assert (program, script) == ("python", "examples/experiments/run.py")
    again = run(folder, *arguments)
    assert json.loads(again.stdout) == rows[0]["figures"]
    assert line in html.escape(done.stdout, quote=False)
    assert (folder / "runs" / "experiments" / "tiny-short-1.svg").read_text().startswith("<svg")


def test_a_claim_that_fails_is_the_exit_code(folder: Path) -> None:
    done = run(folder, "--simulated", "--folder", "elsewhere")
    assert done.returncode == 1
    assert "FAILS  loss <b>: 3, band <= 1" in done.stdout
    assert '<span class="no">fails</span>' in (folder / "elsewhere" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["huge"], "no experiment is called huge: tiny"),
        (["--cell", "name=a"], "name it"),
        (["tiny", "--cell", "name=a,size=3"], "'size=3' is no setting here"),
        (["tiny", "--cell", "name=a"], "missing 1 required positional argument: 'rate'"),
    ],
)
def test_what_it_does_not_understand_it_says(
    folder: Path, arguments: list[str], words: str
) -> None:
    done = run(folder, *arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("form", "number"),
    [
        ("--short", signal.SIGINT),
        ("--short", signal.SIGTERM),
        ("--short", signal.SIGKILL),
        ("--real", signal.SIGINT),
        ("--real", signal.SIGTERM),
    ],
)
def test_whatever_ends_it_leaves_no_process(
    folder: Path, form: str, number: signal.Signals
) -> None:
    """Ctrl-C reaches all of a terminal's processes, and the others only the one that was meant."""
    tiny = folder / "examples" / "experiments" / "tiny.py"
    text = tiny.read_text().replace('("a", 0.25)', '("stuck", 0.25), ("stuck", 0.5)')
    tiny.write_text(text.replace("measure_real=measure", "measure_real=in_processes"))
    program = [sys.executable, "examples/experiments/run.py", form, "--processes", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, cwd=folder, env=env, start_new_session=True) as running:
        whole = psutil.Process(running.pid)
        until(lambda: len(list(folder.glob("stuck-*"))) == 2, "cells that compute")
        children = whole.children(recursive=True)
        assert len(children) >= 2
        (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
        assert running.wait(60) == (-number if number == signal.SIGKILL else 130)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
