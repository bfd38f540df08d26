"""A policy that cannot work is refused where its user wrote it, in words."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.errors import ConfigError
from pydownpour.optimizers import SGD, Clip
from pydownpour.policy import (
    Accumulate,
    Actions,
    Apply,
    ClusterView,
    Decision,
    NotYet,
    Policy,
    PushInfo,
    Reduction,
    ReplicaRule,
    Scale,
    ShardRule,
    Wait,
)


class Rule(ReplicaRule):
    def after_step(self, clock: int, view: ClusterView) -> Actions:
        return Actions(push=True, fetch=True)


class Taking(ShardRule):
    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Apply()


@dataclasses.dataclass(frozen=True)
class Good(Policy):
    rate: float = 0.5

    def replica(self) -> ReplicaRule:
        return Rule()

    def shard(self) -> ShardRule:
        return Taking()


def declared(policy: Policy) -> dp.Job:
    return dp.Job(
        parameters={"w": np.zeros(3, np.float32)}, optimizer=dp.SGD(lr=1.0), policy=policy
    )


def test_a_class_of_the_users_own_is_taken() -> None:
    policy = declared(Good(rate=0.25)).policy
    assert isinstance(policy, Good)
    assert policy.to_wire() == {"name": "good", "rate": 0.25}


class Unfrozen(Good):
    """No dataclass of its own."""


@dataclasses.dataclass(frozen=True)
class Named(Good):
    name = "downpour"


@dataclasses.dataclass(frozen=True)
class Forgetful(Good):
    seen: Any = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", None)


@dataclasses.dataclass(frozen=True)
class Changing(Good):
    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", self.rate * 2)


@dataclasses.dataclass(frozen=True)
class Heavy(Good):
    table: Any = (1, 2)


def with_shard(rule: type[ShardRule]) -> Policy:
    @dataclasses.dataclass(frozen=True)
    class Mine(Good):
        def shard(self) -> ShardRule:
            return rule()

    return Mine()


def with_replica(**attributes: Any) -> Policy:
    @dataclasses.dataclass(frozen=True)
    class Mine(Good):
        def replica(self) -> ReplicaRule:
            rule = Rule()
            for name, value in attributes.items():
                setattr(rule, name, value)
            return rule

    return Mine()


DESCENDING = SGD(lr=1.0)


def training(outer: Any = DESCENDING, among: Any = None, **attributes: Any) -> Policy:
    """One whose replicas train by themselves, or should."""

    @dataclasses.dataclass(frozen=True)
    class Mine(Good):
        def replica(self) -> ReplicaRule:
            return with_replica(**attributes).replica()

        def outer(self) -> Any:
            return outer

        def reduction(self) -> Any:
            return among

    return Mine()


class Answering(Taking):
    answer: Any = None

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return self.answer  # type: ignore[no-any-return]


def answering(answer: Any, *, combines: bool = True) -> Policy:
    return with_shard(type("Answers", (Answering,), {"answer": answer, "combines": combines}))


class Failing(Taking):
    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        raise ZeroDivisionError("by nobody")


class Waiting(Taking):
    def due(self, view: ClusterView, now: float) -> Wait | None:
        return Wait("{on}", on=(2,))


class Secretive(Taking):
    count = 0

    def arrived(self, push: PushInfo) -> None:
        self.count += 1

    def export(self) -> dict[str, Any]:
        return {"round": self.round, "count": self.count}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Unfrozen(), r"policy Unfrozen: put @dataclasses.dataclass\(frozen=True\) above the class"),
        (Named(), "the name 'downpour' is taken by one of ours"),
        (Forgetful(), "made again from .* failed: TypeError"),
        (Changing(rate=1.0), "made again from its settings it is"),
        (Heavy(), r"table=\(1, 2\) does not travel to shards and replicas"),
        (Good(rate=2.0**60), "does not travel to shards"),
        (with_replica(payload="values"), "payload='values'; known are accrued, delta"),
        (with_replica(payload="delta"), r"payload='delta' and outer\(\)=None: replicas that push"),
        (training(payload="accrued"), r"payload='accrued' and outer\(\)=SGD"),
        (training(payload="delta", land="replace"), "land='replace' would lose what the"),
        (training(payload="delta", land="keep", outer=Clip(1.0)), r"outer\(\) failed: ConfigError"),
        (training(payload="delta", land="keep", outer="sgd"), r"outer\(\) is 'sgd', must be Part"),
        (training(payload="delta", land="keep", among=Reduction()), "deltas are neither reduced"),
        (with_replica(land="elastic"), "land='elastic'; known are replace, redo, keep"),
        (with_replica(in_flight=0), "in_flight=0 must be a whole number, at least 1"),
        (with_replica(local_rate=-1.0), "local_rate=-1.0 must be at least 0, or None"),
        (answering(None), r"announce\(push, view\) is None, must be Apply or Accumulate or"),
        (answering(Accumulate(0), combines=False), "must say combines = True"),
        (answering(Accumulate(1)), "accumulates into round 1, and round 0 is open"),
        (answering(Accumulate(0, weight=0.0)), "weight=0.0 must be positive and finite"),
        (answering(Apply(Scale(staleness_power=9.0))), "the power 0 to 8"),
        (answering(Apply(Scale(factor=float("nan")))), "the factor must be finite"),
        (answering(Apply(staleness_max=-1)), "staleness_max=-1 must be a whole number, or None"),
        (answering(NotYet("replica 7", on=(1, 7))), r"on=\(1, 7\) holds \[7\], and live are \[1\]"),
        (answering(NotYet("replica 1", on=[1])),  # type: ignore[arg-type]
         r"on=\[1\] must be a tuple of replicas' ids"),
        (with_shard(Waiting), r"due\(view, now\): on=\(2,\) holds \[2\]"),
        (with_shard(Failing), "failed: ZeroDivisionError: by nobody"),
        (with_shard(Secretive), "a rule that loaded what another exported exports"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_what_cannot_work_is_refused_at_the_users_line(policy: Policy, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declared(policy)
