"""SSP waits for hiccups no more: the same loss in less time, until the slack lets copies grow old.

Four replicas; a step takes 1, give or take 0.3, and three times as long at one step in ten; a fetch
takes 0.3 of a step. Time is told in steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from experiments.frame import worlds
from experiments.frame.charts import Chart, Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp

REPLICAS, BATCH, STEP_S, FETCH_S = 4, 16, 0.1, 0.03


@dataclasses.dataclass(frozen=True)
class Setting:
    """``slack``: None is infinite. 19 passes are 400 steps of each replica."""

    slack: int | None
    reads: str = "lazy"
    passes: int = 19
    target: float = 0.25


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""
    computed: list[float] = []

    def pause(replica: int, chance: random.Random) -> float:
        slow = 3.0 if chance.random() < 0.1 else 1.0
        computed.append(STEP_S * slow * max(0.3, chance.gauss(1.0, 0.3)))
        return computed[-1]

    reads: Any = setting.reads
    job = worlds.digits_job(
        optimizer=dp.SGD(lr=0.05),
        policy=dp.SSP(slack=setting.slack, reads=reads),
        batch=BATCH,
        unit=4 * BATCH,
        passes=setting.passes,
        seed=seed,
        pause=pause,
    )
    report = worlds.simulate(job, replicas=REPLICAS, seed=seed, step_s=0.0, latency_s=FETCH_S / 2)
    curve = [[at / STEP_S, loss] for at, loss in worlds.curve(report, "loss")]
    return {
        **worlds.figures(report),
        "time": report["seconds"] / STEP_S,
        "to_target": worlds.time_to(curve, setting.target),
        "share": sum(computed) / (REPLICAS * report["seconds"]),
        "fetches": sum(s["fetches"] for s in report["shards"]) / report["pushes"]["applied"],
        "curve": curve,
    }


FULL = [Setting(slack) for slack in (0, 1, 3, 10, 20, 50, None)]
FULL += [Setting(slack, "eager") for slack in (3, 10)]
SHORT = [Setting(slack, passes=8, target=0.4) for slack in (0, 3, None)]
BESIDE = {
    0: (906, 348, 0.54, 1.0, 0.147, 0.967),
    1: (687, 260, 0.71, 0.85, 0.147, 0.967),
    3: (588, 227, 0.83, 0.56, 0.148, 0.965),
    10: (524, 202, 0.94, 0.21, 0.148, 0.965),
    20: (509, 205, 0.97, 0.11, 0.154, 0.964),
    50: (499, 197, 0.99, 0.02, 0.170, 0.957),
    None: (501, math.inf, 1.0, 0.0, 1.37, 0.856),
}
NAMES = ("time", "to_target", "share", "fetches", "loss", "accuracy")


def claims(results: Results) -> Iterator[Claim]:
    lazy = [s for s in results.settings() if s.reads == "lazy"]
    by_slack = {s.slack: s for s in lazy}
    bulk, some, never = (by_slack[slack] for slack in (0, 3, None))
    ratio = results.mean(some, "to_target") / results.mean(bulk, "to_target")
    yield Claim("time to the target with slack 3, over that with 0", ratio, at_most=0.75)
    for less, more in itertools.pairwise(lazy):
        grown = results.mean(more, "share") - results.mean(less, "share")
        words = f"share of computing that slack {more.slack} adds to {less.slack}"
        yield Claim(words, grown, at_least=-0.005)
    lost = results.mean(never, "loss") / results.mean(some, "loss")
    yield Claim("without bound and lazily cached: loss over that of slack 3", lost, at_least=2.0)
    reached = results.mean(never, "to_target")
    yield Claim("and when it reaches the target: never", reached, at_least=math.inf)


def charts(results: Results) -> list[Chart]:
    lazy = [s for s in results.settings() if s.reads == "lazy"]

    def name(setting: Setting) -> str:
        return f"slack {'without end' if setting.slack is None else setting.slack}"

    curves = [s for s in lazy if s.slack in (0, 3, 10, None)]
    finite = [s for s in lazy if s.slack is not None]
    return [
        Lines(
            "Test loss over time",
            "time, in steps",
            "test loss",
            [Series(name(s), results.curve(s, "curve"), marks=False) for s in curves],
            log_y=True,
        ),
        Lines(
            "What a slack buys",
            "slack",
            "share of the time, fetches a step",
            [
                Series("computing", [(s.slack, results.mean(s, "share")) for s in finite]),
                Series("fetches", [(s.slack, results.mean(s, "fetches")) for s in finite]),
            ],
            y_from=0.0,
        ),
    ]


EXPERIMENT = Experiment(
    title="SSP: a slack takes the waiting for hiccups away",
    source="Ho et al., NIPS 2013 (SSP)",
    setting=Setting,
    measure=measure,
    columns=[
        Column("time", "time", ".0f"),
        Column("to_target", "to the target", ".0f"),
        Column("share", "computing", ".2f"),
        Column("fetches", "fetches a step", ".2f"),
        Column("loss", "test loss"),
        Column("accuracy", "accuracy"),
        Column("staleness", "staleness", ".1f"),
    ],
    full=Form(FULL, seeds=3),
    short=Form(SHORT),
    claims=claims,
    charts=charts,
    beside={
        Setting(slack): dict(zip(NAMES, values, strict=True)) for slack, values in BESIDE.items()
    },
    published=[
        Published(
            "faster than fully synchronous and than asynchronous schemes, on several problems",
            "abstract",
            read=True,
        ),
    ],
    notes=(
        "A loss is of the shards' parameters. With no bound and lazy reads a copy is never "
        "renewed: each replica trains on its own, and what they add up to is nobody's descent."
    ),
)
