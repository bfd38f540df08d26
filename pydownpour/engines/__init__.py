"""Engines: start, watch and stop the processes of a job; never data.

``base`` says what an engine is, ``supervisor`` runs a plan through one, ``restarts`` decides about
crashed replicas, ``local`` makes child processes and ``child`` is their side of it.

    exit code of a role or of ``pydownpour run``
    0     the job ended as it should
    1     the job failed; the message names the process
    2     wrong usage, settings or token
    3     (replica only) the replica function raised
    130   stopped by Ctrl-C or SIGTERM
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydownpour.engines.base import Engine, Observer, Plan, Silent, Unfailing
from pydownpour.engines.local import LocalEngine
from pydownpour.errors import ConfigError

if TYPE_CHECKING:
    from pydownpour.net.access import Access

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine}
"""Name on the command line -> engine."""

__all__ = ["ENGINES", "Engine", "LocalEngine", "Observer", "Plan", "make_run_folder", "run_local"]


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
    command: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run a job file on this machine and return its report.

    Args:
        file: ``digits.py`` or ``digits.py:job``.
        shards: Parameter-server processes, >= 1.
        replicas: Trainer processes, >= 1.
        run_folder: For logs, events, parameters and report. None: a new one in ``runs/``.
        bind: HOST:PORT of the coordinator; port 0 lets the system choose.
        access: Token and TLS, also for the children. None: neither, on loopback.
        options: More command-line options for every role; no secrets.
        observer: Gets events and the coordinator's status. What it raises is logged, no more.
        command: What stands before a role's arguments; tests put their own programs here.

    Guarantees:
        Every process has ended and been reaped when this returns or raises, within
        ``limits.SHUTDOWN_S`` of a cancellation; a second cancellation kills at once.

    Raises:
        ConfigError: a setting or the job file is wrong.
        JobFailed: which process ended the job, how, and its last words.
    """
    from pydownpour.engines.supervisor import Supervisor
    from pydownpour.net.access import Access

    for field, value in (("shards", shards), ("replicas", replicas)):
        if value < 1:
            raise ConfigError(f"{field}={value} must be at least 1")
    folder = make_run_folder(file, run_folder)
    access = Access() if access is None else access
    plan = Plan(
        file=file, shards=shards, replicas=replicas, run_folder=folder, bind=bind, options=options
    )
    async with LocalEngine(run_folder=folder, token=access.token, command=command) as engine:
        supervisor = Supervisor(
            engine, plan, access=access, observer=Unfailing(observer or Silent())
        )
        return await supervisor.run()


def make_run_folder(file: str, wanted: str | os.PathLike[str] | None) -> Path:
    """The folder of one run: the wanted one, or a new ``runs/<file>-<time>``.

    Raises:
        ConfigError: it cannot be made, or it already holds a run.
    """
    if wanted is not None:
        folder = Path(wanted)
        if (folder / "report.json").exists():
            raise ConfigError(f"run folder {folder} already holds a run; name another or move it")
    else:
        stem = Path(file.rpartition(":")[0] if ".py:" in file else file).stem or "job"
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path("runs") / f"{stem}-{stamp}"
        number = 1
        while folder.exists():
            number += 1
            folder = Path("runs") / f"{stem}-{stamp}-{number}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder
