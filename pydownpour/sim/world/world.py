"""Build a job's world and run it to its report: its processes, faults, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

from pydownpour import __version__
from pydownpour.coordinator.report import build_report
from pydownpour.errors import DownpourError
from pydownpour.job import Job
from pydownpour.sim.checks.base import Check
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.checks.table import Checks
from pydownpour.sim.faults.storm import Storm
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.cluster import Cluster
from pydownpour.sim.world.settings import Settings

STOPPED: Final = "stopped by SIGINT"


@final
class World(Cluster):
    """One simulation. ``run`` once; then the attributes tell."""

    def __init__(
        self,
        job: Job,
        settings: Settings,
        trace: Trace | None = None,
        *,
        oracle: Oracle | None = None,
        samples: SampleOracle | None = None,
        checks: Sequence[type[Check]] = (),
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(job, settings, trace, say=say)
        self.checks = Checks(self, checks, oracle=oracle, samples=samples)
        self.audience = self.checks
        self.wall_s = 0.0
        self.virtual_s = 0.0

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> World:
        """Run the job to its end, or to the failure that ``failure`` names."""
        with _interrupted_between_turns(self.loop), _collector_at_rest(), _no_proxies():
            began = time.perf_counter()  # only for messages a second; no decision sees it
            so_far: dict[str, Any] = {}
            asyncio.set_event_loop(self.loop)
            try:
                with self.checks:
                    self.loop.run_until_complete(self._main())
            except DownpourError as error:
                self.failure = f"{type(error).__name__}: {error}"
            except KeyboardInterrupt:
                self.failure = STOPPED
                so_far = self._report_so_far()
                raise
            finally:
                self.wall_s = time.perf_counter() - began
                self.over = True
                self.virtual_s = self.loop.now
                if self.failure != STOPPED:  # what is cut off has no end that could be right
                    self.checks.at_end()
                self._tear_down()
                self.report = so_far or self.report
        return self

    def _report_so_far(self) -> dict[str, Any]:
        """What the coordinator knows of a job that did not come to its end."""
        if self.report or self.coordinator is None:
            return self.report
        clock_s = self.loop.now + self.network.hosts["coordinator"].clock_offset_s
        so_far = build_report(
            self.coordinator.job, clock_s, version=__version__, rss_peak_bytes=0, storage="off"
        )
        return {**so_far, "state": "stopped", "reason": STOPPED}

    async def _main(self) -> None:
        self.start()
        script = asyncio.create_task(Storm(self.settings.faults, self).play())
        script.add_done_callback(self._script_ended)
        await self.ended()
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)

    def _tear_down(self) -> None:
        self.trace.close()
        self.loop.lift_budgets()
        self.loop.run_until_complete(self._end_own())
        with contextlib.suppress(DownpourError):
            self.loop.run_until_complete(self.processes.unwind())
        with contextlib.suppress(DownpourError):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()

    async def _end_own(self) -> None:
        """The run itself and its faults, where the run was cut off: nothing strikes any more."""
        theirs = {task for process in self.processes.alive for task in process.tasks}
        theirs |= {task for process in self.processes.graveyard for task in process.tasks}
        own = asyncio.all_tasks() - theirs - {asyncio.current_task()}
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)

    def _script_ended(self, script: asyncio.Task[None]) -> None:
        if not script.cancelled() and (error := script.exception()) is not None:
            self.fail(f"the fault plan failed: {error!r}")

    def summary(self) -> dict[str, Any]:
        """The job's report, plus what only a simulation can tell."""
        return {
            **self.report,
            "seed": self.settings.seed,
            "faults": self.settings.faults.name,
            "trace_hash": self.trace.hash,
            "virtual_s": round(self.virtual_s, 6),
            "messages": self.trace.messages,
            "messages_per_s": round(self.trace.messages / self.wall_s) if self.wall_s else 0,
            "wall_s": round(self.wall_s, 3),
            "events": self.loop.events,
            "restarts": self.restarts,
            "faults_injected": self.faults,
            "is_evidence": self.checks.is_evidence,
            "violations": self.checks.violations,
            "user_errors": self.user_errors,
            "failure": self.failure,
        }


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """No cyclic garbage is collected while a world runs.

    When it is depends on what the process did before, and collecting may call back: finalizers of
    abandoned generators schedule themselves on the loop. What the world leaves goes at once behind
    it.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _interrupted_between_turns(loop: SimLoop) -> Iterator[None]:
    """Ctrl-C ends the run where no code of a process is in the middle: all of it ends in order.

    The second one does at once, should a replica function not return.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loop.is_interrupted = True

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if loop.is_interrupted:  # when its last turn was over
        raise KeyboardInterrupt


@contextlib.contextmanager
def _no_proxies() -> Iterator[None]:
    """No proxy of this machine's environment stands between simulated hosts."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if before is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = before
