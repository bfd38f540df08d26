"""Fault plans as data, and the storm that plays them.

Theory. A plan is a list of doses. A dose strikes at random moments, on the average every so many
virtual seconds, at a random target; what it broke it mends after a while. (A killed replica is not
mended: its supervisor starts it again, as in a real job.) After ``storm_s`` everything is healed
and nothing is restarted by hand; from then on the job must be done within ``settle_s``.

The spine. A job lives through anything that happens to a replica. It does not live through a shard
that is silent for ``limits.DEAD_S``: its updates are then given up and the job ends as failed,
which is a stated outcome and not what these plans look for. So faults that touch a shard or the
coordinator come one at a time with a rest behind each, and those of shards are short. The plan
``doom`` does the opposite, and demands that the job ends in words.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from pydownpour import limits
from pydownpour.errors import ConfigError

if TYPE_CHECKING:
    from pydownpour.sim.actor import Actor
    from pydownpour.sim.network import Host
    from pydownpour.sim.world import World

Targets: TypeAlias = Literal["replicas", "coordinator", "shards", "all"]

SPINE_FAULT_S_MAX: Final = limits.DEAD_S / 3
"""A shard that cannot be heard for longer might be called dead: a heartbeat's wait, another second
until a connection is tried again, and the time until the next look come on top."""
REST_S: Final = 2 * limits.HEARTBEAT_S
"""Between two faults of the spine: everybody's heartbeat gets through."""
SETTLE_S: Final = 90.0
"""The longest chain of waits after the last fault: a request's time limit, an acknowledgement's,
and the patience with roles that do not say goodbye; then the work that is left."""
JOIN_FACTOR: Final = 3
"""More replicas than that times those a world began with do not join it."""
DOOM_S: Final = 2 * limits.JOIN_PATIENCE_S
"""Everybody gives up on a dead coordinator within one patience, plus a request's time limit."""


@final
@dataclasses.dataclass(frozen=True)
class Dose:
    """One kind of fault and how often.

    Attributes:
        fault: A name of FAULTS.
        every_s: Mean virtual seconds between two strikes.
        for_s: What it broke stays broken for between so many seconds.
        targets: Whose hosts it strikes.
    """

    fault: str
    every_s: float
    for_s: tuple[float, float] = (0.0, 0.0)
    targets: Targets = "replicas"

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ConfigError(f"fault {self.fault!r} is unknown; known are {', '.join(FAULTS)}")
        if self.every_s <= 0 or not 0 <= self.for_s[0] <= self.for_s[1]:
            raise ConfigError(f"{self}: every_s must be positive and for_s a range")


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """What goes wrong in a run.

    Attributes:
        name: For people and the command line.
        doses: The faults.
        storm_s: Virtual seconds they last.
        settle_s: After the last one is mended, so many must not pass without progress.
        is_drawn: Each seed takes some of the doses, at rates of its own.
        skew_s: Each host's monotonic clock is off by up to so much.
        is_doom: The job cannot survive it and must end as failed, in words.
    """

    name: str = "calm"
    doses: tuple[Dose, ...] = ()
    storm_s: float = 4.0
    settle_s: float = SETTLE_S
    is_drawn: bool = False
    skew_s: float = 0.0
    is_doom: bool = False

    async def play(self, world: World) -> None:
        """Inject everything, heal, and demand progress."""
        await Storm(self, world).play()

    def clock_offset_s(self, rng: random.Random) -> float:
        """What one host's clock shows beyond the world's time."""
        return rng.uniform(0.0, self.skew_s) if self.skew_s else 0.0


