"""Run experiments: what the papers claim, at small scale, with bands that must hold.

    python examples/experiments/run.py                       all of them: simulated, then real
    python examples/experiments/run.py downpour_adagrad      one
    python examples/experiments/run.py --short               each in seconds, as CI does
    python examples/experiments/run.py --real                over real sockets only
    python examples/experiments/run.py NAME --cell rule=sgd,lr=0.02 --seed 1     one run again

Each script beside this file is one experiment: it names the paper and the claim, declares its
settings, measures one run, and says what must hold. Tables, charts and one page with all of them
(``report.html``) are written to a folder, and every row has the line that runs it again. The exit
code is 1 if a claim does not hold.

A new experiment is one file here with an ``EXPERIMENT`` in it (``frame/experiment.py`` says what
that is); nothing else has to know.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Everything is imported by its name in the examples' folder, as its workers do.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.frame import cells, charts, page
from experiments.frame.cells import Cell
from experiments.frame.experiment import (
    Figures,
    FormName,
    Results,
    load,
    names,
    write_setting,
)


def plan(chosen: Sequence[str], forms: Sequence[FormName], seeds: int | None) -> Iterator[Cell]:
    """Every cell of the experiments in those forms that they have."""
    for form in forms:
        for name in chosen:
            experiment = load(name)
            if form == "real" and experiment.real is None:
                continue
            declared = experiment.form(form)
            for setting in declared.settings:
                for seed in range(seeds or declared.seeds):
                    yield Cell(name, form, setting, seed)


def sections(done: Mapping[Cell, Figures]) -> Iterator[page.Section]:
    """What was measured, by experiment and form."""
    for name, form in dict.fromkeys((cell.experiment, cell.form) for cell in done):
        mine = {
            (cell.setting, cell.seed): figures
            for cell, figures in done.items()
            if (cell.experiment, cell.form) == (name, form)
        }
        experiment, results = load(name), Results(form, mine)
        yield page.Section(name, experiment, results, list(experiment.claims(results)))


def keep(found: Sequence[page.Section], folder: Path, summary: str) -> None:
    """Write the page, each chart, and every figure as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for section in found:
        stem = f"{section.name}-{section.results.form}"
        for number, chart in enumerate(section.experiment.charts(section.results), 1):
            (folder / f"{stem}-{number}.svg").write_text(charts.svg(chart) + "\n")
        rows = [
            {"cell": write_setting(setting), "seed": seed, "figures": figures}
            for (setting, seed), figures in section.results.cells.items()
        ]
        (folder / f"{stem}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "report.html").write_text(page.page(found, summary))


def again(name: str, form: FormName, setting: str, seed: int) -> None:
    """Run one cell and print its figures."""
    experiment = load(name)
    try:
        cell = Cell(name, form, experiment.read_setting(setting), seed)
    except ValueError as error:
        sys.exit(str(error))
    print(json.dumps(cells.measure(cell)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--short", action="store_true", help="seconds instead of minutes")
    forms.add_argument("--simulated", action="store_true", help="the full forms, not the real ones")
    forms.add_argument("--real", action="store_true", help="over real sockets and in processes")
    parser.add_argument("--seeds", type=int, help="runs of each setting; each form has its own")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=Path("runs/experiments"))
    parser.add_argument(
        "--cell", help="run this one setting of one experiment, as reports print it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of --cell")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing is left behind
    if unknown := set(options.names) - set(names()):
        parser.error(f"no experiment is called {', '.join(sorted(unknown))}: {', '.join(names())}")
    if options.cell is not None:
        if len(options.names) != 1:
            parser.error("--cell is of one experiment: name it")
        again(options.names[0], "real" if options.real else "full", options.cell, options.seed)
        return 0
    chosen: tuple[FormName, ...] = ("full", "real")
    if options.short or options.simulated or options.real:
        chosen = ("short",) if options.short else ("full",) if options.simulated else ("real",)
    began = time.monotonic()
    todo = list(plan(options.names or names(), chosen, options.seeds))
    found = list(sections(cells.run_cells(todo, options.processes)))
    for section in found:
        print(page.words(section))
    failed = [claim for section in found for claim in section.failed]
    claims = sum(len(section.claims) for section in found)
    summary = (
        f"{len(todo)} runs, experiments: {len({s.name for s in found})}, in "
        f"{time.monotonic() - began:.0f} s; {claims - len(failed)} of {claims} claims hold."
    )
    keep(found, options.folder, summary)
    print(f"{summary} Page, charts and figures: {options.folder}/")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
