"""Engines: start, watch and stop the processes of a job; never data.

``base`` says what an engine is, ``supervisor`` runs a plan through one, ``restarts`` decides about
crashed replicas, ``local`` makes child processes, ``child`` is their side of it, and ``guard`` ends
what they leave.

    exit code of a role or of ``pydownpour run``
    0     the job ended as it should
    1     the job failed; the message names the process
    2     wrong usage, settings or token
    3     (replica only) the replica function raised
    130   stopped by Ctrl-C or SIGTERM
"""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydownpour.engines.base import Engine, Observer, Plan, Silent, Unfailing
from pydownpour.engines.local import LocalEngine
from pydownpour.errors import ConfigError
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
    "keep_token",
    "make_run_folder",
    "run_local",
]


async def run_local(
    file: str,
    *,
    shards: int = 1,
    replicas: int = 1,
    run_folder: str | os.PathLike[str] | None = None,
    bind: str = "127.0.0.1:0",
    access: Access | None = None,
    options: tuple[str, ...] = (),
    observer: Observer | None = None,
    on_folder: Callable[[Path | None], None] | None = None,
    watch: Callable[[Engine], None] | None = None,
    command: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run a job file on this machine and return its report.

    Args:
        file: ``digits.py`` or ``digits.py:job``.
        shards: Parameter-server processes, >= 1.
        replicas: Trainer processes, >= 1.
        run_folder: For logs, events, parameters and report. None: a new one in ``runs/``.
        bind: HOST:PORT of the coordinator; port 0 lets the system choose.
        access: Token and TLS, also for the children. Without a token, and without ``no_token``, the
            run makes one of its own and keeps it in the run folder's file ``token``.
        options: More command-line options for every role; no secrets.
        observer: Gets events and the coordinator's status. What it raises is logged, no more.
        on_folder: Called with the run folder once it is this run's; again with None if the job
            never began, and the folder is taken back.
        watch: Called with the engine before it starts anything, for a caller who pauses it.
        command: What stands before a role's arguments; tests put their own programs here.

    Guarantees:
        Every process has ended and been reaped when this returns or raises, within
        ``limits.SHUTDOWN_S`` of a cancellation; a second cancellation kills at once.

    Raises:
        ConfigError: a setting or the job file is wrong.
        JobFailed: which process ended the job, how, and its last words.
    """
    from pydownpour.engines.supervisor import Supervisor
    from pydownpour.net.access import Access, Bind

    for field, value in (("shards", shards), ("replicas", replicas)):
        if value < 1:
            raise ConfigError(f"{field}={value} must be at least 1")
    access = Access() if access is None else access
    own_token = access.token is None and not access.no_token
    if own_token:
        access = access.with_new_token()
    access.check_bind(Bind.parse(bind))
    is_new = run_folder is None or not Path(run_folder).exists()
    folder = make_run_folder(file, run_folder)
    watcher = Unfailing(observer or Silent())
    watcher.event("folder", f"run folder {folder}")
    if on_folder is not None:
        on_folder(folder)
    plan = Plan(
        file=file,
        shards=shards,
        replicas=replicas,
        run_folder=folder.absolute(),
        bind=bind,
        options=(*options, "--no-token") if access.no_token else options,
        token_file=keep_token(folder, access.token or "") if own_token else None,
    )
    async with LocalEngine(run_folder=folder, token=access.token, command=command) as engine:
        if watch is not None:
            watch(engine)
        supervisor = Supervisor(engine, plan, access=access, observer=watcher)
        try:
            return await supervisor.run()
        except (ConfigError, asyncio.CancelledError):
            if is_new and not supervisor.has_begun:
                rundir.forget_run_folder(str(folder), parent=run_folder is None)
                if on_folder is not None:
                    on_folder(None)
            raise


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