@final
class Storm:
    """A plan at work in one world."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.rng = world.stream("faults")
        self.doses = drawn(plan.doses, self.rng) if plan.is_drawn else plan.doses
        self._links = {name: host.link for name, host in world.network.hosts.items()}
        self._spine_free_at = 0.0
        self._strikes: dict[asyncio.Task[None], None] = {}

    async def play(self) -> None:
        """Storm, heal, and fail the world if it is not done in time."""
        plan, world = self.plan, self.world
        doses = [asyncio.create_task(self._dose(dose)) for dose in self.doses]
        try:
            await asyncio.sleep(plan.storm_s)
        finally:
            ends = await self._stop([*doses, *self._strikes])
        self.heal()
        for end in ends:
            if isinstance(end, Exception):
                raise end
        await (asyncio.sleep(DOOM_S) if plan.is_doom else self._while_it_moves())
        within_s = DOOM_S if plan.is_doom else plan.settle_s
        world.fail(
            f"{'not done' if plan.is_doom else 'no progress'} within {within_s:g} virtual seconds "
            f"{'after the last fault was healed' if self.doses else ''}; "
            f"alive: {', '.join(world.processes.live) or 'nobody'}"
        )

    async def _while_it_moves(self) -> None:
        """As long as every ``settle_s`` brings something: a job may have a lot of work left."""
        before: object = None
        while (now := self.world.progress()) != before:
            before = now
            await asyncio.sleep(self.plan.settle_s)

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def _dose(self, dose: Dose) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / dose.every_s))
            strike = asyncio.create_task(self._strike(dose))
            self._strikes[strike] = None
            strike.add_done_callback(self._struck)

    def _struck(self, strike: asyncio.Task[None]) -> None:
        if not strike.cancelled() and strike.exception() is None:
            self._strikes.pop(strike)  # one that failed is kept for ``play`` to raise

    async def _strike(self, dose: Dose) -> None:
        hosts = self.targets(dose.targets)
        if hosts:
            target, seconds = self.rng.choice(hosts), self.rng.uniform(*dose.for_s)
            await FAULTS[dose.fault](self, target, seconds)

    # -- whom ------------------------------------------------------------------------------------

    def targets(self, which: Targets) -> list[Host]:
        """Hosts of processes that run, in the order they were added."""
        live = self.world.processes.live
        return [
            host
            for name, host in self.world.network.hosts.items()
            if name in live and which in ("all", role(name))
        ]

    def actor(self, host: Host) -> Actor | None:
        """The process that runs on a host."""
        return self.world.processes.live.get(host.name)

    def allowed(self, hosts: Iterable[Host], seconds: float) -> float | None:
        """How long a fault of these hosts may last; None: not now. See "The spine" above.

        A coordinator may be cut off for longer where it can tell that from a death, because all of
        several roles fall silent.
        """
        roles = {role(host.name) for host in hosts}
        if roles <= {"replicas"}:
            return seconds
        if not self.is_spine_quiet:
            return None
        if "shards" in roles or self.world.settings.shards < 2:
            seconds = min(seconds, SPINE_FAULT_S_MAX)
        self._spine_free_at = self.world.loop.now + seconds + REST_S
        return seconds

    @property
    def is_spine_quiet(self) -> bool:
        """No fault of the spine, and the last one is some time ago."""
        return self.world.loop.now >= self._spine_free_at

    def struck(self, fault: str, host: Host) -> None:
        """Count a fault that took place."""
        self.world.note_fault(fault, host.name)

    # -- and back --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Mend everything; start nothing."""
        world = self.world
        world.network.heal_all()
        world.network.fuse = 0
        for host in world.network.hosts.values():
            world.network.unclog(host)
            if host.disk is not None:
                host.disk.heal()
            self.restore(host)
        for actor in list(world.processes.alive):
            world.processes.resume(actor)
        world.trace.note(world.loop.now, "healed", "everything")

    def restore(self, host: Host) -> None:
        """As fast as it was."""
        host.slow = 1.0
        host.link = self._links.get(host.name, self.world.settings.link)


def role(name: str) -> Targets:
    """What a host is for, by its name."""
    if name.startswith("replica"):
        return "replicas"
    return "coordinator" if name == "coordinator" else "shards"


def drawn(doses: tuple[Dose, ...], rng: random.Random) -> tuple[Dose, ...]:
    """About half of the doses, at least one; each up to four times as often, rare and long."""
    some = [dose for dose in doses if rng.random() < 0.5] or [rng.choice(doses)]
    longer = rng.choice((1.0, 1.0, 2.0, 4.0))
    return tuple(
        dataclasses.replace(
            dose,
            every_s=dose.every_s * 4 ** rng.uniform(-1, 1),
            for_s=(dose.for_s[0], dose.for_s[1] * longer),
        )
        for dose in some
    )


# -- what can break: each breaks, waits and mends --------------------------------------------------


async def kill(storm: Storm, host: Host, seconds: float) -> None:
    """SIGKILL: the kernel resets the process's connections."""
    storm.struck("kill", host)
    storm.world.kill_replica(host.name)


async def power(storm: Storm, host: Host, seconds: float) -> None:
    """The host loses power: nobody is told."""
    storm.struck("power", host)
    storm.world.kill_replica(host.name, silently=True)


async def pause(storm: Storm, host: Host, seconds: float) -> None:
    """SIGSTOP and SIGCONT."""
    actor = storm.actor(host)
    allowed = storm.allowed([host], seconds)
    if actor is None or allowed is None:
        return
    storm.struck("pause", host)
    storm.world.processes.pause(actor)
    await asyncio.sleep(allowed)
    storm.world.processes.resume(actor)


