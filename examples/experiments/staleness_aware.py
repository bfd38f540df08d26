"""With the synchronous rate asynchronous training diverges; divided by the staleness it does not.

The paper's figure 3 on digits: 30 learners, minibatches of 4, momentum 0.9, 30 passes. A step takes
1, give or take 0.05; n-softsync makes one update of 30 / n gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from experiments.frame import worlds
from experiments.frame.charts import Bars, Chart, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp

LEARNERS, BATCH = 30, 4


@dataclasses.dataclass(frozen=True)
class Setting:
    """``rate``: alpha0, "fixed" for all gradients or divided by the staleness "tau" of each."""

    n: int
    alpha0: float
    rate: str
    passes: int = 30


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""
    kind = dp.Softsync if setting.rate == "fixed" else dp.StalenessAware
    job = worlds.digits_job(
        optimizer=dp.Momentum(lr=setting.alpha0, momentum=0.9),
        policy=kind(n=setting.n, replicas=LEARNERS),
        batch=BATCH,
        unit=4 * BATCH,
        passes=setting.passes,
        seed=seed,
    )
    found = worlds.figures(worlds.simulate(job, replicas=LEARNERS, seed=seed, jitter=0.05))
    return {**found, "error": 1.0 - found["accuracy"]}


SIZES = (1, 5, 15, 30)
RATES = ("fixed", "tau")
FULL = [Setting(n, alpha0, rate) for alpha0 in (0.02, 0.1) for n in SIZES for rate in RATES]
SHORT = [Setting(n, 0.02, rate, passes=12) for n, rate in ((1, "tau"), (30, "tau"), (30, "fixed"))]
BESIDE = {
    (1, 0.02): (0.038, 0.038),
    (5, 0.02): (0.030, 0.035),
    (15, 0.02): (0.899, 0.039),
    (30, 0.02): (0.899, 0.037),
    (1, 0.1): (0.031, 0.028),
    (5, 0.1): (0.899, 0.031),
    (15, 0.1): (0.899, 0.047),
    (30, 0.1): (0.901, 0.033),
}


def claims(results: Results) -> Iterator[Claim]:
    for setting in results.settings():
        error, words = results.mean(setting, "error"), f"n = {setting.n}, alpha0 {setting.alpha0}"
        if setting.alpha0 == 0.02 and setting.rate == "tau":
            yield Claim(
                f"{words}, divided by the staleness: test error",
                error,
                at_most=0.06 if results.form == "full" else 0.1,
            )
        if setting.alpha0 == 0.02 and setting.rate == "fixed" and setting.n >= 15:
            yield Claim(f"{words}, fixed: test error", error, at_least=0.8)


def charts(results: Results) -> list[Chart]:
    sizes = sorted({s.n for s in results.settings()})
    passes = results.settings()[0].passes
    words = {"fixed": "fixed rate", "tau": "divided by the staleness"}
    bars = [
        Series(
            words[rate],
            [
                (i, 100 * results.mean(Setting(n, 0.02, rate, passes), "error"))
                for i, n in enumerate(sizes)
            ],
        )
        for rate in RATES
    ]
    return [
        Bars(
            "30 learners, alpha0 0.02",
            "n of n-softsync",
            "test error in %",
            [str(n) for n in sizes],
            bars,
            y_to=100.0,
        ),
    ]


EXPERIMENT = Experiment(
    title="A rate divided by the staleness keeps what the fixed rate loses",
    source="Zhang, Gupta, Lian, Liu, IJCAI 2016; n-softsync: Gupta, Zhang, Wang 2015 (Rudra)",
    setting=Setting,
    measure=measure,
    columns=[
        Column("error", "test error"),
        Column("staleness", "staleness", ".2f"),
        Column("stalest", "stalest", ".0f"),
    ],
    full=Form(FULL, seeds=2),
    short=Form(SHORT),
    claims=claims,
    charts=charts,
    beside={
        Setting(n, alpha0, rate): {"error": error}
        for (n, alpha0), errors in BESIDE.items()
        for rate, error in zip(RATES, errors, strict=True)
    },
    published=[
        Published(
            "CIFAR-10, 30 learners, fixed rate: 15- and 30-softsync do not converge, test error "
            "stays 90 %; with alpha0 / tau all n from 1 to 30 reach about 18 %, as hardsync does",
            "figure 3",
            read=True,
        ),
    ],
    notes=(
        "tau = 0 and tau = 1 are both divided by 1. For n = 30 each gradient is an update. How "
        "stale gradients are for which n is what softsync.py asserts."
    ),
)
