"""The group of commands, and its help."""

from __future__ import annotations

import click

from pydownpour.cli.doctor import doctor
from pydownpour.cli.policy import policy
from pydownpour.cli.roles import coordinator, replica, shard
from pydownpour.cli.run import demo, run
from pydownpour.cli.sim import sim
from pydownpour.engines import streams


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        import pydownpour

        click.echo(f"pydownpour {pydownpour.__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def app(context: click.Context) -> None:
    """Asynchronous training between machines that share nothing but a URL.

    \b
    First steps:
      pydownpour demo                                   watch it train
      pydownpour run digits.py --shards 2 --replicas 4  your own job, on this machine
      pydownpour run --help                             what a job file looks like
      pydownpour sim digits.py --faults swarm           the same file on virtual time
    By hand, in three terminals or on three machines:
      pydownpour coordinator digits.py --shards 1
      pydownpour shard --coordinator URL
      pydownpour replica digits.py --coordinator URL

    While a job runs:
      pydownpour policy URL hardsync                    go on under another policy

    \b
    Exit codes: 0 done, 1 the job failed, 2 wrong usage or settings,
    3 a replica's own function raised, 130 stopped by Ctrl-C or SIGTERM.
    """
    # What a simulation or doctor prints is all there is of it: nobody to read is a reason to stop.
    if context.invoked_subcommand not in ("sim", "doctor"):
        streams.never_fail()


for _command in (demo, run, sim, coordinator, shard, replica, policy, doctor):
    app.add_command(_command)
