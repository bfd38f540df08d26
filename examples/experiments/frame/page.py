"""What a run of experiments leaves: tables in words, and one page that needs nothing beside it."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Final

from experiments.frame import charts
from experiments.frame.experiment import (
    Claim,
    Experiment,
    FormName,
    Results,
    Setting,
    write_setting,
)

COMMAND: Final = "python examples/experiments/run.py"
MARKS: Final[dict[FormName, str]] = {
    "short": "simulated worlds, short form",
    "full": "simulated worlds",
    "real": "real sockets and processes",
}

STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:96em;margin:2em auto;padding:0 1em;color:#222}
h2{margin-top:2.5em;border-top:1px solid #8884;padding-top:1em}
table{border-collapse:collapse;margin:1em 0;font-size:13px;display:block;overflow-x:auto}
td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
td:first-child,th:first-child,td.words,th.words{text-align:left}td.words{white-space:normal}
td.again{text-align:left}
p{max-width:60em}code{font-size:12px}td code{user-select:all}
.charts{display:flex;flex-wrap:wrap;gap:1em}
.mark{border:1px solid #8888;border-radius:1em;padding:.1em .7em;font-size:12px;font-weight:400;
white-space:nowrap}
.no{color:#c0392b;font-weight:600}.beside{opacity:.65}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}.no{color:#ff7466}}
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """One experiment that was run in one form."""

    name: str
    experiment: Experiment
    results: Results
    claims: Sequence[Claim]

    @property
    def mark(self) -> str:
        """Which form, and of how many runs of each setting."""
        seeds = len({seed for _, seed in self.results.cells})
        return f"{MARKS[self.results.form]}, {seeds} seed{'s' if seeds > 1 else ''}"

    @property
    def failed(self) -> list[Claim]:
        return [claim for claim in self.claims if not claim.holds]


def replay(name: str, form: FormName, setting: Setting, seed: int) -> str:
    """The line that runs one cell again."""
    real = " --real" if form == "real" else ""
    return f"{COMMAND} {name}{real} --cell {write_setting(setting)} --seed {seed}"


def heads(section: Section) -> tuple[list[str], list[str]]:
    """Names of the settings that differ between the rows, and heads of the figures."""
    settings = section.results.settings()
    names = [field.name for field in dataclasses.fields(section.experiment.setting)]
    differ = [n for n in names if len({getattr(s, n) for s in settings}) > 1] or names[:1]
    return differ, [column.head for column in section.experiment.columns]


def rows(section: Section, *, spread: bool = False) -> list[tuple[Setting, list[str], list[str]]]:
    """(setting, its words, its figures) of each row: means over the seeds, and ones beside.

    With ``spread`` the standard deviation stands behind each mean that has one.
    """
    results, experiment = section.results, section.experiment
    differ, _ = heads(section)
    found = []
    for setting in results.settings():
        beside = experiment.beside.get(setting, {}) if results.form != "real" else {}
        values = []
        for column in experiment.columns:
            text = write(results.mean(setting, column.figure), column.form)
            deviation = results.spread(setting, column.figure)
            if spread and deviation > 0:
                text += f" ± {write(deviation, column.form)}"
            if column.figure in beside:
                text += f" ({write(beside[column.figure], column.form)})"
            values.append(text)
        found.append((setting, [str(getattr(setting, name)) for name in differ], values))
    return found


def write(value: float, form: str) -> str:
    """A figure as its column writes it."""
    return "never" if math.isinf(value) else "-" if math.isnan(value) else format(value, form)


def words(section: Section) -> str:
    """The whole section for a terminal."""
    experiment, results = section.experiment, section.results
    names, figures = heads(section)
    table = [[*names, *figures], *([*s, *f] for _, s, f in rows(section))]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        f"{section.name}: {experiment.title} [{section.mark}]",
        f"  {experiment.source}",
        *(f"  {one.tag}: {one.text} ({one.where})" for one in experiment.published),
        "",
        *("  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table),
    ]
    if results.form != "real" and any(s in experiment.beside for s in results.settings()):
        lines.append("  in brackets: our throw-away simulation")
    lines.append("")
    for claim in section.claims:
        holds = "holds" if claim.holds else "FAILS"
        lines.append(f"  {holds}  {claim.words}: {claim.value:.4g}, band {claim.band}")
    first, seed = next(iter(results.cells))
    lines += ["", f"  one run again: {replay(section.name, results.form, first, seed)}", ""]
    return "\n".join(lines)


def page(sections: Sequence[Section], summary: str) -> str:
    """One HTML page with all of them."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>pydownpour: experiments</title>',
        f"<style>{STYLE}</style></head><body><h1>Experiments</h1>",
        f"<p>{html.escape(summary)}</p>",
        _overview(sections),
        *(_section(section) for section in sections),
        "</body></html>",
    ]
    return "\n".join(parts)


