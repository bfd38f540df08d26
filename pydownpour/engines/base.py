"""What an engine is: it starts, watches and stops the processes of a job. Never data.

An engine knows one way to make processes (children of this one, a cluster's scheduler, ...). What
their ends mean for the job is decided once, in ``supervisor`` and ``restarts``, so a new engine is
one small file with two classes and a row in ``ENGINES``. What hosts differ in is the engine's:
where a shard listens (``bind``) and how the job file gets there (``ship``).
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias, final

from pydownpour import config
from pydownpour.limits import DEFAULT, Limits

if TYPE_CHECKING:
    from pydownpour.wire.messages import Status

log = logging.getLogger(__name__)

RoleName: TypeAlias = Literal["coordinator", "shard", "replica"]

OWNER_VARIABLE: Final = "PYDOWNPOUR_OWNER"
"""How a replica gets what proves that it takes the place of its own earlier life."""

EXIT_OK: Final = 0
"""The role or job ended as it should."""
EXIT_FAILED: Final = 1
"""The job failed, or a peer was lost for good."""
EXIT_CONFIG: Final = 2
"""Wrong usage, settings or token: trying again cannot help."""
EXIT_USER: Final = 3
"""A replica's own function raised."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C or SIGTERM: 128 + SIGINT, as shells say it."""

_OWN_FAULT: Final = tuple(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
    if hasattr(signal, name)
)


@final
@dataclasses.dataclass(frozen=True)
class Role:
    """One process to run: ``python -m pydownpour <arguments>``.

    Attributes:
        name: Which command it is.
        index: 0 .. count-1 among its kind.
        arguments: The command line, the command's name first. Never a token: those travel by
            environment.
        environment: More variables of its environment, which others cannot read.
    """

    name: RoleName
    index: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """``replica-0``: its log's name and, for a replica, its name in the job."""
        return f"{self.name}-{self.index}"


@final
@dataclasses.dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or minus the signal that killed it."""

    code: int

    @property
    def own_fault(self) -> bool:
        """True for a failure that the same code would probably repeat."""
        return self.code in (EXIT_CONFIG, EXIT_USER) or -self.code in _OWN_FAULT

    def describe(self) -> str:
        """``ended with exit code 3`` or ``was killed by SIGKILL``."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"


class Process(abc.ABC):
    """One role that runs, seen by who started it."""

    def __init__(self, role: Role) -> None:
        self.role = role

    @property
    @abc.abstractmethod
    def pid(self) -> int:
        """Its process id where it runs."""

    @abc.abstractmethod
    async def wait(self) -> Exit:
        """Until it has ended and everything it said was handed on."""

    @abc.abstractmethod
    def stop(self, *, kill: bool = False) -> None:
        """Ask it to end, or make it end together with everything it started."""

    @abc.abstractmethod
    def tail(self) -> list[str]:
        """The last lines it logged."""

    @property
    @abc.abstractmethod
    def log(self) -> str:
        """Where its log is, in words."""


OnEvent: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Gets each JSON object a role writes on its channel."""


class Engine(abc.ABC):
    """A way to make processes.

    Lifecycle: one engine, one run. ``open``, any number of ``start``, ``close``; a caller may
    ``pause`` and ``resume`` at any time, also before and after.
    """

    name: ClassVar[str]
    limits: Limits = DEFAULT
    """Of logs and patience; the run says before ``open`` if they are others."""

    @abc.abstractmethod
    async def open(self, run_folder: Path, token: str | None) -> None:
        """Get ready to start the processes of one run.

        Args:
            run_folder: On this machine, existing and absolute: the place for their logs.
            token: The job's, which roles get by a way that others cannot read; or None.

        Raises:
            JobFailed: it cannot; says why.
        """

    async def ship(self, file: str) -> str:
        """Bring the job file to where roles run; returns how their command lines name it.

        Here: every host sees this machine's files, or has the same ones.
        """
        return file

    def bind(self, shard: int, wanted: str) -> str:
        """HOST:PORT where a shard listens, ``wanted`` being the coordinator's.

        Here: the same host, and any port.
        """
        from pydownpour.net.access import Bind

        return str(Bind(Bind.parse(wanted).host))

    @abc.abstractmethod
    async def start(self, role: Role, on_event: OnEvent) -> Process:
        """Start one role.

        Raises:
            JobFailed: the process could not be made; says why.
        """

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop every process of the job, as Ctrl-Z does."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Undo ``pause``: the processes of the job go on."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Kill and reap whatever still runs, even while being cancelled."""


class Observer(Protocol):
    """Who watches a run: a display, a test, a notebook."""

    def event(self, event: str, words: str) -> None:
        """Something happened: folder, start, restart, exit, failure, storage, print, stop."""

    def status(self, status: Status) -> None:
        """The coordinator's latest status, a few times a second."""


@final
class Silent:
    """An observer that looks away."""

    def event(self, event: str, words: str) -> None: ...

    def status(self, status: Status) -> None: ...


@final
class Unfailing:
    """An observer that may raise without ending what it watches; the first time is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._failed = False

    def event(self, event: str, words: str) -> None:
        try:
            self._observer.event(event, words)
        except Exception as error:
            self._note(error)

    def status(self, status: Status) -> None:
        try:
            self._observer.status(status)
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        if not self._failed:
            log.warning("an observer failed (%r); the run goes on", error)
        self._failed = True


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    Args:
        file: The job file, ``digits.py`` or ``digits.py:job``.
        shards: Parameter-server processes, >= 1.
        replicas: Trainer processes, >= 1.
        run_folder: For logs, events, parameters and report. None: a new one in ``runs/``.
        bind: HOST:PORT of the coordinator; port 0 lets the system choose. Where shards listen is
            the engine's word.
        options: More command-line options for each role (TLS paths, --insecure), no secrets.
        token_file: Where the token lies that the run made for itself, if it did.

    Raises:
        ConfigError: a count below 1.
    """

    file: str
    shards: int = 1
    replicas: int = 1
    run_folder: Path | None = None
    bind: str = "127.0.0.1:0"
    options: tuple[str, ...] = ()
    token_file: Path | None = None

    def __post_init__(self) -> None:
        for field in ("shards", "replicas"):
            config.whole(field, getattr(self, field), least=1)

    def by_hand(self, url: str) -> str:
        """The command with which a further replica joins."""
        words = ["pydownpour", "replica", self.file, "--coordinator", url]
        if self.token_file is not None:
            words += ["--token-file", str(self.token_file)]
        return shlex.join(words)

    def coordinator(self) -> Role:
        """The coordinator's command line."""
        folder = () if self.run_folder is None else ("--run-folder", str(self.run_folder))
        return Role("coordinator", 0, (
            "coordinator", self.file, "--shards", str(self.shards),
            "--replicas", str(self.replicas), "--bind", self.bind, *folder, *self.options,
        ))  # fmt: skip

    def shard(self, index: int, url: str, bind: str) -> Role:
        """The command line of shard ``index``, which listens at ``bind``."""
        return Role("shard", index, (
            "shard", "--coordinator", url, "--index", str(index), "--bind", bind,
            "--job", self.file, *self.options,
        ))  # fmt: skip

    def replica(self, index: int, url: str, owner: str) -> Role:
        """The command line of replica ``index``; ``owner`` is the same for all its lives."""
        return Role("replica", index, (
            "replica", self.file, "--coordinator", url, "--name", f"replica-{index}",
            *self.options,
        ), {OWNER_VARIABLE: owner})  # fmt: skip
