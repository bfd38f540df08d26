"""Whole jobs on this machine: ``run`` and ``demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from pydownpour import engines
from pydownpour.cli import loop
from pydownpour.cli.failures import Interrupted, check_kept, in_words
from pydownpour.cli.options import (
    AccessOptions,
    access_options,
    bind_option,
    forwarded_limits,
    limit_option,
)
from pydownpour.cli.summary import print_summary
from pydownpour.engines import Engine, LocalEngine, Plan, engine_named, streams
from pydownpour.errors import DownpourError
from pydownpour.limits import DEFAULT, Limits
from pydownpour.storage.rundir import PARAMETERS, REPORT


@click.command()
@click.argument("file", metavar="FILE[:JOB]")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Parameter-server processes.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Trainer processes.",
)
@click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="NAME",
    help="What starts the processes: local, or MODULE:CLASS for an engine of your own.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the report as one line of JSON on standard output, progress elsewhere.",
)
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default=None,
    metavar="DIR",
    help="For logs, events, parameters and report.  [default: a new one in runs/]",
)
@bind_option()
@limit_option
@access_options
@in_words
def run(
    file: str, shards: int, replicas: int, engine: str, as_json: bool, run_folder: str | None,
    bind: str, limits: Limits, access: AccessOptions,
) -> None:  # fmt: skip
    """Run a job file on this machine: a coordinator, N shards and N replicas.

    \b
    Example:
      pydownpour run digits.py --shards 2 --replicas 4
    A job file is plain Python:
      import pydownpour as dp
      job = dp.Job(parameters=init, optimizer=dp.Adagrad(lr=0.05), data=dp.Work(len(x), passes=5))
      @job.replica
      async def train(replica):
          async for unit in replica.work():
              for batch in unit.batches(64):
                  loss, grads = value_and_grad(replica.parameters, x[batch], y[batch])
                  await replica.step(grads, loss=loss)
    The run folder then holds events.jsonl, parameters.safetensors, report.json and logs/, and the
    token with which others may join while it runs. What replicas print is shown with their names,
    the first lines of it; all is in logs/.
    To join by hand:
      pydownpour replica digits.py --coordinator URL --token-file runs/digits-.../token
    """
    options = (*access.forwarded(), *forwarded_limits(limits))
    plan = Plan(file, shards, replicas, _path(run_folder), bind, options)
    _run(plan, engine_named(engine), access, as_json, limits)


@click.command()
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Parameter-server processes.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="N",
    help="Trainer processes.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the report as one line of JSON on standard output, progress elsewhere.",
)
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default=None,
    metavar="DIR",
    help="For logs, events, parameters and report.  [default: a new one in runs/]",
)
@in_words
def demo(shards: int, replicas: int, as_json: bool, run_folder: str | None) -> None:
    """Train on real handwritten digits: 2 shards, 4 replicas, a few seconds.

    \b
    Example:
      pydownpour demo
      pydownpour demo --replicas 8 --json
    """
    file = str(Path(__file__).parents[1] / "demo" / "digits.py")
    _run(Plan(file, shards, replicas, _path(run_folder)), LocalEngine(), AccessOptions(), as_json)


def _path(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder)


def _run(
    plan: Plan,
    engine: Engine,
    options: AccessOptions,
    as_json: bool,
    limits: Limits = DEFAULT,
) -> None:
    from pydownpour.cli.display import Detached, make_display

    out = sys.stderr if as_json else sys.stdout
    report: dict[str, Any] | None = None
    folder: Path | None = None
    reason = ""

    def pause() -> None:
        engine.pause()
        loop.pause_here()
        engine.resume()

    def on_folder(made: Path | None) -> None:
        nonlocal folder
        folder = made

    try:
        access = options.access()
        with Detached(make_display(out)) as display:
            report = loop.run(
                lambda: engines.run(
                    plan,
                    engine,
                    access=access,
                    observer=display,
                    on_folder=on_folder,
                    limits=limits,
                ),
                hard=False,
                remind=lambda: display.event("stop", STILL_WRITING),
                pause=pause,
            )
    except Interrupted as error:
        reason = str(error)
        raise Interrupted(f"{error}; {_what_is_kept(folder)}") from None
    except DownpourError as error:
        # A failed job has a report too, and whoever asked for JSON wants to read it.
        report, reason = error.details.get("report"), str(error)
        raise
    finally:
        report = report or _kept_report(folder)
        if report is not None:
            print_summary(report, to=out, run_folder=str(folder))
        if as_json:
            # Also of a run that never began: who reads the last line always finds an object there.
            _print_json(report or {"state": "failed", "reason": reason})
        _tell_what_was_not_read(folder)
    check_kept(report or {})


STILL_WRITING: Final = (
    "still writing what was trained; the next Ctrl-C ends everything at once, and what is not "
    "written then is lost"
)


def _what_is_kept(folder: Path | None) -> str:
    """What an interrupted run leaves, in words: nothing is promised that is not there."""
    if folder is None:
        return "nothing had begun"
    if (folder / PARAMETERS).exists():
        return f"what was trained is in {folder}"
    if place := (_kept_report(folder) or {}).get("elsewhere", {}).get(PARAMETERS):
        return f"what was trained is in {place}"
    if (folder / REPORT).exists():
        return f"no parameters were kept; the report is in {folder}"
    return f"neither parameters nor a report were kept; logs are in {folder}"


def _kept_report(folder: Path | None) -> dict[str, Any] | None:
    """The report as the coordinator wrote it."""
    if folder is None:
        return None
    try:
        report = msgspec.json.decode((folder / REPORT).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return report if isinstance(report, dict) else None


def _print_json(report: dict[str, Any]) -> None:
    # Bytes: JSON is UTF-8 whatever the terminal's letters are.
    sys.stdout.flush()
    click.echo(msgspec.json.encode(report))


def _tell_what_was_not_read(folder: Path | None) -> None:
    sys.stdout.flush()
    error = streams.failure(sys.stdout)
    if error is not None and folder is not None:
        words = f"standard output could not be written ({error.strerror}); the run went on without"
        click.echo(f"pydownpour: {words}; its files are in {folder}", err=True)
