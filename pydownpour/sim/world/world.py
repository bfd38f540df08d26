"""Build a job's world and run it to its report.

One coordinator, some shards and replicas, each a simulated process on a host of its own, running
the same service functions a real deployment runs. A supervisor restarts replicas as the local
engine does. Everything random comes from streams named after what they are for, all derived from
one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import inspect
import os
import random
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, final

from pydownpour import config, limits
from pydownpour.coordinator.service import CoordinatorService, serve_coordinator
from pydownpour.engines.base import EXIT_USER, Exit
from pydownpour.engines.restarts import End, GiveUp, Restarts
from pydownpour.errors import ConfigError, DownpourError
from pydownpour.fields import clip
from pydownpour.job import Job
from pydownpour.net.access import Access, Bind
from pydownpour.replica import failure
from pydownpour.replica.replica import Replica
from pydownpour.replica.run import run_replica
from pydownpour.shard.service import ShardService, run_shard
from pydownpour.sim.checks.base import Check
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.checks.samples import SampleOracle
from pydownpour.sim.checks.table import Checks
from pydownpour.sim.compute.cost import ChargedReplica, ComputeModel
from pydownpour.sim.compute.handoff import run_plain
from pydownpour.sim.disk.disk import SimDisk
from pydownpour.sim.faults import hostile
from pydownpour.sim.faults.plans import FaultPlan
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import Host, LinkModel
from pydownpour.sim.machines.process import ProcessState, SimProcess, current
from pydownpour.sim.network.network import Network
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.processes import Processes
from pydownpour.wire.messages import Stop

PORT = 7000
"""Every role's port, each on its own host."""
HOST = re.compile(r"coordinator|(shard|replica)(-\d+)?")
RUN_FOLDER = "run"
"""The coordinator's, on its simulated disk."""
RESTART_S = 1.0
"""A crashed replica comes back after this long, doubling up to ten times it."""


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """What a simulation is run with; equal settings and code give equal traces.

    Attributes:
        seed: Of everything random.
        shards, replicas: How many of each.
        faults: What goes wrong, and when.
        link: Every host's network, but for
        own_links: those of some hosts or roles: ``(("replica-3", LinkModel(...)), ...)``.
        compute: What a step costs.
        proxied: Share of replicas whose way out does not pass Upgrade on: they POST and GET.
        timing_only: Compute nothing; push a gradient of zeros.
        limits: Names of ``limits`` and what they are during the run: small worlds meet the edges
            that large ones would.
        events_max, virtual_s_max: Budgets: a run over them failed.
    """

    seed: int = 0
    shards: int = 2
    replicas: int = 4
    faults: FaultPlan = dataclasses.field(default_factory=FaultPlan)
    link: LinkModel = dataclasses.field(default_factory=LinkModel)
    own_links: tuple[tuple[str, LinkModel], ...] = ()
    compute: ComputeModel = dataclasses.field(default_factory=ComputeModel)
    proxied: float = 0.0
    timing_only: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    events_max: int = 200_000_000
    virtual_s_max: float = 1e6

    def __post_init__(self) -> None:
        for field, least in (("shards", 1), ("replicas", 1), ("seed", 0), ("events_max", 1)):
            _ = config.whole(field, getattr(self, field), least=least)
        _ = config.real("virtual_s_max", self.virtual_s_max, config.positive, "it must be above 0")
        for name, _ in self.own_links:
            if not HOST.fullmatch(name):
                raise ConfigError(
                    f"links: no host is called {name!r}; there are coordinator, shard-0 and so on, "
                    "replica-0 and so on, and the roles shard and replica"
                )
        for name, _ in self.limits:
            if not hasattr(limits, name):
                raise ConfigError(f"limits={self.limits}: there is no limit {name}")

    def link_of(self, host: str) -> LinkModel:
        """Its own, its role's, or everybody's."""
        own = dict(self.own_links)
        return own.get(host) or own.get(host.partition("-")[0]) or self.link


