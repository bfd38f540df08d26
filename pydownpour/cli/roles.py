"""The three roles of a job, each one process: coordinator, shard, replica.

They are what ``pydownpour run`` starts, and what a person starts by hand on several machines. On a
terminal they speak to people; into a pipe, and to an engine, they write JSON lines: first
``{"event": "listening", "url": ...}``, at the end of a coordinator the report.
"""

from __future__ import annotations

import logging
import os
import random
import shlex
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pydownpour.cli import loop
from pydownpour.cli.failures import Failure, Interrupted, check_kept, in_words, tell_engine
from pydownpour.cli.options import AccessOptions, access_options, bind_option, limit_option
from pydownpour.engines.base import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER, OWNER_VARIABLE
from pydownpour.engines.child import Channel, adopt
from pydownpour.limits import Limits
from pydownpour.net import process
from pydownpour.replica import failure

if TYPE_CHECKING:
    from pydownpour.policy import Policy

RoleBody = Callable[[Channel | None], Coroutine[Any, Any, Any]]


@click.command()
@click.argument("file", metavar="FILE[:JOB]")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Shard processes the job has; it starts when all have come.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Replicas to expect; only shown, more or fewer may come.",
)
@bind_option()
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default=None,
    help="For events, parameters and report.  [default: a new one in runs/]",
)
@limit_option
@access_options
@in_words
def coordinator(
    file: str, shards: int, replicas: int, bind: str, run_folder: str | None, limits: Limits,
    access: AccessOptions,
) -> None:  # fmt: skip
    """Start the coordinator of a job: membership, work, evaluation, report.

    \b
    Example, in three terminals:
      pydownpour coordinator digits.py --shards 1
      pydownpour shard --coordinator URL --token-file runs/digits-.../token
      pydownpour replica digits.py --coordinator URL --token-file runs/digits-.../token
    It says its URL, and where the token lies that it made if it was given none. On an address
    that others reach TLS is needed, too:
      pydownpour coordinator digits.py --shards 2 --bind 10.0.0.5:7000 --token-file token \\
          --tls-cert cert.pem --tls-key key.pem
    """

    async def serve(channel: Channel | None) -> dict[str, Any]:
        from pydownpour.coordinator.service import serve_coordinator
        from pydownpour.engines import keep_token, make_run_folder
        from pydownpour.jobfiles import load_job
        from pydownpour.net.access import Bind

        where = Bind.parse(bind)
        reach = access.access()
        own_token = reach.token is None and not reach.no_token
        if own_token:
            reach = reach.with_new_token()
        reach.check_bind(where)
        # Absolute before the job file runs, which may change the current folder.
        wanted = os.path.abspath(run_folder) if run_folder is not None else None
        runs = os.path.abspath("runs")
        token_file: Path | None = None

        def claim() -> str:
            nonlocal token_file
            folder = make_run_folder(file, wanted, parent=runs)
            token_file = keep_token(folder, reach.token or "") if own_token else None
            return str(folder)

        job = load_job(file)
        if channel is not None:
            channel.emit({"event": "loaded"})
        return await serve_coordinator(
            job,
            shards=shards,
            bind=where,
            access=reach,
            # A run by hand gets its folder here; an engine has made one already.
            run_folder=claim if channel is None else wanted,
            announce=lambda url: _announce(
                channel, "coordinator", url, _next_steps(file, url, token_file), token_file
            ),
            expected_replicas=replicas,
            random=random.SystemRandom(),
            loaded=job.forget_parameters,
            limits=limits,
        )

    channel = adopt()
    report = _run(channel, serve, remind=_remind)
    _show_report(channel, report)
    reason = str(report.get("reason"))
    if report.get("state") == "failed":
        raise Failure(f"the job failed: {reason}", EXIT_FAILED)
    if channel is None:  # an engine reads it in the report
        check_kept(report)
    if reason in map(loop.words, loop.STOPS):
        raise Failure(reason, EXIT_INTERRUPTED)


@click.command()
@click.option("--coordinator", required=True, metavar="URL", help="What the coordinator printed.")
@bind_option()
@click.option(
    "--index",
    type=click.IntRange(min=0),
    default=None,
    metavar="I",
    help="The place in the shard map.  [default: any that is free]",
)
@click.option(
    "--advertise",
    default=None,
    metavar="URL",
    help="What replicas shall call, when it is not the address we listen on.",
)
@click.option(
    "--job",
    "file",
    default=None,
    metavar="FILE[:JOB]",
    help="The job file; looked at only if the job's policy is a class of its own.",
)
@limit_option
@access_options
@in_words
def shard(
    coordinator: str,
    bind: str,
    index: int | None,
    advertise: str | None,
    file: str | None,
    limits: Limits,
    access: AccessOptions,
) -> None:
    """Start a shard: it owns a part of the parameters and applies gradients to it.

    It needs no job file; the coordinator tells it everything. Only a policy that is a class of the
    job file's own has to be given: --job FILE.

    \b
    Example:
      pydownpour shard --coordinator http://127.0.0.1:40123 --token-file runs/digits-.../token
    """

    async def serve(channel: Channel | None) -> None:
        from pydownpour.net.access import Bind
        from pydownpour.shard.service import serve_shard

        def policies() -> Sequence[type[Policy]]:
            from pydownpour.jobfiles import load_job
            from pydownpour.policy.phases import phases_of

            assert file is not None
            job = load_job(file)
            job.forget_parameters()
            return phases_of(job.policy).classes()

        await serve_shard(
            coordinator=coordinator,
            bind=Bind.parse(bind),
            access=access.access(),
            index=index,
            announce=lambda url: _announce(channel, "shard", url, ""),
            advertise=advertise,
            policies=None if file is None else policies,
            limits=limits,
        )

    _run(adopt(), serve)


