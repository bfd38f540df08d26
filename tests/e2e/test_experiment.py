"""The paper's first result in its short form: the directions, each with a margin that seeds keep.

``make experiment`` has the whole grid; here are five of its runs, on the same code.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEED = 0


@pytest.fixture(scope="module")
def experiment() -> Iterator[Any]:
    """The example as a module, and nothing left of it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        before = set(sys.modules)
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        yield importlib.import_module("experiments.downpour_adagrad")
        for name in set(sys.modules) - before:
            if name == "mlp" or name.startswith("experiments"):
                del sys.modules[name]


def check_regime(result: Any) -> None:
    """The regime the claims are about: R replicas of equal speed, gradients about R - 1 old."""
    replicas = result.cell.replicas
    assert result.steps == 12 * 169  # 12 passes of 1,347 samples by 8
    # Nobody begins with parameters from before its wait for work: that would be far older.
    assert result.staleness_max < 3 * replicas
    if not result.cell.warm_passes:
        # A little below: towards the end of the work fewer and fewer replicas have some.
        assert 0.9 * (replicas - 1) < result.staleness_mean < replicas


def test_adagrad_holds_at_a_rate_where_sgd_degrades(experiment: Any) -> None:
    # Runs of one seed differ, because leases meet real sockets, so the margins are those of nine
    # runs over six seeds. At 0.05: accuracy 0.48 to 0.78 (loss 0.64 to 1.38) against 0.10 to 0.24
    # (1.98 to 2.66); Adagrad at 0.02: 0.90 to 0.92. At 0.02 SGD reaches 0.63 to 0.86, too close to
    # Adagrad for a test of one run, and at half of that 0.88 to 0.92: the whole grid shows it.
    adagrad = experiment.measure(experiment.Cell("adagrad", 0.05, 64), SEED)
    fixed = experiment.measure(experiment.Cell("sgd", 0.05, 64), SEED)
    smaller = experiment.measure(experiment.Cell("adagrad", 0.02, 64), SEED)
    for result in (adagrad, fixed, smaller):
        check_regime(result)
    assert fixed.accuracy < 0.4
    assert adagrad.accuracy > fixed.accuracy + 0.1
    assert adagrad.loss < fixed.loss - 0.3
    assert smaller.accuracy > 0.85


def test_a_warm_start_helps_adagrad(experiment: Any) -> None:
    # Six seeds gave losses of 0.17 to 0.28 against 0.28 to 0.77, this one 0.17 against 0.31. Not
    # accuracy: it rose by 0 to 19 points, 3 in the median, and one seed did not gain.
    cold = experiment.measure(experiment.Cell("adagrad", 0.05, 32), SEED)
    warm = experiment.measure(experiment.Cell("adagrad", 0.05, 32, warm_passes=3), SEED)
    check_regime(cold)
    check_regime(warm)
    assert warm.accuracy > 0.91
    assert warm.loss < cold.loss - 0.02


def test_the_tables_and_the_rows(experiment: Any) -> None:
    cells = experiment.grid([1, 32])
    assert len(cells) == len(set(cells)) == 6 + 7 + 4
    results = [
        experiment.Result(cell, 0, 0.5, 0.9, cell.replicas - 1.0, 40, 2028, 1.0) for cell in cells
    ]
    results[0] = dataclasses.replace(results[0], loss=math.inf)
    text = experiment.tables(results, seeds=1)
    assert "0.500 0.900" in text
    assert "inf 0.900" in text
    assert "64 replicas" not in text
    rows = [json.loads(json.dumps(result.row(), allow_nan=False)) for result in results]
    assert rows[0]["loss"] is None
    assert {row["replicas"] for row in rows} == {1, 32}
