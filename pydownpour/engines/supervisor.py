"""Runs one job through an engine, from the first process to the last.

    coordinator starts, loads the job and says its URL
      -> shards and replicas start
      -> replicas that crash start again (``restarts`` decides)
      -> the coordinator ends: its report is the result
    whatever ends the run, the coordinator is asked for its ordinary end first, so that parameters
      and report exist; it has the time that takes, as long as it shows signs of life
    whatever happens, every process has ended and been reaped when ``run`` returns

The first cause wins. Processes pull each other down, so when one that the job cannot do without
ends badly, the others get ``GRACE_S`` to show whether they ended first.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, final

from pydownpour.engines.base import (
    EXIT_CONFIG,
    EXIT_OK,
    Engine,
    Exit,
    Observer,
    Plan,
    Process,
    Role,
)
from pydownpour.engines.restarts import Again, End, Finished, Restarts
from pydownpour.errors import ConfigError, ConnectFailed, DownpourError, JobFailed
from pydownpour.fields import clip
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.wire import messages
from pydownpour.wire.messages import Status

GRACE_S: Final = 0.3
"""How long a bad end waits for the end that caused it."""
STOP_ASK_SHARE: Final = 2 / 3
"""Of ``shutdown_s``, how long processes may end by themselves, once the coordinator has ended,
before they get SIGTERM."""


@final
class Supervisor:
    """One run of one plan.

    Args:
        engine: Makes the processes; opened.
        plan: What to run.
        access: For asking the coordinator's status.
        observer: Gets events and statuses.
        limits: Of restarts and waits.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        *,
        access: Access,
        observer: Observer,
        limits: Limits = DEFAULT,
    ) -> None:
        self._limits = limits
        self._stop_ask_s = limits.shutdown_s * STOP_ASK_SHARE
        self._engine = engine
        self._plan = plan
        self._access = access
        self._observer = observer
        self._restarts = Restarts(limits)
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._report: dict[str, Any] | None = None
        self._said: dict[str, Mapping[str, Any]] = {}
        self._processes: dict[str, Process] = {}
        self._status: Status | None = None
        self._hurry = False
        """True when what still runs is killed without being asked."""
        self._ending = asyncio.Event()
        """Set once the coordinator was asked for the end: nobody is started any more."""
        self._shown: set[str] = set()
        """Failures of the user's code whose traceback was shown."""
        self._ended: set[int] = set()
        """Replicas that did their work."""

    @property
    def has_begun(self) -> bool:
        """The coordinator has loaded the job and said where it listens."""
        return self._url.done() and not self._url.cancelled()

    async def run(self) -> dict[str, Any]:
        """The job's report.

        Cancelling it asks the coordinator for the end and waits for it; cancelling again ends
        everything at once.

        Raises:
            JobFailed: which process ended the job, how, and its last words; ``report`` is the
                job's, if there is one.
            ConfigError: a role refused its settings.
        """
        keepers: list[asyncio.Task[None]] = []
        try:
            keepers.append(self._task(self._keep_coordinator()))
            await self._until_loaded()
            url = await self._first(self._url)
            self._observer.event("start", f"coordinator listens at {url}")
            if self._plan.token_file is not None:
                self._observer.event("start", f"to join by hand: {self._plan.by_hand(url)}")
            for index in range(self._plan.shards):
                keepers.append(self._task(self._keep_shard(index, url)))
            for index in range(self._plan.replicas):
                keepers.append(self._task(self._keep_replica(index, url)))
            keepers.append(self._task(self._watch(url)))
            report = await asyncio.shield(self._verdict)
            await self._settle(self._limits.shutdown_s)
            return report
        except asyncio.CancelledError:
            self._observer.event("stop", "stopping")
            await self._end(messages.Stop(reason="stopped by the operator"))
            raise
        except Exception as error:  # whatever it is, also a fault of ours: what was trained is kept
            await self._end_failed(error)
            raise
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            if not self._hurry:
                for process in self._processes.values():
                    process.stop()
                await self._settle(self._limits.shutdown_s - self._stop_ask_s)
            if not self._verdict.done():
                self._verdict.cancel()

    def _task(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(coroutine)
        task.add_done_callback(self._keeper_done)
        return task

    def _keeper_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._verdict.done():
            self._verdict.set_exception(error)

    async def _until_loaded(self) -> None:
        """A job file may load data for minutes: that is waited for while its process lives."""
        began = asyncio.get_running_loop().time()
        while not self._loaded.done():
            futures: list[asyncio.Future[Any]] = [self._loaded, self._verdict]
            done, _ = await asyncio.wait(
                futures, timeout=self._limits.load_told_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._verdict in done:
                await self._verdict
            if not done:
                waited_s = asyncio.get_running_loop().time() - began
                self._observer.event(
                    "wait",
                    f"waiting for {self._plan.file} to load in the coordinator, {waited_s:.0f} s "
                    f"so far; what it prints is in {self._processes['coordinator-0'].log}",
                )

    async def _first(self, wanted: asyncio.Future[str]) -> str:
        """The future's value, unless the run has failed before or patience ends."""
        futures: list[asyncio.Future[Any]] = [wanted, self._verdict]
        await asyncio.wait(
            futures,
            timeout=self._limits.join_patience_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._verdict.done():
            await self._verdict
        if not wanted.done():
            raise JobFailed(
                f"the coordinator did not start to listen within {self._limits.join_patience_s:g} "
                f"s; its log: {self._processes['coordinator-0'].log}"
            )
        return wanted.result()

    # -- keeping processes ------------------------------------------------------------------------

    async def _start(self, role: Role) -> Process:
        def on_event(message: Mapping[str, Any]) -> None:
            self._hear(role, message)

        self._said.pop(role.title, None)
        process = await self._engine.start(role, on_event)
        self._processes[role.title] = process
        return process

    def _hear(self, role: Role, message: Mapping[str, Any]) -> None:
        match message:
            case {"event": "loaded"} if role.name == "coordinator":
                if not self._loaded.done():
                    self._loaded.set_result(None)
            case {"event": "listening", "url": str(url)} if role.name == "coordinator":
                if not self._url.done():
                    self._url.set_result(url)
            case {"event": "print", "text": str(text)}:
                self._observer.event("print", f"{role.title}: {text}")
            case {"event": "error" | "finished"}:
                self._said[role.title] = message
            case {"state": str()} if role.name == "coordinator":
                self._report = dict(message)
                if message.get("elsewhere") or message.get("lost"):
                    self._observer.event("storage", f"run folder: {message.get('storage')}")

    async def _keep_coordinator(self) -> None:
        process = await self._start(self._plan.coordinator())
        end = await process.wait()
        if end.code != EXIT_OK or self._report is None:
            if self._report is not None and end.code > 0:
                raise JobFailed(str(self._report.get("reason", "")), report=self._report)
            raise self._death(process, end)
        if not self._verdict.done():
            self._verdict.set_result(self._report)

    async def _keep_shard(self, index: int, url: str) -> None:
        process = await self._start(
            self._plan.shard(index, url, self._engine.bind(index, self._plan.bind))
        )
        end = await process.wait()
        if end.code != EXIT_OK:
            await self._coordinator_first()
            error = self._death(process, end)
            await self._tell_ended(process, end, url)
            raise error

    async def _tell_ended(self, process: Process, end: Exit, url: str) -> None:
        """The coordinator would wait for a shard that is only silent: this one is gone."""
        from pydownpour.net.client import Client

        news = messages.ShardEnded(
            index=process.role.index, pid=process.pid, reason=clip(end.describe())
        )
        with contextlib.suppress(DownpourError):
            async with Client(url, access=self._access, limits=self._limits) as client:
                await client.post(
                    "/v1/shard/ended", news, messages.HeartbeatAnswer, timeout_s=self._stop_ask_s
                )

    async def _coordinator_first(self) -> None:
        """Let a dead coordinator be named rather than a process that it pulled down."""
        coordinator = self._processes["coordinator-0"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await coordinator.wait()
                await asyncio.shield(asyncio.wait([self._verdict]))

    async def _keep_replica(self, index: int, url: str) -> None:
        clock = asyncio.get_running_loop()
        role = self._plan.replica(index, url, owner=secrets.token_hex(16))
        while not self._ending.is_set():
            before = self._work_of(role.title)
            process = await self._start(role)
            born = clock.time()
            exit = await process.wait()
            if self._ending.is_set():
                return
            if exit.code != EXIT_OK:
                await self._coordinator_first()
                await self._look(url)
            said = self._said.get(role.title, {})
            end = End(
                exit,
                clock.time() - born,
                goodbye=said.get("event") == "finished",
                worked=self._work_of(role.title) != before,
                failure=str(said.get("message", "")),
                unit=str(said.get("unit", "")),
                cured_by_skipping=said.get("cured_by_skipping") is True,
            )
            decision = self._restarts.decide(index, end, clock.time())
            if isinstance(decision, Finished):
                self._ended.add(index)
                return
            if not isinstance(decision, Again):
                raise self._death(process, exit, why=decision.reason)
            self._tell_crash(decision, process, end)
            await asyncio.sleep(decision.after_s)

    def _tell_crash(self, decision: Again, process: Process, end: End) -> None:
        """Say at once what happened, with the user's own lines the first time."""
        words = f"{decision.reason}; starts again in {decision.after_s:g} s"
        if end.own_fault and end.failure not in self._shown:
            self._shown.add(end.failure)
            words += self._last_words(process)
        self._observer.event("restart", words)

    def _work_of(self, name: str) -> tuple[int, int]:
        """Units and pushes of the replica of this name that count, as far as we were told."""
        replicas = self._status.replicas if self._status is not None else []
        mine = next((r for r in replicas if r.name == name), None)
        return (mine.units, mine.stats.pushes_acked) if mine is not None else (0, 0)

    async def _look(self, url: str) -> None:
        """Bring what we know of the job up to date, if the coordinator answers."""
        from pydownpour.net.client import Client

        with contextlib.suppress(DownpourError):
            async with Client(url, access=self._access, limits=self._limits) as client:
                self._status = await client.get("/v1/status", Status, timeout_s=1.0)

    def _death(self, process: Process, end: Exit, *, why: str = "") -> DownpourError:
        """The error for a process whose end ends the job: who, how, and its last words."""
        title = process.role.title
        said = self._said.get(title)
        if said is not None and end.code == EXIT_CONFIG:
            return ConfigError(str(said.get("message")), role=title)
        words = why or f"{process.role.name} {process.role.index} {end.describe()}"
        if process.role.name == "shard":
            words += "; without durable shards the job cannot go on"
        if said is not None and not why and not said.get("traceback"):
            words += f": {said.get('message')}"
        return JobFailed(words + self._last_words(process), role=title, code=end.code)

    def _last_words(self, process: Process) -> str:
        """The traceback of the user's code, or the end of the log, line by line."""
        said = self._said.get(process.role.title, {})
        lines = list(said.get("traceback") or ()) or process.tail()
        quoted = "".join(f"\n  | {line}" for line in lines[-self._limits.log_tail_lines :])
        return f"{quoted}\n  its whole log: {process.log}"

    # -- watching ---------------------------------------------------------------------------------

    async def _watch(self, url: str) -> None:
        """Hand statuses on, and end a job that nobody works for any more."""
        from pydownpour.net.client import Client

        idle_since: float | None = None
        clock = asyncio.get_running_loop()
        async with Client(url, access=self._access, limits=self._limits) as client:
            while True:
                await asyncio.sleep(self._limits.status_poll_s)
                with contextlib.suppress(DownpourError):
                    self._status = await client.get("/v1/status", Status, timeout_s=5.0)
                    self._observer.status(self._status)
                if len(self._ended) < self._plan.replicas:
                    continue
                idle_since = clock.time() if idle_since is None else idle_since
                if clock.time() - idle_since > self._limits.dead_s and self._work_left():
                    raise JobFailed(self._work_left())

    def _work_left(self) -> str:
        status = self._status
        if status is None or status.state != "running" or status.units_done >= status.units:
            return ""
        return (
            f"every replica ended, but only {status.units_done} of {status.units} units are done; "
            "the replica function must go on until replica.work() ends by itself"
        )

    # -- ending -----------------------------------------------------------------------------------

    async def _end_failed(self, error: Exception) -> None:
        """The run cannot go on: what was trained is kept, and the error carries the report."""
        reason = clip(str(error).partition("\n")[0] or type(error).__name__)
        stop = messages.Stop(reason=reason, failed=True)
        cancelled = False
        try:
            await self._end(stop)
        except asyncio.CancelledError:  # the operator's first word about it; a second one kills
            cancelled = True
            await self._end(stop)
        if self._report is not None and isinstance(error, DownpourError):
            error.details.setdefault("report", self._report)
        if cancelled:
            raise asyncio.CancelledError

    async def _end(self, stop: messages.Stop) -> None:
        """Ask the coordinator for its ordinary end, and wait while it is at it."""
        self._ending.set()
        coordinator = self._processes.get("coordinator-0")
        if coordinator is None or not self.has_begun:
            return
        self._hurry = True  # until it has had its time, a further request to stop means now
        ended = asyncio.ensure_future(coordinator.wait())
        try:
            await self._ask_stop(self._url.result(), stop, ended)
            await self._until_written(ended)
        finally:
            ended.cancel()
        await self._settle(self._stop_ask_s)
        self._hurry = False

    async def _ask_stop(self, url: str, stop: messages.Stop, ended: asyncio.Future[Exit]) -> None:
        from pydownpour.net.client import Client

        async def ask() -> None:
            with contextlib.suppress(DownpourError):
                async with Client(url, access=self._access, limits=self._limits) as client:
                    await client.post("/v1/stop", stop, messages.HeartbeatAnswer)

        asking = asyncio.ensure_future(ask())
        both: list[asyncio.Future[Any]] = [asking, ended]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()

    async def _until_written(self, ended: asyncio.Future[Exit]) -> None:
        """Wait for the coordinator's end: it may write for minutes, and says so in its status.

        Given up when it has not answered for ``request_timeout_s``, or when nobody listens
        any more or the report is made, and it still does not end: something of the user's holds it.
        """
        from pydownpour.net.client import Client

        clock = asyncio.get_running_loop()
        heard_at, over_at = clock.time(), float("inf")
        async with Client(self._url.result(), access=self._access, limits=self._limits) as client:
            while not ended.done():
                await asyncio.wait([ended], timeout=self._limits.status_poll_s)
                is_over = self._report is not None
                try:
                    self._status = await client.get("/v1/status", Status, timeout_s=5.0)
                    heard_at = clock.time()
                except ConnectFailed:
                    is_over = True
                except DownpourError:
                    pass
                over_at = min(over_at, clock.time()) if is_over else float("inf")
                if clock.time() - over_at > self._stop_ask_s:
                    return
                if clock.time() - heard_at > self._limits.request_timeout_s:
                    self._observer.event(
                        "stop", "the coordinator does not answer any more; it is killed"
                    )
                    return

    async def _settle(self, patience_s: float) -> None:
        """Wait until every process has ended, at most so long."""
        waits = [asyncio.ensure_future(p.wait()) for p in self._processes.values()]
        if not waits:
            return
        try:
            await asyncio.wait(waits, timeout=patience_s)
        finally:
            for wait in waits:
                wait.cancel()
