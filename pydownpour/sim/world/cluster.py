"""A job's processes on simulated hosts, and what may be done to them.

One coordinator, some shards and replicas, each a simulated process on a host of its own, running
the same service functions a real deployment runs. A supervisor restarts replicas as the local
engine does. Everything random comes from streams named after what they are for, all derived from
one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, final

from pydownpour.coordinator.service import CoordinatorService, serve_coordinator
from pydownpour.engines.base import EXIT_USER, Exit
from pydownpour.engines.restarts import End, GiveUp, Restarts
from pydownpour.errors import AuthError, ClosedError, DownpourError, Fenced, JobFailed
from pydownpour.fields import clip
from pydownpour.job import Job
from pydownpour.net.access import Access, Bind
from pydownpour.policy import Policy
from pydownpour.policy.phases import phases_of
from pydownpour.replica import failure
from pydownpour.replica.reduction.listening import Listening
from pydownpour.replica.replica import Replica
from pydownpour.replica.run import run_replica
from pydownpour.shard.gate import AckGate
from pydownpour.shard.service import ShardService, run_shard
from pydownpour.shard.state import Shard
from pydownpour.sim.compute.cost import ChargedReplica
from pydownpour.sim.compute.handoff import run_plain
from pydownpour.sim.disk.disk import SimDisk
from pydownpour.sim.faults import hostile
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import ProcessState, SimProcess, current
from pydownpour.sim.network.network import Network
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.processes import Processes
from pydownpour.sim.world.settings import Settings
from pydownpour.wire.messages import SetPolicy, Stop

PORT = 7000
"""Every role's port, each on its own host."""
RUN_FOLDER = "run"
"""The coordinator's, on its simulated disk."""
RESTART_S = 1.0
"""A crashed replica comes back after this long, doubling up to ten times it."""


class Audience(Protocol):
    """Who is told of the services of a cluster: the checks."""

    def coordinator_made(self, service: CoordinatorService) -> None:
        """The coordinator is about to serve."""

    def shard_loaded(self, shard: Shard) -> None:
        """A shard has its place, and is about to load."""

    def replica_joined(self, process: SimProcess, replica: Replica) -> None:
        """A replica process has joined the job."""

    def replica_gone(self, process: SimProcess) -> None:
        """A replica process ended or was killed."""


