"""B-FASGD: when it fetches, by whose word, and what it is where nothing is left to chance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour import limits
from pydownpour.errors import ConfigError
from pydownpour.policy import Actions, Apply, ClusterView, Policy, PushInfo, check
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.downpour import Downpour


def fetches(policy: BFASGD, r: float, deviation: float) -> bool:
    rule = policy.replica()
    assert rule.draws == 1
    actions = rule.after_step(3, ClusterView(deviation=deviation, draws=(r,)))
    assert actions == Actions(push=True, fetch=actions.fetch, wait=True)
    return actions.fetch


def test_a_fetch_is_as_likely_as_the_equation_says() -> None:
    """r < 1 / (1 + c / (vbar + eps)), Odena 2016."""
    policy = BFASGD(c_fetch=0.03, eps=0.002)
    for deviation in (0.0, 0.001, 0.028, 7.0):
        chance = 1 / (1 + 0.03 / (deviation + 0.002))
        assert fetches(policy, np.nextafter(chance, 0), deviation)
        assert not fetches(policy, np.nextafter(chance, 1), deviation)
    rng = random.Random(5)
    count = sum(fetches(policy, rng.random(), 0.028) for _ in range(10_000))
    assert abs(count / 10_000 - 0.5) < 0.02


def test_a_fixed_deviation_is_what_counts() -> None:
    policy = BFASGD(c_fetch=1.0, eps=1e-9, deviation=3.0)
    assert fetches(policy, 0.74, 0.0)
    assert not fetches(policy, 0.76, 1e9)


def test_where_a_fetch_costs_nothing_nothing_is_left_to_chance() -> None:
    free, plain = BFASGD(c_fetch=0.0).replica(), Downpour(overlap=False, local_rate=0.0).replica()
    assert free.draws == plain.draws == 0
    for clock in range(5):
        view = ClusterView(deviation=0.5)
        assert free.after_step(clock, view) == plain.after_step(clock, view)
    push = PushInfo(replica=1, clock=1, samples=1, norm=1.0)
    assert BFASGD().shard().announce(push, ClusterView()) == Apply()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"c_fetch": -0.1}, "c_fetch=-0.1"),
        ({"eps": 0.0}, "eps=0 "),
        ({"deviation": -1.0}, "deviation=-1"),
        ({"overlap": "yes"}, "overlap='yes'"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BFASGD(**settings)


def job(policy: Policy, optimizer: Any = None) -> dp.Job:
    """Each parameter is drawn to its own place, with noise that depends on nothing but the step."""
    made = dp.Job(
        parameters={"w": np.linspace(-1, 1, 700, dtype=np.float32)},
        optimizer=optimizer or dp.chain(dp.FASGD(), dp.SGD(lr=0.01)),
        policy=policy,
        data=dp.Work(40, unit=4),
    )

    @made.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                noise = np.random.default_rng(int(batch[0])).standard_normal(700)
                gradient = (replica.parameters["w"] + noise).astype(np.float32)
                await replica.step({"w": gradient}, loss=0.0)

    return made


def test_a_job_whose_optimizer_does_not_tell_is_refused_with_words() -> None:
    with pytest.raises(ConfigError, match=r"put dp.FASGD\(\) before the rule"):
        job(BFASGD(), dp.SGD(lr=0.1))
    for policy in (BFASGD(c_fetch=0.0), BFASGD(deviation=0.1)):
        assert job(policy, dp.SGD(lr=0.1)).policy == policy


def test_as_many_draws_as_the_limit_allows() -> None:
    rule, policy = BFASGD().replica(), BFASGD()
    rule.draws = limits.DRAWS_MAX + 1
    object.__setattr__(policy, "replica", lambda: rule)
    with pytest.raises(ConfigError, match=r"draws=17 .* 0 to 16 \(DRAWS_MAX\)"):
        check(policy)


def trained(policy: Policy, folder: Path, seed: int) -> tuple[dict[str, Any], Any]:
    report = dp.simulate(job(policy), replicas=3, shards=2, seed=seed, run_folder=folder)
    return report, safetensors.numpy.load_file(folder / "parameters.safetensors")["w"]


def test_without_cost_it_is_fasgd_to_the_bit(tmp_path: Path) -> None:
    """PAPERS' identity: B-FASGD with c = 0 is FASGD; in the same world, of three replicas."""
    for seed in range(3):
        free, w_free = trained(BFASGD(c_fetch=0.0), tmp_path / f"free-{seed}", seed)
        plain = Downpour(overlap=False, local_rate=0.0)
        reference, w = trained(plain, tmp_path / f"plain-{seed}", seed)
        np.testing.assert_array_equal(w_free, w)
        assert free["staleness"] == reference["staleness"]


def test_replicas_hear_of_the_deviation_and_fetch_less(tmp_path: Path) -> None:
    """It begins at ``initial``; the dearer a fetch, the fewer there are; each push is applied."""
    counts = []
    for cost in (0.0, 1.0, 100.0):
        report, _ = trained(BFASGD(c_fetch=cost), tmp_path / f"{cost}", seed=1)
        assert report["pushes"]["applied"] == 40
        counts.append(sum(one["fetches"] for one in report["replicas"]))
    assert counts[0] > counts[1] > counts[2] > 0
