"""Minibatch times learners: what a protocol costs in error, and what it saves in time.

Learners of n-softsync and of hardsync with minibatches of mu. A step takes 20 ms and 1 ms a sample,
give or take a fifth; the rate is that of a batch of 128.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from experiments.frame import worlds
from experiments.frame.charts import Chart, Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp

STEP_S, SAMPLE_S, REFERENCE, LR = 0.02, 0.001, 128, 0.1


@dataclasses.dataclass(frozen=True)
class Setting:
    """``learners`` is lambda, ``batch`` mu in the paper."""

    protocol: str
    learners: int
    batch: int
    passes: int = 20

    @property
    def policy(self) -> dp.Policy:
        if self.protocol == "hardsync":
            return dp.HardSync(replicas=self.learners)
        n = 1 if self.protocol == "1-softsync" else self.learners
        return dp.Softsync(n=n, divide_rate=True, replicas=self.learners)

    @property
    def lr(self) -> float:
        """Hardsync: alpha0 * sqrt(lambda * mu / B); the others: Softsync divides it by n."""
        if self.protocol != "hardsync":
            return LR
        return LR * float((self.learners * self.batch / REFERENCE) ** 0.5)


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""
    job = worlds.digits_job(
        optimizer=dp.Momentum(lr=setting.lr, momentum=0.9),
        policy=setting.policy,
        batch=setting.batch,
        passes=setting.passes,
        seed=seed,
    )
    step_s = STEP_S + SAMPLE_S * setting.batch
    found = worlds.figures(
        worlds.simulate(job, replicas=setting.learners, seed=seed, step_s=step_s)
    )
    return {
        **found,
        "error": 1.0 - found["accuracy"],
        "pass_s": found["seconds"] / setting.passes,
    }


PROTOCOLS = ("hardsync", "1-softsync", "lambda-softsync")
LEARNERS = (4, 8, 16, 32)
ALIKE = [Setting(p, n, REFERENCE // n) for p in PROTOCOLS for n in LEARNERS]
LARGE = [Setting("hardsync", n, 32) for n in LEARNERS[1:]]
SHORT = [Setting(p, n, REFERENCE // n, passes=10) for p in PROTOCOLS[:2] for n in (4, 16)]
SHORT += [Setting("hardsync", 16, 32, passes=10)]


def claims(results: Results) -> Iterator[Claim]:
    def mean(setting: Setting, figure: str) -> float:
        return results.mean(setting, figure)

    alike = [s for s in results.settings() if s.learners * s.batch == REFERENCE]
    errors = [mean(s, "error") for s in alike if s.protocol == "hardsync"]
    words = f"hardsync, mu * lambda = {REFERENCE}: errors differ by"
    yield Claim(words, max(errors) - min(errors), at_most=0.015)
    for setting in alike:
        if setting.protocol == "1-softsync" and setting.learners >= 8:
            hard = dataclasses.replace(setting, protocol="hardsync")
            ratio = mean(setting, "pass_s") / mean(hard, "pass_s")
            words = f"lambda {setting.learners}: time of a pass of 1-softsync over hardsync"
            yield Claim(words, ratio, at_most=0.97)
    large = max((s for s in results.settings() if s not in alike), key=lambda s: s.learners)
    small = dataclasses.replace(large, batch=REFERENCE // large.learners)
    words = (
        f"hardsync, lambda {large.learners}: loss with mu = {large.batch} over mu = {small.batch}"
    )
    yield Claim(words, mean(large, "loss") / mean(small, "loss"), at_least=1.2)


def charts(results: Results) -> list[Chart]:
    def line(protocol: str) -> Series:
        found = [
            s
            for s in results.settings()
            if s.protocol == protocol and s.learners * s.batch == REFERENCE
        ]
        points = [(results.mean(s, "pass_s"), 100 * results.mean(s, "error")) for s in found]
        return Series(f"{protocol}, mu lambda = {REFERENCE}", sorted(points))

    large = [s for s in results.settings() if s.learners * s.batch > REFERENCE]
    points = [(results.mean(s, "pass_s"), 100 * results.mean(s, "error")) for s in large]
    return [
        Lines(
            "Time against error",
            "seconds a pass",
            "test error in %",
            [*map(line, PROTOCOLS), Series("hardsync, mu = 32", sorted(points), dashed=True)],
            log_x=True,
            y_from=0.0,
        )
    ]


EXPERIMENT = Experiment(
    title="Minibatch size, learners and protocol: time against error",
    source="Gupta, Zhang, Wang 2015 (Rudra)",
    setting=Setting,
    measure=measure,
    columns=[
        Column("pass_s", "seconds a pass", ".2f"),
        Column("loss", "test loss"),
        Column("error", "test error"),
        Column("staleness", "staleness", ".1f"),
    ],
    full=Form([*ALIKE, *LARGE], seeds=2),
    short=Form(SHORT),
    claims=claims,
    charts=charts,
    published=[
        Published("shrink the minibatch as learners are added: mu * lambda", "abstract", read=True),
    ],
    notes=(
        "The rates are alpha0 * sqrt(lambda * mu / B) for hardsync, with B = 128, and alpha0 / n "
        "for n-softsync, as the paper is said to choose them. Its text and its tables were not "
        "read, so no figure of them stands here."
    ),
)
