"""Who waits for a machine that is slow: always, or now and then.

Four replicas; a step takes 20 ms, give or take. Either all are alike, or one of them is five times
slower for good, or each is five times slower at one step in ten.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from custom_policy import Quorum
from experiments.frame import processes, worlds
from experiments.frame.charts import Bars, Chart, Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp

REPLICAS, BATCH, STEP_S, SLOWER, TARGET = 4, 16, 0.02, 5.0, 0.35
POLICIES: dict[str, tuple[dp.Policy, float]] = {
    "hardsync": (dp.HardSync(), 0.2),
    "quorum": (Quorum(share=0.75), 0.15),
    "ssp": (dp.SSP(slack=3), 0.05),
    "downpour": (dp.Downpour(), 0.05),
}
"""With its rate: what makes a mean of n gradients is given n times the rate, so that equal samples
move the parameters alike."""
KINDS = ("none", "one", "sometimes")


@dataclasses.dataclass(frozen=True)
class Setting:
    """``slow``: nobody, "one" replica for good, or everybody "sometimes"."""

    policy: str
    slow: str
    passes: int = 8


def make_job(setting: Setting, seed: int) -> dp.Job:
    """The same for a world and for processes."""

    def pause(replica: int, chance: random.Random) -> float:
        seconds = STEP_S * max(0.3, chance.gauss(1.0, 0.3))
        is_slow = replica == 0 if setting.slow == "one" else chance.random() < 0.1
        return seconds * SLOWER if is_slow and setting.slow != "none" else seconds

    policy, lr = POLICIES[setting.policy]
    return worlds.digits_job(
        optimizer=dp.SGD(lr=lr),
        policy=policy,
        batch=BATCH,
        passes=setting.passes,
        seed=seed,
        pause=pause,
    )


def figures(report: dict[str, Any]) -> dict[str, Any]:
    curve = worlds.curve(report, "loss")
    return {**worlds.figures(report), "to_target": worlds.time_to(curve, TARGET), "curve": curve}


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world; the pause is all that a step takes."""
    job = make_job(setting, seed)
    return figures(worlds.simulate(job, replicas=REPLICAS, seed=seed, step_s=0.0, latency_s=5e-4))


def measure_real(setting: Setting, seed: int) -> dict[str, Any]:
    """Six processes: a coordinator, a shard and four replicas."""
    return figures(processes.run("one_slow", setting, seed, replicas=REPLICAS, shards=1))


def claims(results: Results) -> Iterator[Claim]:
    def ratio(policy: str, other: str, slow: str) -> float:
        one, two = (results.mean(Setting(p, slow), "seconds") for p in (policy, other))
        return one / two

    yield Claim(
        "one is slow: time of HardSync over Downpour", ratio("hardsync", "downpour", "one"), 2
    )
    yield Claim("one is slow: time of SSP(3) over Downpour", ratio("ssp", "downpour", "one"), 1.8)
    yield Claim(
        "one is slow: time of a quorum of 3 over HardSync",
        ratio("quorum", "hardsync", "one"),
        at_most=0.6,
    )
    yield Claim(
        "everybody is slow now and then: time of SSP(3) over HardSync",
        ratio("ssp", "hardsync", "sometimes"),
        at_most=0.8,
    )
    if results.form == "full":
        equal = ratio("hardsync", "downpour", "none")
        yield Claim("nobody is slow: time of HardSync over Downpour", equal, 1.0, 2.0)
    for setting in results.settings():
        words = f"accuracy of {setting.policy}, slow: {setting.slow}"
        yield Claim(words, results.mean(setting, "accuracy"), 0.9)


def charts(results: Results) -> list[Chart]:
    kinds = [k for k in KINDS if any(s.slow == k for s in results.settings())]
    bars = [
        Series(
            name,
            [(i, results.mean(Setting(name, kind), "seconds")) for i, kind in enumerate(kinds)],
        )
        for name in POLICIES
    ]
    words = {"none": "nobody", "one": "one for good", "sometimes": "all, now and then"}
    lines = [Series(name, results.curve(Setting(name, "one"), "curve")) for name in POLICIES]
    return [
        Bars("Time for 8 passes", "who is slow", "seconds", [words[k] for k in kinds], bars),
        Lines("One replica is slow for good", "seconds", "test loss", lines, log_y=True),
    ]


EXPERIMENT = Experiment(
    title="Who waits for a machine that is slow",
    source="Ho et al., NIPS 2013 (SSP); Dean et al., NIPS 2012; Chen et al. 2016 (quorum)",
    setting=Setting,
    measure=measure,
    measure_real=measure_real,
    columns=[
        Column("seconds", "seconds", ".1f"),
        Column("to_target", f"to loss {TARGET}", ".1f"),
        Column("accuracy", "accuracy"),
        Column("staleness", "staleness", ".1f"),
    ],
    full=Form([Setting(policy, slow) for slow in KINDS for policy in POLICIES], seeds=3),
    short=Form([Setting(policy, slow) for slow in KINDS[1:] for policy in POLICIES]),
    real=Form([Setting(policy, slow) for slow in KINDS[1:] for policy in POLICIES]),
    claims=claims,
    charts=charts,
    published=[
        Published(
            "bounded staleness converges faster than synchronous and than asynchronous training",
            "SSP, abstract",
            read=True,
        ),
        Published("a failed or slow replica delays nobody", "Downpour, section 4.1", read=True),
    ],
    notes=(
        "Work is lent in units, so a slow replica gets less of it: what differs is only the "
        "waiting. SSP lets others run ahead by its slack, no more: it takes away what happens now "
        "and then, and a machine that is slow for good sets everybody's pace again, only three "
        "steps later. The quorum is examples/custom_policy.py."
    ),
)
