"""FASGD scales each element by its own deviation, not all by the staleness; B-FASGD fetches rarely.

A perceptron with 200 hidden units; clients in random order: what a step takes is exponentially
distributed, so whoever is next is anybody. Each waits for its push and its fetch.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Iterator
from typing import Any

from experiments.frame import worlds
from experiments.frame.charts import Bars, Chart, Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp
from pydownpour.policy import Policy, ReplicaRule, ShardRule
from pydownpour.policy.pieces import combine, scale

STEP_S = 0.05
RATES = {"sasgd": 0.04, "fasgd": 0.005}
"""The paper's, each the best of 16 over all four settings."""
WINDOW = 0.99
"""Of FASGD's moving averages: the paper prints none, and with 0.9 a minibatch of one is noise."""


@dataclasses.dataclass(frozen=True)
class ByStaleness(Policy):
    """SASGD: each gradient divided by its staleness."""

    def replica(self) -> ReplicaRule:
        return dp.Downpour(overlap=False, local_rate=0.0).replica()

    def shard(self) -> ShardRule:
        return combine.Each(scale.Scale(staleness_power=1.0))


@dataclasses.dataclass(frozen=True)
class Setting:
    """``batch`` is mu, ``replicas`` lambda in the paper; ``cost`` c_fetch, 0: fetch always."""

    rule: str
    batch: int
    replicas: int
    cost: float = 0.0
    steps: int = 12_000


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""

    def pause(replica: int, chance: random.Random) -> float:
        return chance.expovariate(1.0 / STEP_S)

    optimizer: Any = dp.SGD(lr=RATES[setting.rule])
    policy: dp.Policy = ByStaleness()
    if setting.rule == "fasgd":
        optimizer = dp.chain(dp.FASGD(gamma=WINDOW, beta=WINDOW, eps=1e-4), optimizer)
        policy = dp.BFASGD(c_fetch=setting.cost)
    job = worlds.digits_job(
        optimizer=optimizer,
        policy=policy,
        batch=setting.batch,
        unit=8 * setting.batch,
        passes=max(1, round(setting.steps * setting.batch / worlds.SAMPLES)),
        hidden=200,
        seed=seed,
        pause=pause,
    )
    report = worlds.simulate(job, replicas=setting.replicas, seed=seed, step_s=0.0)
    # FASGD's loss leaps now and then: what a run ends with may be any of it.
    ended = [each["metrics"] for each in report["evaluations"]]
    late = ended[-max(1, len(ended) // 3) :]
    losses = [metrics["loss"] for metrics in late]
    fetches = sum(replica["fetches"] for replica in report["replicas"])
    return {
        **worlds.figures(report),
        "loss": statistics.median(losses),
        "accuracy": statistics.median(metrics["accuracy"] for metrics in late),
        "worst": max(losses),
        "fetches": fetches / report["pushes"]["applied"],
    }


SETTINGS = ((1, 128), (4, 32), (8, 16), (32, 4))
FULL = [Setting(rule, mu, n) for mu, n in SETTINGS for rule in RATES]
RARE = Setting("fasgd", 32, 4, cost=0.12)
FULL += [RARE, Setting("fasgd", 8, 16, cost=0.15)]
SHORT = [Setting(rule, mu, n, steps=2000) for mu, n in SETTINGS[1:] for rule in RATES]
SHORT += [dataclasses.replace(RARE, steps=2000)]

BESIDE = {
    Setting("sasgd", 1, 128): (0.301, 0.931),
    Setting("fasgd", 1, 128): (0.241, 0.929),
    Setting("sasgd", 4, 32): (0.148, 0.967),
    Setting("fasgd", 4, 32): (0.088, 0.978),
    Setting("sasgd", 8, 16): (0.126, 0.961),
    Setting("fasgd", 8, 16): (0.079, 0.979),
    Setting("sasgd", 32, 4): (0.092, 0.976),
    Setting("fasgd", 32, 4): (0.075, 0.977),
}


def claims(results: Results) -> Iterator[Claim]:
    def mean(setting: Setting, figure: str) -> float:
        return results.mean(setting, figure)

    for setting in results.settings():
        if setting.rule == "fasgd" and not setting.cost:
            other = dataclasses.replace(setting, rule="sasgd")
            ratio = mean(setting, "loss") / mean(other, "loss")
            words = f"mu {setting.batch}, lambda {setting.replicas}: loss of FASGD over SASGD"
            yield Claim(words, ratio, at_most=0.999)
    is_full = results.form == "full"
    for rare in (s for s in results.settings() if s.cost):
        whole = dataclasses.replace(rare, cost=0.0)
        words = f"mu {rare.batch}, lambda {rare.replicas}, c_fetch {rare.cost:g}"
        # The first steps differ most, and are the best worth a fetch.
        few = 0.11 if is_full else 0.25
        yield Claim(f"{words}: fetches a push", mean(rare, "fetches"), at_most=few)
        lost = mean(whole, "accuracy") - mean(rare, "accuracy")
        ratio = mean(rare, "loss") / mean(whole, "loss")
        if rare.batch == RARE.batch:
            most = 0.005 if is_full else 0.02
            yield Claim(f"{words}: accuracy that it loses", lost, at_most=most)
            if is_full:
                yield Claim(f"{words}: loss over that of every fetch", ratio, at_most=1.05)
        else:
            yield Claim(f"{words}, not free: accuracy that it loses", lost, at_most=0.04)
            yield Claim(f"{words}, not free: loss over that of every fetch", ratio, 1.05)


def charts(results: Results) -> list[Chart]:
    steps = results.settings()[0].steps

    def loss(rule: str) -> list[tuple[float, float]]:
        found = [(i, Setting(rule, mu, n, 0.0, steps)) for i, (mu, n) in enumerate(shown)]
        return [(i, results.mean(s, "loss")) for i, s in found if s in results.settings()]

    def frontier(mu: int, n: int) -> list[tuple[float, float]]:
        found = [s for s in results.settings() if (s.rule, s.batch) == ("fasgd", mu)]
        return sorted((results.mean(s, "fetches"), results.mean(s, "accuracy")) for s in found)

    shown = [(mu, n) for mu, n in SETTINGS if Setting("sasgd", mu, n, 0.0, steps) in
             results.settings()]  # fmt: skip
    rare = [(mu, n) for mu, n in SETTINGS if len(frontier(mu, n)) > 1]
    return [
        Bars(
            f"Test loss after {steps:,} gradients",
            "minibatch, clients",
            "test loss",
            [f"{mu}, {n}" for mu, n in shown],
            [Series(rule.upper(), loss(rule)) for rule in RATES],
        ),
        Lines(
            "B-FASGD: what fewer fetches cost",
            "fetches a push",
            "test accuracy",
            [Series(f"mu {mu}, lambda {n}", frontier(mu, n)) for mu, n in rare],
            log_x=True,
        ),
    ]


EXPERIMENT = Experiment(
    title="FASGD against SASGD, and fetching rarely",
    source="Odena 2016 (FASGD, B-FASGD)",
    setting=Setting,
    measure=measure,
    columns=[
        Column("loss", "test loss"),
        Column("worst", "worst loss"),
        Column("accuracy", "accuracy"),
        Column("staleness", "staleness", ".1f"),
        Column("fetches", "fetches a push"),
    ],
    full=Form(FULL, seeds=2),
    short=Form(SHORT),
    claims=claims,
    charts=charts,
    beside={s: {"loss": loss, "accuracy": acc} for s, (loss, acc) in BESIDE.items()},
    published=[
        Published(
            "error on MNIST of FASGD against SASGD: (1, 128) .12, .18; (4, 32) .06, .10; (8, 16) "
            ".045, .085; (32, 4) .035, .06",
            "figure 1, read off the plot",
            read=True,
        ),
        Published(
            "a tenth of the fetches costs nothing: convergence stays near the baseline for c_fetch "
            "up to 0.0625",
            "figure 3",
            read=True,
        ),
        Published(
            "accuracy .980, .980, .971, .960 at .154, .103, .060, .016 fetches a push",
            "mu 8, lambda 16",
            read=False,
        ),
    ],
    notes=(
        "The moving average is of the deviation, as the paper's text says and its equation does "
        "not. Dropped fetches count as staleness here; the author's code counts them as made.\n\n"
        "FASGD's loss leaps now and then, for a pass or so: a client that steps twice in a row has "
        "a staleness of 1, and where the deviation is small its step is large. So losses and "
        "accuracies are medians over the ends of the last third of the passes, and the worst loss "
        "among them is a column.\n\n"
        "The rates are the paper's. On digits that of SASGD is too small: of 0.04, 0.08, 0.16 and "
        "0.32 the best over all four settings is 0.16, where a plain loop of the same rules had "
        "losses of .193, .097, .097 and .102 against FASGD's .211, .086, .084 and .098 (seeds 100 "
        "and 101 for the first, 100 for the others; what single runs end with). So against a rate "
        "that was tuned here FASGD is not below with minibatches of 1, and elsewhere by no more "
        "than an eighth.\n\n"
        "c_fetch was looked for with seeds 100 to 102 of that loop; those here are others. A tenth "
        "of the fetches is free where four clients share the work, not where 16 do and copies get "
        "160 updates old: with rates of .0025 to .02, averages of .9 and .99, and eps of 1e-4 and "
        "1e-6, what was best there lost more than a point of accuracy (.963 against .976). The "
        ".980 of our throw-away simulation is of one seed; three others of its own code lose a "
        "point, too.\n\n"
        "Ten times fewer fetches are 1.8 times fewer bytes, because pushes stay: the paper says 5."
    ),
)
