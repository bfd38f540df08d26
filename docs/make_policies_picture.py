"""Draw the picture of policies.md from what the experiments measured.

python examples/experiments/run.py one_slow --simulated
python docs/make_policies_picture.py runs/experiments/one_slow-full.json docs/policies.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from experiments import one_slow
from experiments.frame import charts
from experiments.frame.experiment import Results

GAP = 10


def side_by_side(drawn: list[str]) -> str:
    """Several charts as one picture, on a ground of its own: a page may have any colour."""
    height = max(int(one.split('height="', 1)[1].split('"', 1)[0]) for one in drawn)
    wide = charts.WIDTH + GAP
    placed = [one.replace("<svg ", f'<svg x="{i * wide}" ', 1) for i, one in enumerate(drawn)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide * len(drawn)} {height}">',
        '<style>.ground{fill:#fff}@media(prefers-color-scheme:dark){.ground{fill:#16181b}}</style>',
        f'<rect class="ground" width="{wide * len(drawn)}" height="{height}"/>',
        *placed,
        "</svg>",
    ]) + "\n"  # fmt: skip


def main(source: str, target: str) -> None:
    """Read the figures, draw them, and say how large the picture became."""
    rows: list[dict[str, Any]] = json.loads(Path(source).read_text())
    read = one_slow.EXPERIMENT.read_setting
    cells = {(read(row["cell"]), row["seed"]): row["figures"] for row in rows}
    found = one_slow.charts(Results("full", cells))
    Path(target).write_text(side_by_side([charts.svg(chart) for chart in found]))
    print(f"{target}: {Path(target).stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
