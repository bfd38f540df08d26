"""Shared by all tests: event loops, Hypothesis profiles, data, quiet BLAS.

Environment: ``HYPOTHESIS_PROFILE`` (dev, ci, night), ``CI`` (missing data is a failure, Hypothesis
repeats the same cases every time), ``PYDOWNPOUR_DATA`` (a folder with larger data sets).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Before any test imports numpy, and for every child: tests run as many processes as cores.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# No deadlines: a busy machine is not a fault of the code. CI repeats the same cases, so that it
# is red for what a change did and not for luck; `night` looks for new ones.
hypothesis.settings.register_profile("dev", deadline=None, max_examples=50, print_blob=True)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=100, print_blob=True, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "night",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Every async test runs on asyncio's loop and on uvloop: users have either."""
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if sys.platform != "win32":
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with whole MNIST and other sets that are too large to ship.

    ``PYDOWNPOUR_DATA``, else ``shared/data`` beside the checkout.
    """
    named = os.environ.get("PYDOWNPOUR_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if (folder / "mnist.npz").is_file():
        return folder
    reason = f"no mnist.npz in {folder}; set PYDOWNPOUR_DATA to the folder that holds it"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
