"""The paper's first result in its short form: the directions, each with a margin that seeds keep.

``make experiment`` has the whole grid; here are five of its runs, on the same code.
"""

from __future__ import annotations

import importlib
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


def test_adagrad_holds_where_a_fixed_rate_degrades(experiment: Any) -> None:
    fixed = experiment.measure(experiment.Cell("sgd", 0.05, 32), SEED)
    adagrad = experiment.measure(experiment.Cell("adagrad", 0.05, 32), SEED)
    for result in (fixed, adagrad):
        # The regime the claim is about: every gradient about R - 1 updates old.
        assert 28 < result.staleness_mean < 32
        assert result.staleness_max < 3 * 32
        assert result.steps == 12 * 169
    assert adagrad.accuracy > 0.85
    assert adagrad.loss < fixed.loss - 0.05
    assert adagrad.accuracy > fixed.accuracy + 0.01