def _overview(sections: Sequence[Section]) -> str:
    """One line for each: what holds, and which claims do not."""
    lines = ["<table><tr><th>experiment</th><th class=words>what it shows</th>"
             "<th class=words>form</th><th>claims that hold</th></tr>"]  # fmt: skip
    for section in sections:
        holds = f"{len(section.claims) - len(section.failed)} of {len(section.claims)}"
        if section.failed:
            holds = f'<span class="no">{holds}</span>'
        lines.append(
            f"<tr><td>{section.name}</td><td class=words>{_escaped(section.experiment.title)}</td>"
            f"<td class=words>{section.mark}</td><td>{holds}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _section(section: Section) -> str:
    experiment, results = section.experiment, section.results
    return "\n".join([
        f'<h2>{html.escape(experiment.title)} <span class="mark">{section.mark}'
        "</span></h2>",
        f"<p>{html.escape(experiment.source)}. <code>{section.name}.py</code></p>",
        "<ul>",
        *(f"<li>{_escaped(one.text)} <i>({_escaped(one.where)}; {one.tag})</i></li>"
          for one in experiment.published),
        "</ul>",
        '<div class="charts">',
        *(charts.svg(chart) for chart in experiment.charts(results)),
        "</div>",
        _table(section),
        _claims(section.claims),
        *(f"<p>{_escaped(each)}</p>" for each in experiment.notes.split("\n\n") if each),
    ])  # fmt: skip


def _table(section: Section) -> str:
    names, figures = heads(section)
    form, last = section.results.form, max(seed for _, seed in section.results.cells)
    lines = ["<table><tr>", *(f"<th>{_escaped(head)}</th>" for head in [*names, *figures])]
    lines.append(f"<th class=words>one run again{f' (seed 0 to {last})' if last else ''}</th></tr>")
    for setting, settings, values in rows(section, spread=True):
        line = replay(section.name, form, setting, 0)
        lines.append(
            "<tr>" + "".join(f"<td>{_escaped(each)}</td>" for each in [*settings, *values])
            + f"<td class=again><code>{_escaped(line)}</code></td></tr>"
        )  # fmt: skip
    lines.append("</table>")
    if last:
        lines.append("<p>Means over the seeds ± their standard deviation.</p>")
    if form != "real" and any(s in section.experiment.beside for s in section.results.settings()):
        lines.append("<p>In brackets: our throw-away simulation.</p>")
    return "\n".join(lines)


def _claims(claims: Sequence[Claim]) -> str:
    lines = ["<table><tr><th class=words>claim</th><th>value</th><th>band</th><th></th></tr>"]
    for claim in claims:
        holds = "holds" if claim.holds else '<span class="no">fails</span>'
        lines.append(
            f"<tr><td class=words>{_escaped(claim.words)}</td><td>{claim.value:.4g}</td>"
            f"<td>{_escaped(claim.band)}</td><td>{holds}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
