"""The bench itself: it runs in its small form, and what it prints has the promised structure.

How fast anything is, is no matter of a test: no figure is compared with a bound here.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from pydownpour.bench import __main__ as bench
from pydownpour.bench.meter import Figures, ForeignMeter, Share, take_turns
from pydownpour.bench.rows import Goal, constant_row, dump, row, table

WANTED = {
    "stream": {"stream push", "stream fetch"},
    "fallback": {"POST push", "GET fetch"},
    "replicas": {"two replicas push"},
    "apply": {"apply sgd", "apply adagrad", "apply adam"},
    "codecs": {
        "int8 encode",
        "int8 decode",
        *(
            f"{codec} push, against {what}"
            for codec in ("int8", "threshold")
            for what in ("float32", "plain sockets")
        ),
    },
    "latency": {"small push, p50"},
    "tensors": {
        "200 tensors, 2.4 MB",
        "200 tensors, 0.4 MB",
        "1,000 tensors of 1,000, step p50",
        "1,000 tensors of 1,000, step p99",
    },
    "memory": {
        "shard RSS at rest",
        "shard RSS under load",
        "shard RSS peak since start",
        "coordinator RSS peak",
        "replica RSS peak",
    },
    "import": {"import"},
    "simulator": {"simulated message", "simulated run"},
    "sim-vs-real": {
        f"{count} replicas' {what}"
        for count in (2, 4, 6, 8)
        for what in ("throughput", "staleness")
    },
}
KEYS = {"name", "ours", "reference", "unit", "ratio", "goal", "met"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pydownpour.bench", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_every_measure_is_wanted() -> None:
    assert set(bench.MEASURES | bench.ONLY_BY_NAME) == set(WANTED)


@pytest.mark.parametrize("measure", WANTED)
def test_json_rows(measure: str) -> None:
    done = run(measure, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    rows = answer["rows"]
    assert {r["name"] for r in rows} == WANTED[measure]
    for r in rows:
        assert r.keys() >= KEYS
        for figure in ("ours", "reference", "ratio"):
            assert math.isfinite(r[figure])
            assert r[figure] > 0
        assert isinstance(r["met"], bool)
        assert 0 <= r["foreign"]
        assert r["unit"]
        assert r["goal"].startswith((">= ", "<= ", "1 +- "))
    assert {"cpu", "kernels", "congestion control", "loop", "python"} <= answer["machine"].keys()


def test_table() -> None:
    done = run("import", "--quick")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cpu: ")
    assert lines[1].split()[:3] == ["row", "ours", "reference"]
    assert lines[2].startswith("import ")


def test_unknown_row_is_named() -> None:
    done = run("warp")
    assert done.returncode == 2
    assert "no row 'warp'; there are stream, fallback" in done.stderr


FIGURES = Figures({"a": [1.0, 4.0, 3.0], "b": [2.0, 4.0, 1.0]}, foreign=0.2)


def test_ratio_is_the_median_of_the_rounds() -> None:
    # 0.5, 1, 3: not the ratio of the medians, 3 / 2
    assert FIGURES.ratio("a", "b") == 1.0
    made = row("r", FIGURES, "a", "b", unit="GB/s", goal=Goal(0.95), note="")
    assert (made.ours, made.reference, made.ratio) == (3.0, 2.0, 1.0)
    assert made.ours_range == (1.0, 4.0)
    assert made.to_json()["met"] is True
    assert made.inconclusive
    assert "inconclusive" in table([made])


@pytest.mark.parametrize(
    ("goal", "ratio", "met", "words"),
    [
        (Goal(0.95), 0.95, True, ">= 0.95"),
        (Goal(0.95), 0.94, False, ">= 0.95"),
        (Goal(1.6, at_least=False), 1.6, True, "<= 1.60"),
        (Goal(1.6, at_least=False), 1.7, False, "<= 1.60"),
    ],
)
def test_goals(goal: Goal, ratio: float, met: bool, words: str) -> None:
    assert goal.is_met(ratio) is met
    assert str(goal) == words


def test_a_bound_for_a_reference() -> None:
    made = constant_row("RSS", [90.0, 110.0, 120.0], 100.0, unit="MB", note="")
    assert made.ratio == 1.1
    assert json.loads(dump([made], {}))["rows"][0]["met"] is False
    assert "MISSED" in table([made])


async def test_turns_alternate() -> None:
    order: list[str] = []

    def measure(name: str) -> Any:
        async def run() -> float:
            order.append(name)
            return float(len(order))

        return run

    found = await take_turns({"a": measure("a"), "b": measure("b")}, rounds=2, patience_s=0.0)
    assert order == ["a", "b"] * 3, "one round to warm up, two that count"
    assert sorted(found.values["a"]) == [3.0, 5.0]
    for a, b in zip(found.values["a"], found.values["b"], strict=True):
        assert b == a + 1, "the figures of a round stay together"


def test_shares_add_up() -> None:
    both = Share(1.0, 4.0) + Share(2.0, 2.0)
    assert both.of_all == 0.5
    assert Share().of_all == 0.0
    assert Share(-1.0, 2.0).of_all == 0.0, "clock ticks are coarse"


def test_own_work_is_not_foreign() -> None:
    meter = ForeignMeter()
    total = sum(i * i for i in range(2_000_000))
    share = meter.read()
    assert total > 0
    assert share.all_s > 0
    assert share.foreign_s < share.all_s, "the loop itself is ours"