@final
class World:
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
        self.job, self.settings = job, settings
        self.oracle, self.samples = oracle, samples
        self.trace = trace or Trace()
        self.loop = SimLoop(events_max=settings.events_max, virtual_s_max=settings.virtual_s_max)
        self.network = Network(self.loop, self.stream("network"), self.trace)
        self.processes = Processes(self.network)
        self.coordinator: CoordinatorService | None = None
        self.shard_services: dict[int, ShardService] = {}
        self.replicas: dict[SimProcess, Replica] = {}
        """The live replicas' faces, by process."""
        self.report: dict[str, Any] = {}
        self.failure = ""
        self.ends: list[BaseException] = []
        """Errors that processes ended with."""
        self.over = False
        self.restarts = 0
        self.faults = 0
        """Faults that took place."""
        self.wall_s = 0.0
        self.virtual_s = 0.0
        self.checks = Checks(self, checks)
        self.leaving: dict[str, None] = {}
        """Replicas that were asked to stop: nobody starts them again."""
        self.user_errors: list[str] = []
        """Each failure of the replica function, the first time it happened, with its traceback."""
        self._say = say
        self._user_restarts = Restarts()
        self._born: dict[str, float] = {}
        self._replicas_added = 0
        self._ids: dict[str, int] = {}
        self._delays: dict[str, float] = {}
        self._done: asyncio.Future[None]
        self._url = ""

    def stream(self, name: str) -> random.Random:
        """An independent stream of random numbers; the same for the same seed and name."""
        return random.Random(f"{self.settings.seed}/{name}")

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> World:
        """Run the job to its end, or to the failure that ``failure`` names."""
        with _collector_at_rest(), _no_proxies(), _limits_set(self.settings.limits):
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
        settings = self.settings
        self._done = self.loop.create_future()
        coordinator = self._add_host("coordinator")
        coordinator.disk = SimDisk(self.stream("coordinator/disk"), self.loop.charge)
        self._url = f"http://{coordinator.address}:{PORT}"
        self.processes.start("coordinator", coordinator, self._coordinate, self._coordinated)
        for index in range(settings.shards):
            name = f"shard-{index}"
            host = self._add_host(name)
            self.processes.start(name, host, self._shard_main(index), self._shard_ended)
        for _ in range(settings.replicas):
            self.add_replica()
        script = asyncio.create_task(settings.faults.play(self))
        script.add_done_callback(self._script_ended)
        await self._done
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)

    def _add_host(self, name: str) -> Host:
        host = self.network.add_host(name, self.settings.link_of(name))
        host.clock_offset_s = self.settings.faults.clock_offset_s(self.stream(f"{name}/clock"))
        return host

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

    def fail(self, why: str) -> None:
        """End the run: the job failed, for this reason if it is the first."""
        self.failure = self.failure or why
        self._finish()

    def _finish(self) -> None:
        self.over = True
        if not self._done.done():
            self._done.set_result(None)

    # -- processes ---------------------------------------------------------------------------------

    async def _coordinate(self) -> None:
        self.report = await serve_coordinator(
            self.job,
            shards=self.settings.shards,
            bind=Bind(host=self.network.hosts["coordinator"].address, port=PORT),
            access=ACCESS,
            run_folder=RUN_FOLDER,
            announce=lambda url: None,
            random=self.stream("coordinator"),
            expected_replicas=self.settings.replicas,
            files=self.network.hosts["coordinator"].disk,
            watch=self._coordinator_made,
        )

    def _coordinator_made(self, service: CoordinatorService) -> None:
        self.coordinator = service
        self.checks.watch_coordinator(service)

    def _coordinated(self, process: SimProcess, error: BaseException | None) -> None:
        if error is not None:
            self.fail(f"the coordinator ended: {error!r}")
        elif self.report.get("state") != "done":
            self.fail(f"the job ended {self.report.get('state')}: {self.report.get('reason')}")
        else:
            self._finish()

    def _shard_main(self, index: int) -> Callable[[], Coroutine[Any, Any, None]]:
        async def main() -> None:
            service = ShardService(ACCESS, lambda: type(self.job.policy))
            self.shard_services[index] = service
            await run_shard(
                service,
                coordinator=self._url,
                bind=Bind(host=self.network.hosts[f"shard-{index}"].address, port=PORT),
                access=ACCESS,
                announce=lambda url: None,
                index=index,
                rng=self.stream(f"shard-{index}"),
            )

        return main

    def _shard_ended(self, process: SimProcess, error: BaseException | None) -> None:
        if error is not None and not self.over and not self._is_failing:
            self.fail(f"{process.name} ended: {error!r}")

    @property
    def _is_failing(self) -> bool:
        """The coordinator has told everybody that the job failed; it still makes its report."""
        return self.coordinator is not None and self.coordinator.job.state == "failed"

    def add_replica(self) -> str:
        """One more replica, on a host of its own. Returns its name."""
        name = f"replica-{self._replicas_added}"
        self._replicas_added += 1
        host = self._add_host(name)
        host.passes_upgrade = self.stream(f"{name}/proxy").random() >= self.settings.proxied
        self._start_replica(name, host)
        return name

    def add_hostile(self) -> bool:
        """A peer with bad intentions comes for a moment, unless one is there."""
        if hostile.NAME in self.processes.live:
            return False
        host = self.network.hosts.get(hostile.NAME) or self._add_host(hostile.NAME)
        rng = self.stream(f"{hostile.NAME}/{self.processes.started}")

        def ended(process: SimProcess, error: BaseException | None) -> None:
            if error is not None and not self.over:
                self.fail(f"the hostile peer itself failed: {error!r}")

        async def main() -> None:
            await hostile.play(self._url, ACCESS, rng)

        self.processes.start(hostile.NAME, host, main, ended)
        return True

    def _start_replica(self, name: str, host: Host) -> None:
        self._born[name] = self.loop.now
        self.processes.start(name, host, self._replica_main(name, host), self._replica_ended)

    def _replica_main(self, name: str, host: Host) -> Callable[[], Coroutine[Any, Any, None]]:
        incarnation = self.stream(f"{name}/{self.restarts}")

        async def main() -> None:
            await run_replica(
                _Charged(self, name, host),
                coordinator=self._url,
                access=ACCESS,
                name=name,
                owner=f"{self.stream(f'{name}/owner').getrandbits(128):032x}",
                rng=incarnation,
                own_thread=False,
            )

        return main

    def joined(self, name: str, replica: Replica) -> None:
        """The running process's replica has joined; remember its id for its restarts."""
        self._ids[name] = replica.id
        process = current()
        assert process is not None
        self.replicas[process] = replica
        self.checks.watch_replica(process, replica)

    def _replica_ended(self, process: SimProcess, error: BaseException | None) -> None:
        self._replica_gone(process)
        if error is not None:
            self.ends.append(error)
        if error is not None and not self.over:
            self.trace.note(self.loop.now, "failed", f"{process.name} {type(error).__name__}")
            if failure.is_users(error):
                self._user_failed(process.name, error)
            self.restart_later(process.name)

    def _user_failed(self, name: str, error: BaseException) -> None:
        """Say it at once; the third in a row ends the job, as the engine of a real run does."""
        unit = failure.noted_unit(error)
        end = End(
            Exit(EXIT_USER),
            self.loop.now - self._born[name],
            failure=failure.in_words(error),
            unit=unit,
            cured_by_skipping=bool(unit) and self.job.on_error == "skip",
        )
        if not any(end.failure in told for told in self.user_errors):
            lines = "".join(f"\n  | {line}" for line in failure.user_traceback(error))
            self.user_errors.append(
                f"{name} failed {unit or 'outside of any unit'}: {end.failure}{lines}"
            )
            if self._say is not None:
                self._say(self.user_errors[-1])
        place = int(name.rpartition("-")[2])
        decision = self._user_restarts.decide(place, end, self.loop.now)
        coordinator = self.processes.live.get("coordinator")
        if (
            isinstance(decision, GiveUp)
            and self.coordinator is not None
            and coordinator is not None
        ):
            stop = Stop(reason=clip(decision.reason), failed=True)
            self.loop.call_soon(self.coordinator.stop, stop, context=coordinator.context)

    def _replica_gone(self, process: SimProcess) -> None:
        self.checks.replica_gone(process)
        self.replicas.pop(process, None)

    def restart_later(self, name: str) -> None:
        """As the engine does: again under its old id, a little later each time."""
        delay_s = self._delays.get(name, RESTART_S)
        self._delays[name] = min(delay_s * 2, RESTART_S * 10)
        self.loop.at(self.loop.now + delay_s, self._restart, name)

    def _restart(self, name: str) -> None:
        if self.over or name in self.processes.live or name in self.leaving:
            return
        self.restarts += 1
        self._start_replica(name, self.network.hosts[name])

    # -- what faults do ----------------------------------------------------------------------------

    def note_fault(self, fault: str, who: str) -> None:
        """A fault took place."""
        self.faults += 1
        self.trace.note(self.loop.now, "fault", f"{fault} {who}", self.faults)

    def kill_replica(self, name: str, *, silently: bool = False) -> None:
        """As SIGKILL (or a power cut), then the supervisor's restart."""
        process = self.processes.live.get(name)
        if process is None:
            return
        self._replica_gone(process)
        self.processes.kill(process, silently=silently)
        self.restart_later(name)

    def supersede(self, name: str) -> None:
        """Start a replica's successor under its id while it may still live."""
        if not self.over and name in self._ids:
            self.restarts += 1
            self._start_replica(name, self.network.hosts[name])

    def stop_replica(self, name: str) -> None:
        """Ask a replica to leave; nobody starts it again."""
        process = self.processes.live.get(name)
        if process is not None:
            self.leaving[name] = None
            self.processes.terminate(process)

    def progress(self) -> tuple[object, ...]:
        """How far the job is: equal at two moments if nothing of it was done between them."""
        job = self.coordinator.job if self.coordinator is not None else None
        lsns = [s.shard.store.lsn for s in self.shard_services.values() if s.shard is not None]
        return (job and job.state, job and job.samples_done, *lsns)

    @property
    def coordinator_runs(self) -> bool:
        """False once it ended."""
        process = self.processes.live.get("coordinator")
        return process is not None and process.state is not ProcessState.DEAD

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