async def zombie(storm: Storm, host: Host, seconds: float) -> None:
    """A replica stands still, is given up for a successor under its id, and wakes again."""
    actor = storm.actor(host)
    if actor is None:
        return
    storm.struck("zombie", host)
    storm.world.processes.pause(actor)
    await asyncio.sleep(seconds / 4)
    storm.world.supersede(host.name)
    await asyncio.sleep(seconds * 3 / 4)
    storm.world.processes.resume(actor)


async def slow(storm: Storm, host: Host, seconds: float) -> None:
    """It computes much slower, over a link that carries little."""
    allowed = storm.allowed([host], seconds)
    if allowed is None:
        return
    storm.struck("slow", host)
    host.slow = storm.rng.uniform(2.0, 10.0)
    host.link = dataclasses.replace(
        host.link,
        bytes_per_s=storm.rng.uniform(5e4, 1e6),
        latency_s=host.link.latency_s * storm.rng.uniform(1, 40),
    )
    await asyncio.sleep(allowed)
    storm.restore(host)


async def partition(storm: Storm, host: Host, seconds: float) -> None:
    """It is cut off from some of the others, both ways."""
    await _cut(storm, host, seconds, ways=2)


async def oneway(storm: Storm, host: Host, seconds: float) -> None:
    """The same, one way only."""
    await _cut(storm, host, seconds, ways=1)


async def _cut(storm: Storm, host: Host, seconds: float, *, ways: int) -> None:
    others = [
        other
        for other in storm.world.network.hosts.values()
        if other is not host and "replicas" != role(other.name) != role(host.name)
    ]
    if role(host.name) != "replicas":  # the spine talks to replicas, too
        others += storm.targets("replicas")
    some = [other for other in others if storm.rng.random() < 0.5] or [storm.rng.choice(others)]
    between_spine = [o for o in some if "replicas" not in (role(o.name), role(host.name))]
    allowed = storm.allowed([host, *between_spine] if between_spine else [], seconds)
    if allowed is None:
        return
    storm.struck("partition" if ways == 2 else "oneway", host)
    paths = []
    for other in some:
        both = [(host.name, other.name), (other.name, host.name)]
        paths += both if ways == 2 else [storm.rng.choice(both)]
    for path in paths:
        storm.world.network.cut_path(*path)
    await asyncio.sleep(allowed)
    for path in paths:
        storm.world.network.heal_path(*path)


async def reset(storm: Storm, host: Host, seconds: float) -> None:
    """Connections of the host break: one of them, or all."""
    actor = storm.actor(host)
    mine = list(actor.transports) if actor is not None else []
    if not mine or storm.allowed([host], 0.0) is None:
        return
    storm.struck("reset", host)
    for transport in mine if storm.rng.random() < 0.3 else [storm.rng.choice(mine)]:
        storm.world.network.reset_connection(transport.connection)


async def fuse(storm: Storm, host: Host, seconds: float) -> None:
    """The connection that carries one of the next messages breaks right behind it."""
    if not storm.is_spine_quiet:
        return
    storm.struck("fuse", host)
    storm.world.network.fuse = storm.rng.randrange(1, 8)


async def clog(storm: Storm, host: Host, seconds: float) -> None:
    """Nothing leaves or reaches the host for a while."""
    allowed = storm.allowed([host], seconds)
    if allowed is None:
        return
    storm.struck("clog", host)
    storm.world.network.clog(host, storm.world.loop.now + allowed)


async def swizzle(storm: Storm, host: Host, seconds: float) -> None:
    """Hosts are cut off from everybody one by one, and come back in another order."""
    hosts = storm.targets("replicas")
    some = [h for h in hosts if storm.rng.random() < 0.6] or [host]
    network = storm.world.network
    spine = [other for other in network.hosts if role(other) != "replicas"]
    for h in some:
        storm.struck("swizzle", h)
        for other in spine:
            network.cut_path(h.name, other)
            network.cut_path(other, h.name)
        await asyncio.sleep(storm.rng.uniform(0, seconds / len(some)))
    storm.rng.shuffle(some)
    for h in some:
        for other in spine:
            network.heal_path(h.name, other)
            network.heal_path(other, h.name)
        await asyncio.sleep(storm.rng.uniform(0, seconds / len(some)))


async def join(storm: Storm, host: Host, seconds: float) -> None:
    """One more replica, until there are three times as many as there were."""
    if len(storm.targets("replicas")) >= JOIN_FACTOR * storm.world.settings.replicas:
        return
    storm.struck("join", host)
    storm.world.add_replica()


async def leave(storm: Storm, host: Host, seconds: float) -> None:
    """A replica is asked to stop, says goodbye and is not started again."""
    staying = [h for h in storm.targets("replicas") if h.name not in storm.world.leaving]
    if host in staying and len(staying) > 1:
        storm.struck("leave", host)
        storm.world.stop_replica(host.name)


