"""Build a job's world and run it to its report: its processes, faults, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from pydownpour.errors import DownpourError
from pydownpour.job import Job
from pydownpour.sim.checks.base import Check
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.checks.table import Checks
from pydownpour.sim.faults.storm import Storm
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.cluster import Cluster
from pydownpour.sim.world.settings import Settings


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
        with _collector_at_rest(), _no_proxies():
            began = time.perf_counter()  # only for messages a second; no decision sees it
            asyncio.set_event_loop(self.loop)
            try:
                with self.checks:
                    self.loop.run_until_complete(self._main())
            except DownpourError as error:
                self.failure = f"{type(error).__name__}: {error}"
            finally:
                self.wall_s = time.perf_counter() - began
                self.over = True
                self.virtual_s = self.loop.now
                self.checks.at_end()
                self._tear_down()
        return self

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
        with contextlib.suppress(DownpourError):
            self.loop.run_until_complete(self.processes.unwind())
        with contextlib.suppress(DownpourError):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()

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
