"""Model averaging, block momentum and DiLoCo: their blocks, their outer steps, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.coordinator.policies import Policies
from pydownpour.errors import ConfigError
from pydownpour.optimizers import Momentum, Nesterov, Part
from pydownpour.policy import Accumulate, Actions, ClusterView, PushInfo
from pydownpour.policy.averaging import Averaging
from tests.reference import optimizers as slow

ALL: list[type[Averaging]] = [dp.ModelAveraging, dp.BlockMomentum, dp.DiLoCo]
END = Actions(push=True, fetch=True, wait=True, after_round=True)


def made(policy: Any, optimizer: Part | None = None, **more: Any) -> dp.Job:
    return dp.Job(parameters={"w": np.zeros(3)}, optimizer=optimizer, policy=policy, **more)


@pytest.mark.parametrize("kind", ALL)
def test_a_replica_trains_for_a_block_pushes_how_far_and_waits_for_the_round(kind: Any) -> None:
    rule = kind(every=3, keeps_state=False).replica()
    steps = [rule.after_step(k, ClusterView()) for k in range(7)]
    assert [k for k, actions in enumerate(steps) if actions == END] == [2, 5]
    assert {actions for actions in steps if actions != END} == {Actions(push=False, fetch=False)}
    assert (rule.payload, rule.land, rule.local_rate, rule.trains) == ("delta", "keep", 0.0, True)
    assert rule.keeps_state is False
    assert kind(every=3, keeps_state=True).replica().keeps_state is True
    assert rule.after_flush(4, ClusterView()) == END, "a block that ends early is a block"


@pytest.mark.parametrize("kind", ALL)
def test_a_round_is_a_delta_of_every_live_replica(kind: Any) -> None:
    view = ClusterView(live=(1, 2))
    for by_samples, weight in ((False, 1.0), (True, 40.0)):
        rule = kind(by_samples=by_samples).shard()
        push = PushInfo(1, 5, samples=40, norm=1.0)
        assert rule.announce(push, view) == Accumulate(0, weight=weight)
        rule.arrived(push)
        wait = rule.due(view, 0.0)
        assert wait is not None
        assert wait.on == (2,)
        rule.arrived(push._replace(replica=2))
        assert rule.due(view, 0.0) is None
    assert rule.mean
    assert not kind(combine="sum").shard().mean


def test_outer_steps_are_parts_of_the_core_s() -> None:
    assert dp.ModelAveraging().outer() == dp.SGD(lr=1.0)
    assert dp.DiLoCo().outer() == Nesterov(lr=0.7, momentum=0.9)
    assert dp.BlockMomentum(replicas=8).outer() == Nesterov(lr=1.0, momentum=0.875)
    assert dp.BlockMomentum(momentum=0.5, nesterov="no").outer() == Momentum(lr=1.0, momentum=0.5)
    assert not dp.BlockMomentum().keeps_state
    assert dp.DiLoCo().keeps_state


@pytest.mark.parametrize("form", ["no", "exact", "cntk"])
def test_block_momentum_is_the_paper_s_filter(form: Any) -> None:
    """Its equations, in float64, against the outer optimizer's twin."""
    eta, zeta = 0.75, 0.5
    outer = dp.BlockMomentum(momentum=eta, rate=zeta, nesterov=form).outer().parts()
    w = np.linspace(-1, 1, 5).astype(np.float32)
    state = slow.initial(outer, 5)
    plain: Any = w.astype(np.float64)
    ahead, delta = plain.copy(), np.zeros(5)
    for block in range(12):
        mean = np.sin(np.arange(5) + block)  # of the models, whatever the parameters are
        w, state = slow.update(
            outer, w, (w - mean).astype(np.float32), state, slow.Context(block + 1)
        )
        delta = eta * delta + zeta * (mean - ahead)
        if form == "cntk":
            ahead = ahead + (1 + eta) * delta
        else:
            plain = plain + delta
            ahead = plain + (eta * delta if form == "exact" else 0)
        np.testing.assert_allclose(w, ahead, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (dp.ModelAveraging, {"every": 0}, "every=0 must be at least 1"),
        (dp.ModelAveraging, {"combine": "max"}, "combine='max': choose mean or sum"),
        (dp.DiLoCo, {"momentum": 1.0}, "momentum"),
        (dp.DiLoCo, {"rate": 0.0}, "lr"),
        (dp.BlockMomentum, {"momentum": -0.1}, "it must be at least 0 and below 1"),
        (dp.BlockMomentum, {"rate": -1.0}, "rate.*it must be above 0"),
        (dp.BlockMomentum, {"nesterov": "yes"}, "choose exact, no or cntk"),
    ],
)
def test_settings_out_of_range_are_named(kind: Any, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(**settings)


# -- the job ---------------------------------------------------------------------------------------


def test_a_job_has_two_optimizers_where_replicas_train() -> None:
    job = made(dp.DiLoCo(), dp.AdamW())
    assert job.optimizer == dp.AdamW()
    assert job.shard_optimizer == dp.DiLoCo().outer()
    assert made(dp.DiLoCo()).optimizer is None
    assert "no optimizer" in repr(made(dp.DiLoCo()))


@pytest.mark.parametrize(
    ("policy", "optimizer", "words"),
    [
        (dp.Downpour(), None, r"policy downpour pushes gradients, and the job has no optimizer="),
        (None, None, r"policy downpour pushes gradients"),
        (
            dp.DiLoCo(),
            dp.chain(dp.DelayCompensated(strength=1.0), dp.SGD(lr=1.0)),
            "its adaptive_delay_compensation mends stale gradients: there are none; leave it out",
        ),
        (
            dp.Phases((dp.Downpour(), 100), dp.DiLoCo()),
            dp.SGD(lr=1.0),
            r"policy diloco: shards would have momentum\(lr=0.7.*this job's have the job's optimiz",
        ),
        (
            dp.Phases((dp.DiLoCo(every=10), 100), dp.ModelAveraging()),
            dp.SGD(lr=1.0),
            r"policy modelaveraging: shards would have sgd\(lr=1\), and this job's have momentum",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(policy: Any, optimizer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(policy, optimizer)


def test_a_job_may_change_its_blocks_and_not_its_outer_step() -> None:
    phases = dp.Phases((dp.DiLoCo(every=10), 100), dp.DiLoCo(every=500))
    assert made(phases, dp.SGD(lr=1.0)).shard_optimizer == dp.DiLoCo().outer()
    policies = Policies(dp.DiLoCo(every=10), optimizer=dp.SGD(lr=1.0).parts())
    assert policies.set(dp.DiLoCo(every=20).to_wire(), 0, 1.0, "a test")
    for other in (dp.DiLoCo(rate=1.0), dp.HardSync()):
        with pytest.raises(ConfigError, match="what they do with what comes cannot change"):
            policies.set(other.to_wire(), 0, 1.0, "a test")
    assert policies.current == dp.DiLoCo(every=20)
