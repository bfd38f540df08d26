"""Adagrad holds with many replicas at rates where a fixed rate degrades; a warm start helps it.

The first result of Dean et al. (NIPS 2012, sections 4.1 and 5) at small scale: a perceptron with 64
hidden units learns the 1,797 digits that ship, minibatches of 8, 12 passes over the data whatever
the number of replicas, n_push = n_fetch = 1.

    make experiment                                    the whole grid, minutes
    python downpour_adagrad.py --seeds 1 --replicas 1 32

Coordinator, shards and replicas are the product's own, over real sockets, and share one process for
each run; ``one_loop.py`` beside this file says how many replicas of equal speed fit on few cores
without a wrong staleness. The table has the staleness that was measured.

Choices that matter:
    * A replica waits for its push and its fetch (``overlap=False``) before the next gradient, so
      that staleness is R - 1. In the background they land one step later: about 2R.
    * Units of one minibatch. With larger ones fewer and fewer replicas have work at the end of
      a run: a cool-down with small staleness, which lets fixed rates look good (64 replicas,
      lr 0.02: 0.90 with units of 64 samples, 0.79 with units of 8; two seeds).
    * Plain Adagrad with nothing in its accumulator, as in the paper.
    * A fixed rate that is tuned anew for each number of replicas loses far less than one that is
      kept: compare the best of each rule, not only the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mlp
from experiments import one_loop

import pydownpour as dp
from pydownpour.data import digits

PASSES: Final = 12
BATCH: Final = 8
SHARDS: Final = 1
"""More change nothing here but the time: 4,810 parameters fit one fragment."""

FEW: Final = {"sgd": (0.02, 0.05, 0.1, 0.2), "adagrad": (0.02, 0.05)}
MANY: Final = {"sgd": (0.005, 0.01, 0.02, 0.05), "adagrad": (0.01, 0.02, 0.05)}
"""Rates for up to 16 replicas, and beyond: the best fixed rate falls with the number of replicas,
and must not lie at the edge of what is tried, or Adagrad is compared with a straw man."""
RULES: Final = ("sgd", "adagrad")
REPLICAS: Final = (1, 8, 16, 32, 64)
WARM: Final = ((32, 0.05), (64, 0.02))
"""(replicas, rate) at which warm starts of 1 and 3 passes are tried."""

x, y, x_test, y_test = digits()


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting of the grid."""

    rule: str
    lr: float
    replicas: int
    warm_passes: int = 0

    def job(self, seed: int) -> dp.Job:
        """The job as any user would write it, but for the line that takes a turn."""
        warm = self.warm_passes * len(x)
        optimizer = dp.SGD(lr=self.lr) if self.rule == "sgd" else dp.Adagrad(lr=self.lr)
        race = one_loop.Race(self.replicas, random.Random(seed), alone=warm)
        job = dp.Job(
            parameters=mlp.init(x.shape[1], 64, 10, seed=seed),
            optimizer=optimizer,
            policy=dp.Downpour(push_every=1, fetch_every=1, overlap=False, warm_start=warm),
            data=dp.Work(len(x), unit=BATCH, passes=PASSES, seed=seed),
        )

        @job.replica
        async def train(replica: dp.Replica) -> None:
            runner: one_loop.Runner | None = None
            async for unit in replica.work():
                for batch in unit.batches(BATCH):
                    loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
                    runner = runner or race.enter()
                    async with race.turn(runner, len(batch)):
                        await replica.step(grads, loss=loss)

        @job.evaluate
        def test(parameters: mlp.Parameters) -> dict[str, float]:
            loss, _ = mlp.value_and_grad(parameters, x_test, y_test)
            return {"loss": loss, "accuracy": mlp.accuracy(parameters, x_test, y_test)}

        return job


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run of a cell gave."""

    cell: Cell
    seed: int
    loss: float
    accuracy: float
    staleness_mean: float
    staleness_max: int
    steps: int
    seconds: float

    def row(self) -> dict[str, Any]:
        """For the JSON file; a loss that is not finite becomes null."""
        values = dataclasses.asdict(self)
        values |= {"loss": self.loss if math.isfinite(self.loss) else None}
        return {**values.pop("cell"), **values}


def measure(cell: Cell, seed: int) -> Result:
    """Run a cell once, on an event loop of its own."""
    began = time.perf_counter()
    with asyncio.Runner(loop_factory=one_loop.loop_factory()) as runner:
        report = runner.run(
            one_loop.run_job(cell.job(seed), replicas=cell.replicas, shards=SHARDS, seed=seed)
        )
    metrics = report["metrics"]
    return Result(
        cell,
        seed,
        loss=metrics.get("loss", math.inf),  # left out of the report when it is not finite
        accuracy=metrics["accuracy"],
        staleness_mean=report["staleness"]["mean"],
        staleness_max=report["staleness"]["max"],
        steps=report["pushes"]["applied"],
        seconds=round(time.perf_counter() - began, 3),
    )


def rates(rule: str, replicas: int) -> tuple[float, ...]:
    """What is tried with so many replicas."""
    return (FEW if replicas <= 16 else MANY)[rule]


def grid(replicas: Iterable[int]) -> list[Cell]:
    """All cells, the slowest first, so that no process ends long after the others."""
    counts = sorted(replicas, reverse=True)
    cells = [Cell(rule, lr, r) for r in counts for rule in RULES for lr in rates(rule, r)]
    warm = [
        Cell(rule, lr, r, passes)
        for r, lr in WARM
        if r in counts
        for rule in RULES
        for passes in (1, 3)
    ]
    return warm + cells


def run_all(cells: list[Cell], seeds: int, processes: int) -> list[Result]:
    """Every cell with every seed, a run at a time in each process."""
    results: list[Result] = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        runs = [pool.submit(measure, cell, seed) for cell in cells for seed in range(seeds)]
        for done in as_completed(runs):
            results.append(done.result())
            if sys.stderr.isatty():
                print(f"\r{len(results)} of {len(runs)} runs", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return results


# -- the tables ----------------------------------------------------------------------------------


class Means:
    """Means over the seeds."""

    def __init__(self, results: list[Result]) -> None:
        self._results = results

    def of(self, cell: Cell, field: str) -> float:
        """The mean of a field of a cell; NaN if the cell was not run."""
        values = [getattr(r, field) for r in self._results if r.cell == cell]
        return float(np.mean(values)) if values else math.nan

    def text(self, cell: Cell) -> str:
        """Test loss and accuracy."""
        loss, accuracy = self.of(cell, "loss"), self.of(cell, "accuracy")
        return "-" if math.isnan(accuracy) else f"{loss:.3f} {accuracy:.3f}"

    def staleness(self, replicas: int) -> str:
        """The mean over every run without a warm start."""
        found = [
            r.staleness_mean
            for r in self._results
            if r.cell.replicas == replicas and not r.cell.warm_passes
        ]
        return f"{np.mean(found):.1f}"


def tables(results: list[Result], seeds: int) -> str:
    """Everything that was measured, in words and columns."""
    means = Means(results)
    counts = sorted({r.cell.replicas for r in results})
    lines = [
        f"{len(x):,} digits, {PASSES} passes, minibatch {BATCH}, n_push = n_fetch = 1, "
        f"{seeds} seed(s): mean test loss and accuracy",
        "",
        "replicas".ljust(14) + "".join(f"{r:>14}" for r in counts),
        "staleness".ljust(14) + "".join(f"{means.staleness(r):>14}" for r in counts),
    ]
    for rule in RULES:
        for lr in sorted({lr for r in counts for lr in rates(rule, r)}):
            cells = [means.text(Cell(rule, lr, r)) for r in counts]
            lines.append(f"{rule:<9}{lr:<5}" + "".join(f"{cell:>14}" for cell in cells))
    settings = [(r, lr) for r, lr in WARM if r in counts]
    if settings:
        lines += ["", "warm start".ljust(24) + "".join(f"{p:>14}" for p in ("none", "1 pass", "3"))]
    for r, lr in settings:
        for rule in RULES:
            cells = [means.text(Cell(rule, lr, r, passes)) for passes in (0, 1, 3)]
            head = f"{rule} {lr}, {r} replicas".ljust(24)
            lines.append(head + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join([*lines, "", *facts(means, counts)])


def facts(means: Means, counts: list[int]) -> list[str]:
    """What the table says about the paper's two claims."""
    lines = [
        f"{r} replicas: best fixed rate {best(means, 'sgd', r)}, best Adagrad "
        f"{best(means, 'adagrad', r)}"
        for r in counts
    ]
    for r, lr in WARM:
        if r in counts:
            cold, warm = (means.of(Cell("adagrad", lr, r, p), "accuracy") for p in (0, 3))
            lines.append(
                f"{r} replicas, Adagrad {lr}: a warm start of 3 passes changes accuracy by "
                f"{100 * (warm - cold):+.1f} points"
            )
    return lines


def best(means: Means, rule: str, replicas: int) -> str:
    """The best accuracy of a rule, and where it was found."""
    tried = rates(rule, replicas)
    accuracy, lr = max((means.of(Cell(rule, lr, replicas), "accuracy"), lr) for lr in tried)
    edge = ", the edge of the grid" if lr in (tried[0], tried[-1]) else ""
    return f"{accuracy:.3f} (lr {lr}{edge})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fixed rates and Adagrad with many replicas.")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each setting (default 2)")
    parser.add_argument("--replicas", type=int, nargs="+", default=list(REPLICAS))
    # One more than there are cores: while one job says goodbye, another computes.
    parser.add_argument("--processes", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--json", type=Path, default=Path("runs/downpour_adagrad.json"))
    options = parser.parse_args()
    began = time.monotonic()
    results = run_all(grid(options.replicas), options.seeds, options.processes)
    print(tables(results, options.seeds))
    rows = sorted((r.row() for r in results), key=lambda row: list(map(str, row.values())))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"passes": PASSES, "batch": BATCH, "rows": rows}, indent=1))
    print(f"\n{len(rows)} runs in {time.monotonic() - began:.0f} s; each is in {options.json}")


if __name__ == "__main__":
    main()
