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
from pydownpour.testing import Check
from tests.reference.optimizers import Fragment


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


def test_pushes_and_fetches_have_a_draw_each() -> None:
    rule = BFASGD(c_push=1.0, c_fetch=3.0, deviation=1.0, eps=1e-12).replica()
    assert rule.draws == 2
    for push, fetch in [(0.4, 0.2), (0.4, 0.3), (0.6, 0.2), (0.6, 0.3)]:
        actions = rule.after_step(1, ClusterView(draws=(push, fetch)))
        expected = Actions(push=True, fetch=fetch < 0.25, wait=True, again=push > 0.5)
        assert actions == expected
    only_pushes = BFASGD(c_push=1.0, c_fetch=0.0, deviation=1.0, eps=1e-12).replica()
    assert only_pushes.draws == 1
    assert only_pushes.after_step(1, ClusterView(draws=(0.6,))).again
    assert (BFASGD(c_push=1.0).shard().repeats, BFASGD().shard().repeats) == (True, False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"c_fetch": -0.1}, "c_fetch=-0.1"),
        ({"c_push": float("nan")}, "c_push=nan"),
        ({"eps": 0.0}, "eps=0 "),
        ({"deviation": -1.0}, "deviation=-1"),
        ({"overlap": "yes"}, "overlap='yes'"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BFASGD(**settings)


def job(policy: Policy | dp.Phases, optimizer: Any = None) -> dp.Job:
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


def test_dropped_pushes_are_applied_and_do_not_travel(tmp_path: Path) -> None:
    """Each push is applied; of those whose gradient is not sent the headers travel."""
    sent, repeated = [], []
    for cost in (0.0, 1.0, 50.0):
        policy = BFASGD(c_fetch=0.0, c_push=cost, deviation=1.0)
        report, _ = trained(policy, tmp_path / f"{cost}", seed=2)
        assert report["pushes"]["applied"] == report["pushes"]["acked"] == 40
        assert report["units"] == 10
        sent.append(sum(one["bytes_received"] for one in report["shards"]))
        repeated.append(report["pushes"]["repeated"])
    assert repeated[0] == 0 < repeated[1] < repeated[2] <= 37, "each of three replicas sends one"
    payload = 700 * 4
    for some, count in zip(sent[1:], repeated[1:], strict=True):
        assert sent[0] - some == pytest.approx(count * payload, rel=0.1)


def test_the_first_push_under_a_rule_is_whole() -> None:
    """What was pushed under the rule before, no shard need have kept."""
    again: dict[int, list[bool]] = {1: [], 2: []}

    class Watch(Check):
        name = "what was sent again, by version"

        def pushed(self, life: Any, push: Any) -> None:
            again[life.trainer.ruling.version].append(push.again is not None)

    phases = dp.Phases(
        (Downpour(overlap=False, local_rate=0.0), 12),
        BFASGD(c_fetch=0.0, c_push=50.0, deviation=1.0),
    )
    dp.simulate(job(phases, dp.SGD(lr=0.01)), replicas=1, shards=2, seed=3, checks=[Watch])
    assert len(again[1]) >= 12
    assert not any(again[1])
    assert not again[2][0]
    assert sum(again[2]) > len(again[2]) / 2


def test_where_nothing_fits_everything_is_sent(tmp_path: Path) -> None:
    """No shard has room for a gradient: as if pushes cost nothing, but for what is asked first."""
    policy = BFASGD(c_fetch=0.0, c_push=50.0, deviation=1.0)
    limits_of = limits.Limits(kept_size_max=0)
    report = dp.simulate(job(policy), replicas=3, shards=2, seed=2, limits=limits_of)
    assert (report["pushes"]["applied"], report["pushes"]["repeated"]) == (40, 0)


def test_one_replica_is_sequential_with_its_last_gradient_to_the_bit(tmp_path: Path) -> None:
    """Which pushes were dropped is read from what travelled; the rest is a few lines of numpy."""
    again: list[bool] = []

    class Watch(Check):
        name = "what was sent again"

        def pushed(self, life: Any, push: Any) -> None:
            again.append(push.again is not None)

    chain = dp.chain(dp.FASGD(), dp.SGD(lr=0.01))
    policy = BFASGD(c_fetch=0.0, c_push=1.0, deviation=1.0)
    report = dp.simulate(
        job(policy, chain), replicas=1, shards=2, seed=3, checks=[Watch], run_folder=tmp_path / "r"
    )
    w = safetensors.numpy.load_file(tmp_path / "r" / "parameters.safetensors")["w"]
    slow = Fragment(chain.parts(), np.linspace(-1, 1, 700, dtype=np.float32))
    order = [int(i) for i in job(policy).data.indices(0, 0, 40)]  # type: ignore[union-attr]
    last, base = np.zeros(700, np.float32), 0
    for step, (sample, is_again) in enumerate(zip(order, again, strict=True)):
        if not is_again:
            noise = np.random.default_rng(sample).standard_normal(700)
            last, base = (slow.w + noise).astype(np.float32), step
        slow.take(last, base_version=base)
    assert sum(again) == report["pushes"]["repeated"] > 5
    np.testing.assert_array_equal(w, slow.w)
