"""Optimizer descriptions: what they accept, what they say, what they compile to."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pydownpour import _core, limits
from pydownpour.errors import ConfigError
from pydownpour.optimizers import (
    FASGD,
    PARTS,
    RULES,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    Cosine,
    DelayCompensated,
    GapAware,
    LinearScaling,
    Momentum,
    Nesterov,
    SqrtScaling,
    StalenessDecay,
    StepDecay,
    Trace,
    WarmUp,
    WeightDecay,
    chain,
    local_rate,
)

EXAMPLES = {
    SGD: SGD(0.1),
    Momentum: Momentum(0.1),
    Nesterov: Nesterov(0.1),
    Adagrad: Adagrad(0.1),
    Adam: Adam(),
    AdamW: AdamW(),
    Clip: Clip(1.0),
    WeightDecay: WeightDecay(0.01),
    Trace: Trace(),
    FASGD: FASGD(),
    DelayCompensated: DelayCompensated(0.5),
    GapAware: GapAware(),
    WarmUp: WarmUp(100),
    StepDecay: StepDecay(100),
    Cosine: Cosine(100, by="samples"),
    StalenessDecay: StalenessDecay(),
    LinearScaling: LinearScaling(4),
    SqrtScaling: SqrtScaling(128),
}
PLANES = {SGD: 0, Momentum: 1, Nesterov: 1, Adagrad: 1, Adam: 2, AdamW: 2}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_compiles_alone_and_in_a_chain(rule: Any) -> None:
    example = EXAMPLES[rule]
    assert _core.Optimizer(example.parts()).planes == PLANES[rule]
    whole = chain(*(EXAMPLES[part] for part in PARTS), example)
    # A trace has one of its own, FASGD three, what compensates delays one each.
    compiled = _core.Optimizer(whole.parts())
    assert (compiled.planes, compiled.history) == (PLANES[rule] + 6, 16)
    assert _core.Optimizer(example.parts()).history == 0
    assert example.describe() in whole.describe()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SGD(0.0), "lr=0"),
        (lambda: SGD(float("nan")), "lr=nan"),
        (lambda: Momentum(0.1, 1.0), "momentum=1"),
        (lambda: Nesterov(-1.0), "lr=-1"),
        (lambda: Adagrad(0.1, eps=-1.0), "eps=-1"),
        (lambda: Adagrad(0.1, eps=0.0), "would give NaN"),
        (lambda: Adam(beta1=1.0), "beta1=1"),
        (lambda: Adam(eps=0.0), "eps=0"),
        (lambda: AdamW(decay=-0.1), "decay=-0.1"),
        (lambda: Clip(0.0), "max=0"),
        (lambda: WeightDecay(float("inf")), "rate=inf"),
        (lambda: Trace(1.0), "decay=1"),
        (lambda: FASGD(beta=1.0), "beta=1"),
        (lambda: DelayCompensated(-1.0), "strength=-1"),
        (lambda: DelayCompensated(1.0, eps=0.0), "eps=0"),
        (lambda: DelayCompensated(1.0, history=257), "history=257"),
        (lambda: DelayCompensated(1.0, adaptive="no"), "adaptive='no'"),  # type: ignore[arg-type]
        (lambda: GapAware(decay=1.0), "decay=1"),
        (lambda: GapAware(history=0.5), "history=0.5"),
        (lambda: WarmUp(0), "over=0"),
        (lambda: WarmUp(2.5), "over=2.5"),
        (lambda: StepDecay(10, 1.0), "factor=1"),
        (lambda: Cosine(10, -0.1), "floor=-0.1"),
        (lambda: StalenessDecay(-1.0), "power=-1"),
        (lambda: LinearScaling(0), "records=0"),
        (lambda: SqrtScaling(0), "batch=0"),
        (lambda: SGD(10**400), "lr=inf"),
    ],
)
def test_numbers_out_of_range_are_named(make: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        make()


@pytest.mark.parametrize("kind", [*RULES, *PARTS])
@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], 1j, np.zeros(2)])
def test_what_is_no_number_is_named_for_every_field(kind: Any, value: Any) -> None:
    example: Any = EXAMPLES[kind]
    for field in dataclasses.fields(kind):
        if field.name in ("by", "adaptive"):
            continue
        with pytest.raises(ConfigError, match=f"{field.name}=.* must be a number, not a"):
            dataclasses.replace(example, **{field.name: value})


@pytest.mark.parametrize("kind", [WarmUp, StepDecay, Cosine])
def test_schedules_count_updates_or_samples(kind: Any) -> None:
    assert kind(8).parts()[0][1]["by_samples"] == 0.0
    assert kind(8, by="samples").parts()[0][1]["by_samples"] == 1.0
    for by in ["steps", None, 1.0]:
        with pytest.raises(ConfigError, match="must be 'updates' or 'samples'"):
            kind(8, by=by)


def test_as_many_versions_as_the_core_remembers() -> None:
    most = GapAware(history=limits.HISTORY_MAX)
    assert _core.Optimizer(chain(most, SGD(0.1)).parts()).history == limits.HISTORY_MAX
    longest = chain(DelayCompensated(1.0, adaptive=False, history=3), GapAware(history=2), SGD(0.1))
    assert _core.Optimizer(longest.parts()).history == 3
    with pytest.raises(ConfigError, match="history is 257, must be a whole number from 1 to 256"):
        _core.Optimizer([("gap_aware", {"decay": 0.9, "eps": 1e-9, "history": 257.0})])


def test_numbers_of_any_type_become_floats() -> None:
    for number in (1, np.float32(1), np.int64(1), Fraction(1)):
        assert SGD(number) == SGD(1.0)  # type: ignore[arg-type]
        assert type(SGD(number).lr) is float  # type: ignore[arg-type]


def test_a_chain_longer_than_a_message_takes_is_refused_at_once() -> None:
    assert len(chain(*[Clip(1.0)] * 63, SGD(0.1)).parts()) == limits.SETTINGS_MAX
    with pytest.raises(ConfigError, match=r"65 parts, the limit is 64 \(SETTINGS_MAX\)"):
        chain(*[Clip(1.0)] * 64, SGD(0.1))


def test_a_chain_ends_in_exactly_one_rule() -> None:
    with pytest.raises(ConfigError, match="must be a rule"):
        chain(Clip(1.0))
    with pytest.raises(ConfigError, match="must be a rule"):
        chain()
    with pytest.raises(ConfigError, match="must come last"):
        chain(SGD(0.1), SGD(0.1))
    with pytest.raises(ConfigError, match="not an optimizer part"):
        chain("clip", SGD(0.1))  # type: ignore[arg-type]


def test_the_core_refuses_what_it_does_not_know() -> None:
    bad: list[Any] = [[], [("swim", {"lr": 1.0})], [("sgd", {})], [("sgd", {"lr": 1.0, "x": 1.0})]]
    for parts in bad:
        with pytest.raises(ValueError, match=r"\w"):
            _core.Optimizer(parts)


def test_only_plain_sgd_has_a_local_rate_of_its_own() -> None:
    assert local_rate(SGD(0.25).parts()) == 0.25
    assert local_rate(Adagrad(0.25).parts()) == 0.0
    assert local_rate(chain(Clip(1.0), SGD(0.25)).parts()) == 0.0
