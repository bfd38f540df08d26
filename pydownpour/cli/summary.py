"""A finished run's report for people: one short table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final

from pydownpour.cli.progress import OURS, duration, labelled, replica_names, size

PAIRS_TOLD: Final = 4
"""Pairs of who waited for whom that are shown, the longest; the report has more."""
TOLD_S: Final = 0.1
"""Seconds a replica waited for one kind of thing that are worth words; the report has all."""
LATER: Final = ("run folder", "loss curve", "time", "faults", "seed", "again")
"""Rows that others add below ours."""


def print_summary(report: Mapping[str, Any], *, to: IO[str], run_folder: str = "") -> None:
    """Print a report: rich on a terminal, aligned lines elsewhere."""
    rows = summary(report)
    if run_folder:
        rows.append(("run folder", run_folder))
    if to.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=_title(report), title_justify="left", box=None, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, value in rows:
            table.add_row(name, value)
        Console(file=to, highlight=False).print(table, markup=False)
        return
    print(_title(report), file=to)
    for name, value in rows:
        print(f"  {name:<12} {value}", file=to)
    to.flush()


def _title(report: Mapping[str, Any]) -> str:
    reason = report.get("reason")
    state = str(report.get("state", "?"))
    return f"{report.get('job', 'job')}: {state}" + (f" ({reason})" if reason else "")


def summary(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of (what, words). A report that lacks something only lacks its row."""
    first = [("loss", f"{report['loss']:.4g}")] if report.get("loss") is not None else []
    rows = _counts(report)
    taken = {*OURS, *(name for name, _ in rows), *LATER}
    metrics = labelled(report.get("metrics", {}), taken)
    return [*first, *((name, f"{value:.4f}") for name, value in metrics.items()), *rows]


def _counts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if "samples" in report:
        rows.append((
            "work",
            f"{report['samples']:,} samples, {report.get('units', 0):,} units, "
            f"{report.get('passes', 0)} passes in {duration(report.get('seconds', 0.0))} "
            f"({report.get('samples_per_s', 0.0):,.0f} samples/s)",
        ))  # fmt: skip
    if len(versions := report.get("policies", [])) > 1:
        rows.append(("policies", ", then ".join(map(_version, versions))))
    if pushes := report.get("pushes"):
        rare = ("repeated", "silent", "unheard")
        told = {what: count for what, count in pushes.items() if count or what not in rare}
        rows.append(("pushes", ", ".join(f"{count:,} {what}" for what, count in told.items())))
    rows += _losses_and_gradients(report)
    if staleness := report.get("staleness"):
        rows.append((
            "staleness", f"mean {staleness.get('mean', 0):.2f}, max {staleness.get('max', 0)}",
        ))  # fmt: skip
    replicas = report.get("replicas", [])
    names = replica_names([(r.get("id", 0), r.get("name", "")) for r in replicas])
    rows += _clocks_and_waits(report, names)
    if traffic := report.get("bytes"):
        rows.append((
            "traffic",
            f"{size(traffic.get('to_shards', 0))} to shards, "
            f"{size(traffic.get('from_shards', 0))} from shards",
        ))  # fmt: skip
    rows += sorted(
        ((names[replica.get("id", 0)], _replica(replica)) for replica in replicas),
        key=lambda row: (len(row[0]), row),
    )
    if memory := report.get("rss_peak_bytes"):
        rows.append(("memory", _memory(memory)))
    if report.get("storage") not in (None, "ok", "off"):
        rows.append(("storage", str(report["storage"])))
    return rows


def _version(version: Mapping[str, Any]) -> str:
    """``hardsync from 10,240 samples on``."""
    words = f" from {version['samples']:,} samples on" if version["samples"] else ""
    return f"{version['policy']['name']}{words}"


def _clocks_and_waits(report: Mapping[str, Any], names: Mapping[int, str]) -> list[tuple[str, str]]:
    """How far apart replicas were, and who waited for whom; no row where nobody did."""
    rows: list[tuple[str, str]] = []
    if clocks := report.get("clocks"):
        rows.append((
            "clocks",
            f"{clocks['least']:,} to {clocks['most']:,} steps, at most "
            f"{clocks['spread_max']:,} apart",
        ))  # fmt: skip
    waits = report.get("waits", {})
    if not waits.get("count"):
        return rows
    told = [
        f"{names.get(one['replica'], one['replica'])} for {names.get(one['on'], one['on'])} "
        f"{duration(one['seconds'])}"
        for one in waits["pairs"][:PAIRS_TOLD]
    ]
    if waits["unnamed_s"]:
        told.append(f"for nobody by name {duration(waits['unnamed_s'])}")
    rows.append(("waits", f"{waits['count']:,}: " + ", ".join(told)))
    return rows


def _losses_and_gradients(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was lost on the way to a push; no row where nothing was."""
    rows: list[tuple[str, str]] = []
    gradients = report.get("gradients", {})
    if dropped := gradients.get("dropped"):
        rows.append(("dropped", f"{dropped:,} of {gradients.get('computed', 0):,} gradients"))
    wire = gradients.get("wire_dtype")
    for what, words in (("overflowed", "were too large"), ("underflowed", "became zero")):
        if count := gradients.get(f"values_{what}"):
            rows.append((what, f"{count:,} values of gradients {words} in {wire}"))
    if count := report.get("losses_not_finite"):
        rows.append(("losses", f"{count:,} were NaN or infinite"))
    return rows


def _memory(peaks: Mapping[str, int]) -> str:
    """The largest peak of each kind of process."""
    most: dict[str, int] = {}
    for who, count in peaks.items():
        role = who.rpartition("-")[0] or who
        most[role] = max(most.get(role, 0), count)
    return "at most " + ", ".join(f"{size(count)} in a {role}" for role, count in most.items())


def _mean(replica: Mapping[str, Any]) -> float:
    return float(replica.get("staleness", {}).get("mean", 0.0))


def _replica(replica: Mapping[str, Any]) -> str:
    restarts = int(replica.get("incarnations", 1)) - 1
    words = (
        f"{replica.get('units', 0):,} units, {replica.get('samples', 0):,} samples, "
        f"{replica.get('steps', 0):,} steps, staleness {_mean(replica):.2f}"
    )
    waited = {
        kind: seconds for kind, seconds in replica.get("waited_s", {}).items() if seconds >= TOLD_S
    }
    if waited:
        kinds = ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in waited.items())
        words += f", waited for {kinds}"
    return words + (f", restarted {restarts} times" if restarts > 0 else "")
