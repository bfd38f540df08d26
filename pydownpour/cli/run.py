"""Whole jobs on this machine: ``run`` and ``demo``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from pydownpour.cli import loop
from pydownpour.cli.failures import Interrupted, in_words
from pydownpour.cli.options import AccessOptions, access_options, bind_option
from pydownpour.engines.local import TOKEN_VARIABLE
from pydownpour.errors import DownpourError


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
    type=click.Choice(["local"]),
    default="local",
    show_default=True,
    help="What starts the processes.",
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
@access_options
@in_words
def run(
    file: str, shards: int, replicas: int, engine: str, as_json: bool, run_folder: str | None,
    bind: str, access: AccessOptions,
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
    The run folder then holds events.jsonl, parameters.safetensors, report.json and logs/.
    """
    _run(file, shards, replicas, as_json, run_folder, bind, access)


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
    token = os.environ.get(TOKEN_VARIABLE) or None
    access = AccessOptions(token, None, tls_cert="", tls_key="", tls_ca="", insecure=False)
    file = str(Path(__file__).parents[1] / "demo" / "digits.py")
    _run(file, shards, replicas, as_json, run_folder, "127.0.0.1:0", access)


def _run(
    file: str, shards: int, replicas: int, as_json: bool, run_folder: str | None, bind: str,
    options: AccessOptions,
) -> None:  # fmt: skip
    from pydownpour.cli.display import make_display
    from pydownpour.cli.summary import print_summary
    from pydownpour.engines import make_run_folder, run_local
    from pydownpour.net.access import Bind

    access = options.access()
    access.check_bind(Bind.parse(bind))
    out = sys.stderr if as_json else sys.stdout
    report: dict[str, Any] | None = None
    folder = make_run_folder(file, run_folder)
    try:
        with make_display(out) as display:
            display.event("folder", f"run folder {folder}")
            report = loop.run(
                lambda: run_local(
                    file,
                    shards=shards,
                    replicas=replicas,
                    run_folder=folder,
                    bind=bind,
                    access=access,
                    options=options.forwarded(),
                    observer=display,
                ),
                hard=False,
            )
    except Interrupted as error:
        kept = (folder / "report.json").exists()
        raise Interrupted(
            f"{error}; what was trained is in {folder}"
            if kept
            else f"{error}; logs are in {folder}"
        ) from None
    except DownpourError as error:
        # A failed job has a report too, and whoever asked for JSON wants to read it.
        report = error.details.get("report")
        raise
    finally:
        if report is not None:
            print_summary(report, to=out, run_folder=str(folder))
            if as_json:
                click.echo(msgspec.json.encode(report).decode())