@click.command()
@click.argument("file", metavar="FILE[:JOB]")
@click.option("--coordinator", required=True, metavar="URL", help="What the coordinator printed.")
@click.option("--name", default="", metavar="NAME", help="Shown in displays and reports.")
@click.option(
    "--bind",
    default=None,
    metavar="HOST:PORT",
    help="Where to listen for other replicas, if the job's policy has them reduce among "
    "themselves.  [default: loopback, if the coordinator is there]",
)
@click.option(
    "--advertise",
    default="",
    metavar="URL",
    help="What other replicas shall call, when it is not the address we listen on.",
)
@limit_option
@access_options
@in_words
def replica(
    file: str,
    coordinator: str,
    name: str,
    bind: str | None,
    advertise: str,
    limits: Limits,
    access: AccessOptions,
) -> None:
    """Start a replica: it trains with its own copy of the parameters.

    Start as many as you like, whenever you like; they join and leave while the job runs. One that
    shall take its own place again after a restart gets the same random PYDOWNPOUR_OWNER each time.

    \b
    Example:
      pydownpour replica digits.py --coordinator http://127.0.0.1:40123 \\
          --token-file runs/digits-.../token
    """
    owner = os.environ.pop(OWNER_VARIABLE, "")  # not for what the user's function starts
    skips = False

    async def train(channel: Channel | None) -> None:
        from pydownpour.jobfiles import load_job
        from pydownpour.net.access import Bind
        from pydownpour.replica.reduction.listening import Listening
        from pydownpour.replica.run import run_replica

        nonlocal skips
        reach = access.access()  # before the job file runs, which may change the current folder
        job = load_job(file)
        job.train  # noqa: B018  no function to run is said before anybody is asked
        skips = job.on_error == "skip"
        await run_replica(
            job,
            coordinator=coordinator,
            access=reach,
            name=name,
            owner=owner,
            listening=Listening(None if bind is None else Bind.parse(bind), advertise),
            limits=limits,
        )
        if channel is not None:
            channel.emit({"event": "finished"})

    _run(adopt(), train, users=True, skips=lambda: skips)


def _remind() -> None:
    click.echo(
        "pydownpour: still ending the job and writing what was trained; the next signal ends this "
        "process at once, and what is not written is lost",
        err=True,
    )


def _run(
    channel: Channel | None,
    body: RoleBody,
    *,
    users: bool = False,
    skips: Callable[[], bool] = lambda: False,
    remind: Callable[[], None] | None = None,
) -> Any:
    """Run a role; its failure goes to the engine, to standard error, and into the exit code.

    ``users``: a user's function runs in it, and ``skips`` says whether the job skips units.
    ``remind``: it has something to write, for which it gets the time that takes, and this says so
    at the second signal.
    """
    logging.basicConfig(
        level=logging.INFO if channel is not None else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not users:  # it listens, for as many as the system allows
        process.raise_descriptors()
    try:
        return loop.run(lambda: body(channel), hard=remind is None, remind=remind)
    except (Exception, Interrupted) as error:
        code = tell_engine(channel, error, users=users, skips=skips())
        if code == EXIT_USER:
            click.echo("\n".join(failure.user_traceback(error)), err=True)
            words = f"the replica function failed: {failure.in_words(error)}"
            raise Failure(words, code) from None
        raise


def _announce(
    channel: Channel | None, role: str, url: str, teach: str, token_file: Path | None = None
) -> None:
    message = {"event": "listening", "role": role, "url": url, "pid": os.getpid()}
    if token_file is not None:
        message["token_file"] = str(token_file)
    if channel is not None:
        channel.emit(message)
    elif sys.stdout.isatty():
        click.echo(f"{role} listens at {url}{teach}")
    else:
        click.echo(msgspec.json.encode(message))
        sys.stdout.flush()


def _next_steps(file: str, url: str, token_file: Path | None) -> str:
    token = f" --token-file {shlex.quote(str(token_file))}" if token_file is not None else ""
    return (
        "\nnow, in other terminals:\n"
        f"  pydownpour shard --coordinator {url}{token}\n"
        f"  pydownpour replica {shlex.quote(file)} --coordinator {url}{token}"
    )


def _show_report(channel: Channel | None, report: dict[str, Any]) -> None:
    if channel is not None:
        channel.emit(report)
    elif sys.stdout.isatty():
        from pydownpour.cli.summary import print_summary

        print_summary(report, to=sys.stdout)
    else:
        click.echo(msgspec.json.encode(report))