async def disk(storm: Storm, host: Host, seconds: float) -> None:
    """A disk is full, or what is written or synced fails at some rate, or it is slow."""
    if host.disk is None:
        return
    storm.struck("disk", host)
    ailment = storm.rng.choice(("full", "write", "sync", "slow"))
    if ailment == "full":
        host.disk.fill(storm.rng.randrange(2000))
    elif ailment == "slow":
        host.disk.slow(storm.rng.uniform(0.01, 1.0))
    else:
        host.disk.fail("write" if ailment == "write" else "sync", storm.rng.uniform(0.2, 1.0))
    await asyncio.sleep(seconds)
    host.disk.heal()


async def doom(storm: Storm, host: Host, seconds: float) -> None:
    """A shard or the coordinator dies for good: once is enough.

    Not before the job runs: a shard that is lost by then took no update with it, and the
    coordinator waits for another for as long as its operator likes.
    """
    coordinator = storm.world.coordinator
    if storm.world.faults or coordinator is None or coordinator.core.state == "waiting":
        return
    storm.struck("doom", host)
    actor = storm.actor(host)
    if actor is not None:
        storm.world.processes.kill(actor, silently=storm.rng.random() < 0.5)


FAULTS: Final[dict[str, Callable[[Storm, Host, float], Awaitable[None]]]] = {
    fault.__name__: fault
    for fault in (
        kill, power, pause, zombie, slow, partition, oneway, reset, fuse, clog, swizzle, join,
        leave, disk, doom,
    )
}  # fmt: skip


# -- the plans -------------------------------------------------------------------------------------

KILL = (Dose("kill", 1.5),)
POWER = (Dose("power", 1.5),)
PAUSE = (
    Dose("pause", 1.5, (0.2, 6.0)),
    Dose("pause", 4.0, (0.2, 5.0), "coordinator"),
    Dose("pause", 3.0, (0.1, 1.0), "shards"),
)
ZOMBIE = (Dose("zombie", 1.5, (0.5, 8.0)),)
SLOW = (Dose("slow", 1.0, (0.5, 4.0), "all"),)
PARTITION = (
    Dose("partition", 1.0, (0.2, 6.0)),
    Dose("partition", 3.0, (0.2, 6.0), "coordinator"),
    Dose("partition", 3.0, (0.2, 1.0), "shards"),
)
ONEWAY = tuple(dataclasses.replace(dose, fault="oneway") for dose in PARTITION)
RESET = (Dose("reset", 0.7, targets="all"), Dose("fuse", 0.3, targets="all"))
CLOG = (
    Dose("clog", 1.0, (0.1, 4.0)),
    Dose("clog", 3.0, (0.1, 5.0), "coordinator"),
    Dose("clog", 3.0, (0.1, 1.0), "shards"),
)
SWIZZLE = (Dose("swizzle", 1.5, (0.5, 6.0)), *CLOG[1:])
CHURN = (Dose("join", 1.5), Dose("leave", 2.5), Dose("kill", 3.0))
DISK = (Dose("disk", 0.7, (0.1, 3.0), "coordinator"),)
DAY_S: Final = 86_400.0

PLANS: Final[dict[str, Plan]] = {
    plan.name: plan
    for plan in (
        Plan("calm"),
        Plan("kill", KILL),
        Plan("power", POWER),
        Plan("pause", PAUSE),
        Plan("zombie", ZOMBIE),
        Plan("slow", SLOW),
        Plan("partition", PARTITION),
        Plan("oneway", ONEWAY),
        Plan("reset", RESET),
        Plan("clog", CLOG),
        Plan("skew", RESET, skew_s=DAY_S),
        Plan("swizzle", SWIZZLE),
        Plan("churn", CHURN),
        Plan("disk", DISK),
        Plan(
            "swarm",
            KILL + POWER + PAUSE + ZOMBIE + SLOW + PARTITION + ONEWAY + RESET + CLOG + SWIZZLE
            + CHURN + DISK,
            is_drawn=True,
            skew_s=10.0,
        ),
        Plan(
            "doom",
            (Dose("doom", 2.0, targets="shards"), Dose("doom", 3.0, targets="coordinator")),
            is_doom=True,
        ),
    )
}  # fmt: skip


def plan(name: str) -> Plan:
    """The plan of a name.

    Raises:
        ConfigError: there is none; names them all.
    """
    if name not in PLANS:
        raise ConfigError(f"no fault plan {name!r}; there are {', '.join(PLANS)}")
    return PLANS[name]