ACCESS = Access(insecure=True)
"""Simulated networks have nobody else on them."""


@final
class _Charged:
    """The job as a simulated replica sees it: the same, but its function's time is charged."""

    def __init__(self, world: World, name: str, host: Host) -> None:
        self._world, self._name, self._host = world, name, host
        self.layout, self.policy = world.job.layout, world.job.policy

    @property
    def train(self) -> Callable[[Any], Any]:
        """The job's function, or the one that computes nothing."""
        world = self._world
        rng = world.stream(f"{self._name}/compute/{world.restarts}")
        function = _zeros_pushed(world.job) if world.settings.timing_only else world.job.train
        model = world.settings.compute

        async def train(replica: Replica) -> None:
            world.joined(self._name, replica)
            if inspect.iscoroutinefunction(function):
                await function(ChargedReplica(replica, model, self._host, rng))
            else:
                await run_plain(function, replica, model, self._host, rng)

        return train


def _zeros_pushed(job: Job) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A training function that computes nothing: one step a unit, a gradient of zeros."""
    import numpy as np

    zeros = {s.name: np.zeros(s.shape, np.float32) for s in job.layout.arrays}

    async def train(replica: Any) -> None:
        async for unit in replica.work():
            await replica.step(zeros, samples=len(unit))

    return train


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


@contextlib.contextmanager
def _limits_set(values: tuple[tuple[str, float], ...]) -> Iterator[None]:
    """Other limits for a while."""
    before = [(name, getattr(limits, name)) for name, _ in values]
    for name, value in values:
        setattr(limits, name, value)
    try:
        yield
    finally:
        for name, value in before:
            setattr(limits, name, value)
