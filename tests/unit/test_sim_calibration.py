"""The bench that compares the simulator with real processes: its fit, and its verdict."""

from __future__ import annotations

import pytest

from pydownpour.bench import sim_vs_real
from pydownpour.bench.rows import Within
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.machines.host import LinkModel

STEPS = 40


def step_s(compute: ComputeModel, link: LinkModel, *, overlap: bool) -> float:
    report = sim_vs_real._simulated(1, STEPS, compute, link, overlap=overlap)
    assert report["failure"] == ""
    return sim_vs_real._step_s(report)


@pytest.mark.parametrize(("base_s", "latency_s"), [(0.002, 0.0003), (0.02, 0.004)])
def test_constants_are_found_again_from_one_replica(base_s: float, latency_s: float) -> None:
    compute = ComputeModel(base_s=base_s, per_sample_s=0.0, jitter=0.0)
    link = LinkModel(latency_s=latency_s, bytes_per_s=sim_vs_real.BYTES_PER_S)
    alone = step_s(compute, link, overlap=True)
    waiting = step_s(compute, link, overlap=False)
    found_compute, found_link = sim_vs_real.calibrate(alone, waiting, STEPS)
    assert found_compute.base_s == pytest.approx(base_s, rel=0.1)
    assert found_link.latency_s == pytest.approx(latency_s, rel=0.15)


def test_a_prediction_is_good_within_its_bound() -> None:
    assert [Within(0.15).is_met(ratio) for ratio in (0.84, 0.86, 1.0, 1.14, 1.16)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert str(Within(0.25)) == "1 +- 0.25"
