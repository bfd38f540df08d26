"""Draw the pictures of simulation.md from a report.

    pydownpour sim docs/thousand_replicas.py --replicas 1000 --json > thousand.json
    python docs/make_pictures.py thousand.json docs/thousand_replicas.svg

Needs matplotlib, which nothing else here does. Reads the last line of the file, so the whole
output of ``--json`` will do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BINS = 50
INK, PALE = "#1f4e79", "#9dc3e6"


def draw(report: dict[str, Any], path: Path) -> None:
    """Staleness, loss over virtual time, and how evenly the replicas worked, side by side."""
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("svg")
    # Text stays text, and the same report gives the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pydownpour", "font.size": 8})
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
    staleness(left, report)
    loss(middle, report)
    shares(right, report)
    figure.suptitle(
        f"{len(report['replicas']):,} replicas, {len(report['shards'])} shards, "
        f"{report['pushes']['applied']:,} pushes in {report['seconds']:.1f} virtual s; "
        f"seed {report['seed']}, trace {report['trace_hash']}",
        fontsize=9,
    )
    figure.savefig(path, metadata={"Date": None})


def staleness(axes: Any, report: dict[str, Any]) -> None:
    """How many updates came between a gradient's parameters and its application."""
    histogram = {int(key): count for key, count in report["staleness"]["histogram"].items()}
    axes.hist(list(histogram), weights=list(histogram.values()), bins=BINS, color=PALE)
    mean = report["staleness"]["mean"]
    axes.axvline(mean, color=INK, linewidth=1)
    axes.annotate(
        f"mean {mean:,.0f}", (mean, 0.97), xycoords=("data", "axes fraction"),
        xytext=(4, 0), textcoords="offset points", va="top", color=INK,
    )  # fmt: skip
    axes.set(title="staleness", xlabel="updates", ylabel="pushes")


def loss(axes: Any, report: dict[str, Any]) -> None:
    """The loss that replicas reported, over virtual time."""
    points = report["losses"]
    axes.plot([at_s for at_s, _, _ in points], [value for _, _, value in points], color=INK)
    axes.set(title="loss", xlabel="virtual seconds", yscale="log")


def shares(axes: Any, report: dict[str, Any]) -> None:
    """Steps of each replica, sorted: nobody waits for the slowest."""
    steps = sorted(replica["steps"] for replica in report["replicas"])
    axes.step(range(len(steps)), steps, color=INK, where="post")
    axes.set(title="steps of each replica, sorted", xlabel="replica", ylim=(0, None))


def main(source: str, target: str) -> None:
    """Read a report, draw it, and say how large the picture became."""
    draw(json.loads(Path(source).read_text().splitlines()[-1]), Path(target))
    print(f"{target}: {Path(target).stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
