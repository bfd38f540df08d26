"""Only what has grown larger than a threshold is said: a hundredth of the bytes at no loss.

Four replicas with minibatches of 16 learn the digits at a rate of 0.02 each, about 1,000 of them a
replica. A threshold is given as the paper has it, in units of the update: ours is that divided by
the rate.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from experiments.frame import processes, worlds
from experiments.frame.charts import Chart, Lines, Series
from experiments.frame.experiment import Claim, Column, Experiment, Form, Published, Results

import pydownpour as dp

REPLICAS, BATCH, LR, PASSES = 4, 16, 0.02, 48
PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10
TAUS = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


@dataclasses.dataclass(frozen=True)
class Setting:
    """``tau``: the paper's threshold, or 0: every gradient is sent whole."""

    tau: float
    passes: int = PASSES
    fetch_every: int = 1

    @property
    def policy(self) -> dp.Policy:
        if not self.tau:
            return dp.Downpour(fetch_every=self.fetch_every)
        return dp.Strom(threshold=self.tau / LR, fetch_every=self.fetch_every)


def make_job(setting: Setting, seed: int) -> dp.Job:
    """The same for a world and for processes."""
    return worlds.digits_job(
        optimizer=dp.SGD(lr=LR),
        policy=setting.policy,
        batch=BATCH,
        passes=setting.passes,
        seed=seed,
    )


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """With what the product has counted. A minibatch is a message, be it one that says nothing."""
    messages, gradients = report["gradients"]["computed"], report["gradients"]
    pushed = sum(replica["bytes_sent"] for replica in report["replicas"])
    return {
        **worlds.figures(report),
        "message": gradients["payload_bytes"] / messages,
        "ratio": messages * 4 * PARAMETERS / gradients["payload_bytes"],
        "wire": pushed / messages,
        "silent": report["pushes"]["silent"] / messages,
        "left_out": gradients["fragments_left_out"],
    }


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """A simulated world."""
    return figures(worlds.simulate(make_job(setting, seed), replicas=REPLICAS, seed=seed))


def measure_real(setting: Setting, seed: int) -> dict[str, Any]:
    """Six processes: a coordinator, a shard and four replicas."""
    return figures(processes.run("strom", setting, seed, replicas=REPLICAS, shards=1))


def claims(results: Results) -> Iterator[Claim]:
    def mean(setting: Setting, figure: str) -> float:
        return results.mean(setting, figure)

    settings = [setting for setting in results.settings() if setting.fetch_every == 1]
    for one, other in itertools.pairwise(settings):
        words = f"tau {other.tau:g}: times smaller than with {one.tau:g}"
        yield Claim(words, mean(other, "ratio") / mean(one, "ratio"), 1.0)
    by_tau = {setting.tau: setting for setting in settings}
    dense, usual = by_tau[0.0], by_tau[3e-3]
    # The first passes have the largest gradients, and so the longest messages.
    is_full = results.form == "full"
    words = "tau 0.003: times smaller than float32"
    yield Claim(words, mean(usual, "ratio"), 100 if is_full else 40)
    lost = mean(dense, "accuracy") - mean(usual, "accuracy")
    yield Claim("tau 0.003: accuracy that it costs", lost, at_most=0.005 if is_full else 0.03)
    wire = mean(dense, "wire") / mean(usual, "wire")
    yield Claim("tau 0.003: times fewer bytes on the wire, with every frame", wire, 20)


def charts(results: Results) -> list[Chart]:
    sent = [s for s in results.settings() if s.tau and s.fetch_every == 1]

    def line(name: str, figure: str) -> Series:
        return Series(name, [(s.tau, results.mean(s, figure)) for s in sent])

    dense = results.mean(next(s for s in results.settings() if not s.tau), "accuracy")
    whole = Series("whole gradients", [(s.tau, dense) for s in sent], dashed=True, marks=False)
    return [
        Lines(
            "A message, and what each costs on the wire",
            "tau",
            "bytes a minibatch",
            [line("payload", "message"), line("with every frame", "wire")],
            log_x=True,
            log_y=True,
        ),
        Lines(
            "Accuracy",
            "tau",
            "test accuracy",
            [line("Strom", "accuracy"), whole],
            log_x=True,
            y_from=0.9,
            y_to=1.0,
        ),
    ]


BESIDE = {
    0.0: (0.150, 0.967, 19240, 1),
    3e-4: (0.147, 0.966, 3368, 6),
    1e-3: (0.149, 0.967, 747, 26),
    3e-3: (0.150, 0.966, 178, 108),
    1e-2: (0.153, 0.962, 46, 420),
    3e-2: (0.158, 0.960, 13, 1536),
}

EXPERIMENT = Experiment(
    title="What has not grown larger than a threshold waits: a hundredth of the bytes",
    source="Strom, Interspeech 2015",
    setting=Setting,
    measure=measure,
    measure_real=measure_real,
    columns=[
        Column("loss", "test loss"),
        Column("accuracy", "accuracy"),
        Column("message", "bytes a message", ".0f"),
        Column("ratio", "ratio", ",.0f"),
        Column("wire", "on the wire", ",.0f"),
        Column("silent", "silent", ".2f"),
        Column("staleness", "staleness", ".1f"),
    ],
    full=Form([*map(Setting, TAUS), Setting(3e-3, fetch_every=8)], seeds=3),
    short=Form([Setting(tau, passes=8) for tau in (0.0, 3e-3, 1e-2)]),
    real=Form([Setting(tau, passes=16) for tau in (0.0, 3e-3)]),
    claims=claims,
    charts=charts,
    beside={
        Setting(tau): {"loss": loss, "accuracy": accuracy, "message": message, "ratio": ratio}
        for tau, (loss, accuracy, message, ratio) in BESIDE.items()
    },
    published=[
        Published(
            "three orders of magnitude less communication at no loss of convergence rate or "
            "accuracy, on an acoustic model",
            "abstract",
            read=True,
        ),
        Published("about 100 times smaller within half a point", "tau 0.003", read=False),
    ],
    notes=(
        "A message's bytes are what its records carry: 4 for each element that is sent, or 2 bits "
        "for every one of a fragment where that is less, which is why the smallest thresholds do "
        "better here than in our notes. On the wire each run of fragments is announced, each has a "
        "header of 64 bytes, and a replica asks for parameters: with 4,810 parameters in five "
        "fragments that is more than the message itself; with millions it is nothing. What comes "
        "back is dense in every row; `fetch_every` is how often."
    ),
)
