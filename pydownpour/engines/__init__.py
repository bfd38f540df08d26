"""Engines: start, watch and stop the processes of a job; never data.

What the ends of processes mean for a job is decided once, for every engine.

    base.py         what an engine is
    supervisor.py   runs a plan through one, from the first process to the last
    restarts.py     what the end of a replica means: finished, again, or failed
    local.py        every role is a child process
    child.py        their side of it
    guard.py        ends what they leave
    logs.py         their logs, within bounds
    prints.py       what a user's code prints: to the log, and to the display
    streams.py      standard streams that cannot end a process

    exit code of a role or of ``pydownpour run``
    0     the job ended as it should
    1     the job failed; the message names the process
    2     wrong usage, settings or token
    3     (replica only) the replica function raised
    130   stopped by Ctrl-C or SIGTERM
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydownpour.engines.base import Engine, Observer, Plan, Silent, Unfailing
from pydownpour.engines.local import LocalEngine
from pydownpour.errors import ConfigError
from pydownpour.limits import DEFAULT, Limits
from pydownpour.storage import rundir
from pydownpour.storage.files import LocalFiles

if TYPE_CHECKING:
    from pydownpour.net.access import Access

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine}
"""Name on the command line -> engine."""

__all__ = [
    "ENGINES",
    "Engine",
    "LocalEngine",
    "Observer",
    "Plan",
    "engine_named",
    "keep_token",
    "make_run_folder",
    "run",
]


def engine_named(name: str) -> Engine:
    """A new engine: one of ``ENGINES``, or ``MODULE:CLASS`` for one of the user's own.

    Raises:
        ConfigError: there is none of that name, or it is no engine; says what there is.
    """
    kind: object = ENGINES.get(name)
    if kind is None and ":" in name:
        module, _, attribute = name.partition(":")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"engine {name!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise ConfigError(
            f"there is no engine {name!r}; known are {', '.join(sorted(ENGINES))}, and "
            "MODULE:CLASS names a subclass of pydownpour.engines.Engine"
        )
    return kind()


async def run(
    plan: Plan,
    engine: Engine,
    *,
    access: Access | None = None,
    observer: Observer | None = None,
    on_folder: Callable[[Path | None], None] | None = None,
    limits: Limits = DEFAULT,
) -> dict[str, Any]:
    """Run a job's processes through an engine and return the job's report.

    Args:
        plan: What to run.
        engine: What starts the processes; a new one.
        access: Token and TLS, also for the roles. Without a token, and without ``no_token``, the
            run makes one of its own and keeps it in the run folder's file ``token``.
        observer: Gets events and the coordinator's status. What it raises is logged, no more.
        on_folder: Called with the run folder once it is this run's; again with None if the job
            never began, and the folder is taken back.
        limits: Of this process and of the engine; the roles have those of ``plan.options``.

    Guarantees:
        Every process has ended and been reaped when this returns or raises, within
        ``shutdown_s`` of a cancellation; a second cancellation kills at once.

    Raises:
        ConfigError: a setting or the job file is wrong.
        JobFailed: which process ended the job, how, and its last words.
    """
    from pydownpour.engines.supervisor import Supervisor
    from pydownpour.net.access import Access, Bind

    access = Access() if access is None else access
    own_token = access.token is None and not access.no_token
    if own_token:
        access = access.with_new_token()
    access.check_bind(Bind.parse(plan.bind))
    is_new = plan.run_folder is None or not plan.run_folder.exists()
    folder = make_run_folder(plan.file, plan.run_folder)
    watcher = Unfailing(observer or Silent())
    watcher.event("folder", f"run folder {folder}")
    if on_folder is not None:
        on_folder(folder)
    supervisor: Supervisor | None = None
    try:
        engine.limits = limits
        await engine.open(folder.absolute(), access.token)
        prepared = dataclasses.replace(
            plan,
            file=await engine.ship(plan.file),
            run_folder=folder.absolute(),
            options=(*plan.options, "--no-token") if access.no_token else plan.options,
            token_file=keep_token(folder, access.token or "") if own_token else None,
        )
        supervisor = Supervisor(engine, prepared, access=access, observer=watcher, limits=limits)
        return await supervisor.run()
    except (ConfigError, asyncio.CancelledError):
        if is_new and not (supervisor is not None and supervisor.has_begun):
            rundir.forget_run_folder(str(folder), parent=plan.run_folder is None)
            if on_folder is not None:
                on_folder(None)
        raise
    finally:
        await engine.close()


def make_run_folder(
    file: str, wanted: str | os.PathLike[str] | None, *, parent: str = "runs"
) -> Path:
    """The folder of one run, claimed: the wanted one, or a new ``<parent>/<file>-<time>``.

    Raises:
        ConfigError: it cannot be made, or it already holds a run.
    """
    if wanted is not None:
        rundir.claim_run_folder(os.fspath(wanted))
        return Path(wanted)
    stem = Path(file.rpartition(":")[0] if ".py:" in file else file).stem or "job"
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path(rundir.make_run_folder(stem, stamp, parent=parent))


def keep_token(folder: Path, token: str) -> Path:
    """Write a run's own token where only its owner reads it; returns the file.

    Raises:
        ConfigError: it cannot be written.
    """
    path = folder / rundir.TOKEN
    try:
        LocalFiles().create(str(path), token.encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {rundir.describe(error)}") from error
    return path