class Cluster:
    """A job's processes. Faults and checks see this of a world."""

    audience: Audience

    def __init__(
        self,
        job: Job,
        settings: Settings,
        trace: Trace | None = None,
        *,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.job, self.settings = job, settings
        self.trace = trace or Trace()
        self.loop = SimLoop(events_max=settings.events_max, virtual_s_max=settings.virtual_s_max)
        self.network = Network(self.loop, self.stream("network"), self.trace)
        self.processes = Processes(self.network)
        self.coordinator: CoordinatorService | None = None
        self.shard_services: dict[int, list[ShardService]] = {}
        """By index: of every process that was to serve the shard, the youngest last."""
        self._successors: dict[str, ShardService] = {}
        """Of processes that take a shard over, by name."""
        self.gate_of: Callable[[int], AckGate | None] = lambda index: None
        """What holds a shard's acknowledgements; None: its own choice."""
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
        self.leaving: dict[str, None] = {}
        """Replicas that were asked to stop: nobody starts them again."""
        self.user_errors: list[str] = []
        """Each failure of the replica function, the first time it happened, with its traceback."""
        self._say = say
        self._user_restarts = Restarts(settings.limits)
        self._born: dict[str, float] = {}
        self._replicas_added = 0
        self._ids: dict[str, int] = {}
        self._delays: dict[str, float] = {}
        self._done: asyncio.Future[None]
        self._url = ""

    def stream(self, name: str) -> random.Random:
        """An independent stream of random numbers; the same for the same seed and name."""
        return random.Random(f"{self.settings.seed}/{name}")

    # -- hosts and processes -----------------------------------------------------------------------

    def start(self) -> None:
        self._done = self.loop.create_future()
        coordinator = self._add_host("coordinator")
        coordinator.disk = SimDisk(self.stream("coordinator/disk"), self.loop.charge)
        self._url = f"http://{coordinator.address}:{PORT}"
        self.processes.start("coordinator", coordinator, self._coordinate, self._coordinated)
        for index in range(self.settings.shards):
            name = f"shard-{index}"
            host = self._add_host(name)
            self.processes.start(name, host, self._shard_main(index, name), self._shard_ended)
        for _ in range(self.settings.replicas):
            self.add_replica()

    async def ended(self) -> None:
        """Wait until the job is done, or the run failed."""
        await self._done

    def _add_host(self, name: str) -> Host:
        host = self.network.add_host(name, self.settings.link_of(name))
        host.clock_offset_s = self.settings.faults.clock_offset_s(self.stream(f"{name}/clock"))
        return host

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
            limits=self.settings.limits,
        )

    def _coordinator_made(self, service: CoordinatorService) -> None:
        self.coordinator = service
        self.audience.coordinator_made(service)

    def _coordinated(self, process: SimProcess, error: BaseException | None) -> None:
        if error is not None:
            self.fail(f"the coordinator ended: {error!r}")
        elif self.report.get("state") != "done":
            self.fail(f"the job ended {self.report.get('state')}: {self.report.get('reason')}")
        else:
            self._finish()

    def _shard_main(
        self, index: int, name: str, ticket: str = ""
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        async def main() -> None:
            service = ShardService(
                ACCESS,
                phases_of(self.job.policy).classes,
                self.gate_of(index),
                self.settings.limits,
            )
            service.on_load = self.audience.shard_loaded
            self._successors[name] = service
            self.shard_services.setdefault(index, []).append(service)
            await run_shard(
                service,
                coordinator=self._url,
                bind=Bind(host=self.network.hosts[name].address, port=PORT),
                access=ACCESS,
                announce=lambda url: None,
                index=index,
                rng=self.stream(name),
                ticket=ticket,
            )

        return main

    def serving(self) -> list[Shard]:
        """Each shard that has loaded, where it is: at who serves it, or else at who stopped last.

        A process that gives it away has it as it is until another serves it.
        """
        found = []
        for services in self.shard_services.values():
            shards = [service.shard for service in services if service.shard is not None]
            for state in ("serving", "giving"):
                if here := [shard for shard in shards if shard.state == state]:
                    found.append(here[-1])
                    break
        return found

    def move_shard(self, index: int) -> str:
        """Start a process on a new host that takes a shard over; its name, or "" if it may not."""
        if self.coordinator is None or self.coordinator.job.places.get(index).successor:
            return ""
        try:
            ticket = self.coordinator.move(index)
        except DownpourError:  # the job is over
            return ""
        name = f"shard-{index}-{self.processes.started}"
        host = self._add_host(name)
        self.processes.start(
            name, host, self._shard_main(index, name, ticket), self._successor_ended
        )
        return name

    def switch_policy(self, policy: Policy) -> bool:
        """Ask the coordinator for another policy, from now on; False if there is none to ask."""
        process = self.processes.live.get("coordinator")
        if self.coordinator is None or process is None:
            return False
        wanted = SetPolicy(settings=policy.to_wire(), by="a world")
        self.loop.call_soon(self._switched, wanted, context=process.context)
        return True

    def _switched(self, wanted: SetPolicy) -> None:
        assert self.coordinator is not None
        with contextlib.suppress(ClosedError, JobFailed):
            self.coordinator.set_policy(wanted)

    def kill_successor(self, name: str, *, silently: bool) -> bool:
        """Kill who takes a shard over, unless the shard may be its own already: that would be doom.

        It may as soon as it has everything: that it says so is on its way to the coordinator.
        """
        process, service = self.processes.live.get(name), self._successors.get(name)
        shard = service.shard if service is not None else None
        if process is None or (shard is not None and shard.state != "loading"):
            return False
        index = int(name.split("-")[1])
        shards = [service.shard for service in self.shard_services[index]]
        if any(shard is not None and shard.state == "prepared" for shard in shards):
            return False  # that it has everything may be on its way to the coordinator
        self.processes.kill(process, silently=silently)
        return True

    def _successor_ended(self, process: SimProcess, error: BaseException | None) -> None:
        """One that was given up says so: nobody lost anything by it."""
        if not isinstance(error, (Fenced, AuthError, ClosedError, JobFailed)):
            self._shard_ended(process, error)

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
                listening=Listening(Bind(host=host.address, port=PORT)),
                limits=self.settings.limits,
            )

        return main

    def joined(self, name: str, replica: Replica) -> None:
        """The running process's replica has joined; remember its id for its restarts."""
        self._ids[name] = replica.id
        process = current()
        assert process is not None
        self.replicas[process] = replica
        self.audience.replica_joined(process, replica)

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
        self.audience.replica_gone(process)
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
        lsns = [shard.store.lsn for shard in self.serving()]
        return (job and job.state, job and job.samples_done, *lsns)

    @property
    def coordinator_runs(self) -> bool:
        process = self.processes.live.get("coordinator")
        return process is not None and process.state is not ProcessState.DEAD


ACCESS = Access(insecure=True)
"""Simulated networks have nobody else on them."""


@final
class _Charged:
    """The job as a simulated replica sees it: the same, but its function's time is charged."""

    def __init__(self, cluster: Cluster, name: str, host: Host) -> None:
        self._cluster, self._name, self._host = cluster, name, host
        self.layout, self.policy = cluster.job.layout, cluster.job.policy

    @property
    def train(self) -> Callable[[Any], Any]:
        """The job's function, or the one that computes nothing."""
        cluster = self._cluster
        rng = cluster.stream(f"{self._name}/compute/{cluster.restarts}")
        function = _zeros_pushed(cluster.job) if cluster.settings.timing_only else cluster.job.train
        model = cluster.settings.compute

        async def train(replica: Replica) -> None:
            cluster.joined(self._name, replica)
            if inspect.iscoroutinefunction(function):
                await function(ChargedReplica(replica, model, self._host, rng))
            else:
                await run_plain(function, replica, model, self._host, rng)

        return train


def _zeros_pushed(job: Job) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A training function that computes nothing: one step a unit, a gradient of zeros."""
    import numpy as np

    zeros = {s.name: np.zeros(s.shape, np.float32) for s in job.layout.arrays}
    step = zeros if job.optimizer is not None else None  # None: one of the user's loop's own

    async def train(replica: Any) -> None:
        async for unit in replica.work():
            await replica.step(step, samples=len(unit))

    return train
