"""Two ways to mend stale gradients by the parameters they were computed from, beside plain ASGD.

Many replicas of equal speed, a perceptron with 64 hidden units, minibatches of 8: each gradient is
about as stale as there are other replicas. DC-ASGD corrects it to where the parameters are now;
Gap-Aware divides each element by how many steps its parameter has moved since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from experiments.frame import worlds
from experiments.frame.charts import Bars, Chart, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Results

import pydownpour as dp
from pydownpour.optimizers import Part

BATCH = 8
HISTORY = 48
"""Versions that are kept: more than the stalest gradient needs, but for the last ones of a run."""
PARTS: dict[str, tuple[Part, ...]] = {
    "asgd": (),
    "dc": (dp.DelayCompensated(2.0, history=HISTORY),),
    "gap": (dp.GapAware(history=HISTORY),),
    "staleness": (dp.StalenessDecay(),),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """``rule``: what stands before SGD, one of asgd, dc, gap, staleness."""

    rule: str
    lr: float
    replicas: int = 32
    passes: int = 12


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""
    job = worlds.digits_job(
        optimizer=dp.chain(*PARTS[setting.rule], dp.SGD(lr=setting.lr)),
        policy=dp.Downpour(overlap=False, local_rate=0.0),
        batch=BATCH,
        passes=setting.passes,
        seed=seed,
    )
    report = worlds.simulate(job, replicas=setting.replicas, seed=seed)
    gone = sum(shard["bases_gone"] for shard in report["shards"])
    return {**worlds.figures(report), "gone": gone}


LOW, HIGH = 0.05, 0.2
FULL = [Setting(rule, LOW) for rule in PARTS]
FULL += [Setting(rule, HIGH) for rule in ("asgd", "gap", "staleness")]
SHORT = [
    Setting("asgd", LOW, passes=8),
    Setting("dc", LOW, passes=8),
    Setting("asgd", HIGH, passes=4),
    Setting("gap", HIGH, passes=4),
]


def claims(results: Results) -> Iterator[Claim]:
    """DC-ASGD where ASGD still learns, Gap-Aware where it does not any more."""
    found = {(s.rule, s.lr): s for s in results.settings()}

    def accuracy(rule: str, lr: float) -> float:
        return results.mean(found[rule, lr], "accuracy")

    yield Claim(
        "32 replicas of equal speed: mean staleness",
        results.mean(found["asgd", LOW], "staleness"),
        at_least=26,
        at_most=32,
    )
    yield Claim(
        f"lr {LOW}: accuracy that delay compensation adds",
        accuracy("dc", LOW) - accuracy("asgd", LOW),
        at_least=0.03,
    )
    losses = [results.mean(found[rule, LOW], "loss") for rule in ("dc", "asgd")]
    yield Claim(f"lr {LOW}: loss of DC-ASGD over ASGD", losses[0] / losses[1], at_most=0.75)
    yield Claim(f"lr {HIGH}: accuracy of ASGD", accuracy("asgd", HIGH), at_most=0.3)
    least = 0.85 if results.form == "full" else 0.6
    yield Claim(f"lr {HIGH}: accuracy of Gap-Aware", accuracy("gap", HIGH), at_least=least)


def charts(results: Results) -> list[Chart]:
    names = {"asgd": "ASGD", "dc": "DC-ASGD", "gap": "Gap-Aware", "staleness": "1/staleness"}
    rates = sorted({s.lr for s in results.settings()})
    series = [
        Series(
            names[rule],
            [
                (rates.index(s.lr), results.mean(s, "accuracy"))
                for s in results.settings()
                if s.rule == rule
            ],
        )
        for rule in PARTS
        if any(s.rule == rule for s in results.settings())
    ]
    return [
        Bars("32 replicas", "rate", "test accuracy", [f"{lr:g}" for lr in rates], series, y_to=1.0)
    ]


EXPERIMENT = Experiment(
    title="Delay compensation and Gap-Aware against plain asynchronous SGD",
    source="Zheng et al., ICML 2017 (DC-ASGD); Barkai et al., ICLR 2020 (Gap-Aware)",
    setting=Setting,
    measure=measure,
    columns=[
        Column("loss", "test loss"),
        Column("accuracy", "accuracy"),
        Column("staleness", "staleness", ".1f"),
        Column("gone", "bases gone", ".0f"),
    ],
    full=Form(FULL, seeds=6),
    short=Form(SHORT),
    claims=claims,
    charts=charts,
    notes=(
        "With 16 replicas at the low rate ASGD and DC-ASGD are the same within half a point: what "
        "is mended must be broken first. Gap-Aware takes shorter steps the staler a gradient is, "
        "so it is slower than ASGD where that still learns, and wants a higher rate; there it is "
        "about as good as dividing by the staleness itself. Delay compensation does not shorten "
        "steps, and at the high rate it diverges with ASGD. At the low rate it gains a different "
        "amount with each seed, and with one of six nothing."
    ),
)
