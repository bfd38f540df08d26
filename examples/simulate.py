"""Find a learning rate that survives staleness, on virtual time.

    python examples/simulate.py            # the whole table
    python examples/simulate.py --short    # seconds, as CI runs it

With R replicas a gradient is applied about R - 1 updates after the parameters it was computed at.
A rate that is fine for one replica may blow up at 32. Trying it out for real takes 32 machines, or
one machine that pretends badly; the simulator runs the real coordinator, shards and sessions with
real gradients (`live` compute), and only the time they take is modelled. The same seed gives the
same table everywhere.

The table shows the test accuracy for each rate and number of replicas, and for each number of
replicas the highest rate that *survives*: that loses at most two points against the same rate with
one replica. With matplotlib installed `--png FILE` draws the same as a picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlp
import numpy as np

import pydownpour as dp
from pydownpour.data import digits

REPLICAS = (1, 8, 32)
RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
PASSES = 20
SHORT_RATES = (0.02, 0.2)
SHORT_PASSES = 5
LOST_MAX = 0.02
BARS = " ▁▂▃▄▅▆▇█"


def make_job(rate: float, passes: int) -> dp.Job:
    """Plain SGD on the digits that ship with the package; only the rate differs."""
    x, y, x_test, y_test = digits()
    job = dp.Job(
        parameters=mlp.init(64, 32, 10),
        optimizer=dp.SGD(lr=rate),
        policy=dp.Downpour(push_every=1, fetch_every=1),
        data=dp.Work(len(x), unit=32, passes=passes),
        name="digits",
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(32):
                loss, grads = mlp.value_and_grad(replica.parameters, x[batch], y[batch])
                await replica.step(grads, loss=loss)

    @job.evaluate
    def accuracy(parameters: mlp.Parameters) -> dict[str, float]:
        return {"accuracy": mlp.accuracy(parameters, x_test, y_test)}

    return job


def run(rate: float, replicas: int, passes: int, seed: int) -> dict[str, Any]:
    """One simulated training run, and what of it matters here."""
    with np.errstate(all="ignore"):  # a rate that is too high diverges: that is the point
        report = dp.simulate(
            make_job(rate, passes),
            replicas=replicas,
            shards=1,
            seed=seed,
            # A gradient takes 10 ms, give or take; the network is a good local one.
            compute=dp.ComputeModel(base_s=0.01, per_sample_s=0.0, jitter=0.2),
            links=dp.LinkModel(latency_s=0.0005),
        )
    # A replica whose gradients hold NaN gives up, in words; such a run has no accuracy to show.
    return {
        "rate": rate,
        "replicas": replicas,
        "accuracy": report.get("accuracy", 0.0) if not report["failure"] else 0.0,
        "staleness": report.get("staleness", {}).get("mean", 0.0),
        "virtual_s": report["virtual_s"],
        "hash": report["trace_hash"],
        "losses": [loss for _, _, loss in report.get("losses", [])],
        "failure": report["failure"],
    }


def survivor(runs: Sequence[dict[str, Any]], count: int) -> dict[str, Any] | None:
    """The run with the highest rate that does as well with so many replicas as with one."""
    alone = {r["rate"]: r["accuracy"] for r in runs if r["replicas"] == 1}
    good = [
        r
        for r in runs
        if r["replicas"] == count and r["accuracy"] >= max(0.2, alone[r["rate"]] - LOST_MAX)
    ]
    return max(good, key=lambda r: float(r["rate"])) if good else None


def show(runs: Sequence[dict[str, Any]]) -> None:
    """The table, and the loss of each run as a line of bars."""
    counts = sorted({r["replicas"] for r in runs})
    print(f"{'rate':>6}  " + "  ".join(f"{f'R = {n}':>9}" for n in counts))
    for rate in sorted({r["rate"] for r in runs}):
        cells = [f"{r['accuracy']:9.3f}" for r in runs if r["rate"] == rate]
        print(f"{rate:6.3f}  " + "  ".join(cells))
    print()
    for count in counts:
        found = survivor(runs, count)
        words = "none of these rates survives"
        if found is not None:
            words = (
                f"rate {found['rate']} survives: accuracy {found['accuracy']:.3f} after "
                f"{found['virtual_s']:.1f} virtual s, staleness {found['staleness']:.1f}"
            )
        print(f"R = {count:<3} {words}")
    print("\nloss over samples, from 0 to 2.5 and more")
    for r in runs:
        print(f"{r['rate']:6.3f}  R = {r['replicas']:<3} {bars(r['losses'])}")


def bars(losses: Sequence[float], width: int = 48, top: float = 2.5) -> str:
    """Losses as bars, averaged to a width; what did not stay finite is at the top."""
    if not losses:
        return "(no loss)"
    pieces = np.array_split(np.nan_to_num(np.asarray(losses), nan=top), min(width, len(losses)))
    levels = [min(float(piece.mean()), top) / top for piece in pieces]
    return "".join(BARS[round(level * (len(BARS) - 1))] for level in levels)


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """The table as a picture."""
    try:
        import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        sys.exit("--png needs matplotlib: pip install matplotlib")
    figure, axes = plt.subplots(figsize=(6, 4))
    for count in sorted({r["replicas"] for r in runs}):
        row = [r for r in runs if r["replicas"] == count]
        label = f"{count} replicas, staleness {row[0]['staleness']:.1f}"
        axes.plot([r["rate"] for r in row], [r["accuracy"] for r in row], "o-", label=label)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("test accuracy")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Run all, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="two rates, two passes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--png", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print the runs as the last line")
    options = parser.parse_args()
    rates, passes = (SHORT_RATES, SHORT_PASSES) if options.short else (RATES, PASSES)
    runs = []
    for rate in rates:
        for count in REPLICAS:
            runs.append(run(rate, count, passes, options.seed))
            print(f"rate {rate}, {count} replicas: {runs[-1]['accuracy']:.3f}", file=sys.stderr)
    show(runs)
    if options.png:
        draw(runs, options.png)
    if options.json:
        print(json.dumps(runs))


if __name__ == "__main__":
    main()
