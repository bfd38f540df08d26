"""The job that most experiments train, and simulated worlds to train it in.

A perceptron learns the digits that ship: 1,347 to learn from, 450 to test with. A world has the
product's own coordinator, shards and replica sessions; only time, sockets and disks are simulated,
and gradients are computed for real. One shard: 4,810 parameters fit one fragment.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any, Final

import mlp
import numpy as np

import pydownpour as dp
from pydownpour.data import digits

x, y, x_test, y_test = digits()
SAMPLES: Final = len(x)
CHANCE: Final = 0.1
"""Accuracy of who guesses."""

Gradients = Callable[[mlp.Parameters, mlp.Floats, mlp.Labels], tuple[float, dict[str, mlp.Floats]]]
"""A minibatch's loss, and its gradient: of parameters, inputs and labels."""
Pause = Callable[[int, random.Random], float]
"""Seconds that a step of replica number 0, 1, ... takes longer than the others'."""


def digits_job(
    *,
    optimizer: dp.Optimizer,
    batch: int,
    passes: int,
    seed: int,
    policy: dp.Policy | None = None,
    hidden: int = 64,
    unit: int | None = None,
    pause: Pause | None = None,
    gradients: Callable[[], Gradients] = lambda: mlp.value_and_grad,
    **more: Any,
) -> dp.Job:
    """A perceptron with one hidden layer learns the digits.

    Args:
        optimizer: Of the job.
        policy: Of the job; plain Downpour if none.
        batch: Samples of a minibatch.
        passes: Over the data.
        seed: Of the first parameters and of the order of the samples.
        hidden: Units of the hidden layer.
        unit: Samples lent at a time; one minibatch if none. With larger ones fewer replicas have
            work at the very end of a run, and a lease is asked for less often.
        pause: What a step of some replica costs more; sleeps, so it is virtual time in a world and
            real time in a process.
        gradients: Called by each replica when it begins: how it computes gradients.
        more: Further arguments of ``dp.Job``.
    """
    job = dp.Job(
        parameters=mlp.init(x.shape[1], hidden, 10, seed=seed),
        optimizer=optimizer,
        policy=policy or dp.Downpour(),
        data=dp.Work(SAMPLES, unit=unit or batch, passes=passes, seed=seed),
        **more,
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        chance = random.Random(f"{seed}/{replica.id}")
        value_and_grad = gradients()
        async for lent in replica.work():
            for rows in lent.batches(batch):
                if pause is not None:
                    await asyncio.sleep(pause(replica.id - 1, chance))
                loss, grads = value_and_grad(replica.parameters, x[rows], y[rows])
                await replica.step(grads, loss=loss)

    job.evaluate(evaluate)
    return job


def evaluate(parameters: mlp.Parameters) -> dict[str, float]:
    """Loss and accuracy over the digits to test with."""
    loss, _ = mlp.value_and_grad(parameters, x_test, y_test)
    return {"loss": loss, "accuracy": mlp.accuracy(parameters, x_test, y_test)}


def simulate(
    job: dp.Job,
    *,
    replicas: int,
    seed: int,
    step_s: float = 0.05,
    jitter: float = 0.2,
    latency_s: float = 1e-5,
    shards: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """One world, and its report.

    Args:
        job: What is trained.
        replicas: How many.
        shards: How many.
        seed: Of everything random.
        step_s: Virtual seconds of a step, for everybody.
        jitter: Its standard deviation, as a share of it.
        latency_s: Of the network: next to nothing, so that staleness is the policy's own.
        more: Further arguments of ``dp.simulate``.

    Raises:
        RuntimeError: something that must hold in every world did not.
    """
    with np.errstate(all="ignore"):  # a rate that is too high diverges: some are here for that
        report = dp.simulate(
            job,
            replicas=replicas,
            shards=shards,
            seed=seed,
            compute=dp.ComputeModel(base_s=step_s, per_sample_s=0.0, jitter=jitter),
            links=dp.LinkModel(latency_s=latency_s, jitter=0.0),
            **more,
        )
    if report["violations"]:
        raise RuntimeError(f"seed {seed}: {report['violations'][0]}")
    if report["failure"] and not _diverged(report):
        raise RuntimeError(f"seed {seed}: {report['failure']}")
    return report


def _diverged(report: dict[str, Any]) -> bool:
    """The job failed because its gradients are no numbers any more."""
    words = " ".join([report["failure"], *report["user_errors"]])
    return "NaN" in words or "finite" in words


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """What every experiment wants to know of a run. Who diverged guesses: accuracy is chance."""
    metrics = report["metrics"] if not report["failure"] else {}
    staleness = report["staleness"]
    return {
        "loss": metrics.get("loss", math.inf),
        "accuracy": metrics.get("accuracy", CHANCE),
        "staleness": staleness["mean"],
        "stalest": staleness["max"],
        "pushes": report["pushes"]["applied"],
        "seconds": report["seconds"],
    }


def curve(report: dict[str, Any], metric: str) -> list[list[float]]:
    """[seconds since work began, metric] at the end of each pass."""
    began = report["seconds_total"] - report["seconds"]
    found = report["evaluations"]
    return [[e["at_s"] - began, e["metrics"][metric]] for e in found if metric in e["metrics"]]


def time_to(falling: list[list[float]], target: float) -> float:
    """When a curve first falls below a target, on the line between its points; or infinite."""
    before_s, before = 0.0, math.inf
    for at_s, value in falling:
        if value < target:
            if not math.isfinite(before):
                return at_s
            return before_s + (at_s - before_s) * (before - target) / (before - value)
        before_s, before = at_s, value
    return math.inf
