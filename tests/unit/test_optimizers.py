"""Optimizer descriptions: what they accept, what they say, what they compile to."""

from typing import Any

import pytest

from pydownpour import _core
from pydownpour.errors import ConfigError
from pydownpour.optimizers import (
    PARTS,
    RULES,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    Momentum,
    Nesterov,
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
}
PLANES = {SGD: 0, Momentum: 1, Nesterov: 1, Adagrad: 1, Adam: 2, AdamW: 2}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_compiles_alone_and_in_a_chain(rule: Any) -> None:
    example = EXAMPLES[rule]
    assert _core.Optimizer(example.parts()).planes == PLANES[rule]
    whole = chain(*(EXAMPLES[part] for part in PARTS), example)
    assert _core.Optimizer(whole.parts()).planes == PLANES[rule]
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
    ],
)
def test_numbers_out_of_range_are_named(make: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        make()


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
