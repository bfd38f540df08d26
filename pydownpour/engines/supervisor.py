"""Runs one job through an engine, from the first process to the last.

    coordinator starts and says its URL
      -> shards and replicas start
      -> replicas that crash start again (``restarts`` decides)
      -> the coordinator ends: its report is the result
    whatever happens, every process has ended and been reaped when ``run`` returns

The first cause wins. Processes pull each other down, so when one that the job cannot do without
ends badly, the others get ``GRACE_S`` to show whether they ended first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, final

from pydownpour import limits
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
from pydownpour.engines.restarts import Again, Finished, Restarts
from pydownpour.errors import ConfigError, DownpourError, JobFailed
from pydownpour.net.access import Access
from pydownpour.wire import messages
from pydownpour.wire.messages import Status

GRACE_S: Final = 0.3
"""How long a bad end waits for the end that caused it."""
STOP_ASK_S: Final = limits.SHUTDOWN_S * 2 / 3
"""Of SHUTDOWN_S, how long processes may end by themselves before they get SIGTERM."""


@final
class Supervisor:
    """One run of one plan.

    Args:
        engine: Makes the processes; already entered.
        plan: What to run.
        access: For asking the coordinator's status.
        observer: Gets events and statuses.
    """

    def __init__(self, engine: Engine, plan: Plan, *, access: Access, observer: Observer) -> None:
        self._engine = engine
        self._plan = plan
        self._access = access
        self._observer = observer
        self._restarts = Restarts()
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._report: dict[str, Any] | None = None
        self._said: dict[str, Mapping[str, Any]] = {}
        self._processes: dict[str, Process] = {}
        self._status: Status | None = None
        self._hurry = False
        """True when what still runs is killed without being asked."""
        self._ended: set[int] = set()
        """Replicas that did their work."""

    async def run(self) -> dict[str, Any]:
        """The job's report.

        Cancelling it ends the job within ``limits.SHUTDOWN_S``; cancelling again, at once.

        Raises:
            JobFailed: which process ended the job, how, and its last words.
            ConfigError: a role refused its settings.
        """
        keepers: list[asyncio.Task[None]] = []
        try:
            keepers.append(self._task(self._keep_coordinator()))
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
            await self._settle(limits.SHUTDOWN_S)
            return report
        except asyncio.CancelledError:
            self._observer.event("stop", "stopping")
            await self._stop_gently()
            raise
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            if not self._hurry:
                for process in self._processes.values():
                    process.stop()
                await self._settle(limits.SHUTDOWN_S - STOP_ASK_S)
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

    async def _first(self, wanted: asyncio.Future[str]) -> str:
        """The future's value, unless the run has failed before or patience ends."""
        futures: list[asyncio.Future[Any]] = [wanted, self._verdict]
        await asyncio.wait(
            futures,
            timeout=limits.JOIN_PATIENCE_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._verdict.done():
            await self._verdict
        if not wanted.done():
            raise JobFailed(
                f"the coordinator did not start to listen within {limits.JOIN_PATIENCE_S:g} s; "
                f"see {self._plan.run_folder / 'logs'}"
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
            case {"event": "listening", "url": str(url)} if role.name == "coordinator":
                if not self._url.done():
                    self._url.set_result(url)
            case {"event": "error"}:
                self._said[role.title] = message
            case {"state": str()} if role.name == "coordinator":
                self._report = dict(message)

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
        process = await self._start(self._plan.shard(index, url))
        end = await process.wait()
        if end.code != EXIT_OK:
            await self._coordinator_first()
            raise self._death(process, end)

    async def _coordinator_first(self) -> None:
        """Let a dead coordinator be named rather than a process that it pulled down."""
        coordinator = self._processes["coordinator-0"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await coordinator.wait()
                await asyncio.shield(asyncio.wait([self._verdict]))

    async def _keep_replica(self, index: int, url: str) -> None:
        clock = asyncio.get_running_loop()
        replica = 0
        while True:
            process = await self._start(self._plan.replica(index, url, replica))
            born = clock.time()
            end = await process.wait()
            if end.code != EXIT_OK:
                await self._coordinator_first()
            failure = str(self._said.get(process.role.title, {}).get("message", ""))
            decision = self._restarts.decide(
                index, end, lived_s=clock.time() - born, failure=failure
            )
            if isinstance(decision, Finished):
                self._ended.add(index)
                return
            if not isinstance(decision, Again):
                raise self._death(process, end, why=decision.reason)
            self._observer.event(
                "restart", f"{decision.reason}; starts again in {decision.after_s:g} s"
            )
            await asyncio.sleep(decision.after_s)
            replica = await self._replica_id(url, process.role.title) or replica

    async def _replica_id(self, url: str, name: str) -> int:
        """The id the coordinator gave the replica of this name; 0 if it never joined."""
        from pydownpour.net.client import Client

        with contextlib.suppress(DownpourError):
            async with Client(url, access=self._access) as client:
                self._status = await client.get("/v1/status", Status, timeout_s=1.0)
        if self._status is None:
            return 0
        return next((r.id for r in self._status.replicas if r.name == name), 0)

    def _death(self, process: Process, end: Exit, *, why: str = "") -> DownpourError:
        """The error for a process whose end ends the job: who, how, and its last words."""
        title = process.role.title
        said = self._said.get(title)
        if said is not None and end.code == EXIT_CONFIG:
            return ConfigError(str(said.get("message")), role=title)
        words = why or f"{process.role.name} {process.role.index} {end.describe()}"
        if process.role.name == "shard":
            words += "; without durable shards the job cannot go on"
        lines = list(said.get("traceback") or ()) if said is not None else []
        if not lines and said is not None and not why:
            words += f": {said.get('message')}"
        lines = lines or process.tail()
        quoted = "".join(f"\n  | {line}" for line in lines[-limits.LOG_TAIL_LINES :])
        return JobFailed(
            f"{words}{quoted}\n  its whole log: {process.log}", role=title, code=end.code
        )

    # -- watching ---------------------------------------------------------------------------------

    async def _watch(self, url: str) -> None:
        """Hand statuses on, and end a job that nobody works for any more."""
        from pydownpour.net.client import Client

        idle_since: float | None = None
        clock = asyncio.get_running_loop()
        async with Client(url, access=self._access) as client:
            while True:
                await asyncio.sleep(limits.STATUS_POLL_S)
                with contextlib.suppress(DownpourError):
                    self._status = await client.get("/v1/status", Status, timeout_s=5.0)
                    self._observer.status(self._status)
                if len(self._ended) < self._plan.replicas:
                    continue
                idle_since = clock.time() if idle_since is None else idle_since
                if clock.time() - idle_since > limits.DEAD_S and self._work_left():
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

    async def _stop_gently(self) -> None:
        """Ask the coordinator to end the job, so that what was trained is kept if time allows."""
        if not self._url.done() or self._url.cancelled():
            return
        self._hurry = True  # until the first stop has had its time, a second one means now
        with contextlib.suppress(DownpourError, TimeoutError):
            async with asyncio.timeout(STOP_ASK_S):
                await self._ask_stop(self._url.result())
                await self._settle(STOP_ASK_S)
        self._hurry = False

    async def _ask_stop(self, url: str) -> None:
        from pydownpour.net.client import Client

        stop = messages.Stop(reason="stopped by the operator")
        async with Client(url, access=self._access) as client:
            await client.post("/v1/stop", stop, messages.HeartbeatAnswer, timeout_s=STOP_ASK_S)

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
