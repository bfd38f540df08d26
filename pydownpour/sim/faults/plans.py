"""Fault plans as data: what goes wrong, how often, for how long, and whom it strikes.

A plan is a list of doses. A dose strikes at random moments, on the average every so many
virtual seconds, at a random target; what it broke it mends after a while. (A killed replica is not
mended: its supervisor starts it again, as in a real job.) After ``storm_s`` everything is healed
and nothing is restarted by hand; from then on the job must be done within ``settle_s``.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Final, Literal, TypeAlias, final, get_args

from pydownpour.errors import ConfigError

FaultName: TypeAlias = Literal[
    "kill", "power", "pause", "zombie", "slow", "partition", "oneway", "estrange", "reset",
    "forget", "fuse", "clog", "swizzle", "join", "leave", "disk", "hostile", "move", "switch",
    "doom",
]  # fmt: skip
"""What can break: ``kinds.py`` has a function for each."""
Targets: TypeAlias = Literal["replicas", "coordinator", "shards", "guests", "all"]
SETTLE_S: Final = 90.0
"""The longest chain of waits after the last fault: a request's time limit, an acknowledgement's,
and the patience with roles that do not say goodbye; then the work that is left."""


@final
@dataclasses.dataclass(frozen=True)
class Dose:
    """One kind of fault and how often.

    Attributes:
        fault: Its name.
        every_s: Mean virtual seconds between two strikes.
        for_s: What it broke stays broken for between so many seconds.
        targets: Whose hosts it strikes.
    """

    fault: FaultName
    every_s: float
    for_s: tuple[float, float] = (0.0, 0.0)
    targets: Targets = "replicas"

    def __post_init__(self) -> None:
        if self.fault not in get_args(FaultName):
            known = ", ".join(get_args(FaultName))
            raise ConfigError(f"fault {self.fault!r} is unknown; known are {known}")
        if self.every_s <= 0 or not 0 <= self.for_s[0] <= self.for_s[1]:
            raise ConfigError(f"{self}: every_s must be positive and for_s a range")


@final
@dataclasses.dataclass(frozen=True)
class FaultPlan:
    """What goes wrong in a run.

    Attributes:
        name: For people and the command line.
        doses: The faults.
        storm_s: Virtual seconds they last.
        settle_s: After the last one is mended, so many must not pass without progress.
        is_drawn: Each seed takes some of the doses, at rates of its own.
        apart: More of them, drawn and struck by a chance of their own: what came later to a drawn
            plan changes nothing of what its seeds drew before.
        skew_s: Each host's monotonic clock is off by up to so much.
        is_doom: The job cannot survive it and must end as failed, in words.
    """

    name: str = "calm"
    doses: tuple[Dose, ...] = ()
    storm_s: float = 4.0
    settle_s: float = SETTLE_S
    is_drawn: bool = False
    apart: tuple[Dose, ...] = ()
    skew_s: float = 0.0
    is_doom: bool = False

    def clock_offset_s(self, rng: random.Random) -> float:
        """What one host's clock shows beyond the world's time."""
        return rng.uniform(0.0, self.skew_s) if self.skew_s else 0.0


KILL = (Dose("kill", 1.5),)
POWER = (Dose("power", 1.5),)
PAUSE = (
    Dose("pause", 1.5, (0.2, 6.0)),
    Dose("pause", 4.0, (0.2, 5.0), "coordinator"),
    Dose("pause", 3.0, (0.1, 6.0), "shards"),
)
ZOMBIE = (Dose("zombie", 1.5, (0.5, 8.0)),)
SLOW = (Dose("slow", 1.0, (0.5, 4.0), "all"),)
LINKS = (
    Dose("slow", 0.5, (1.0, 8.0)),
    Dose("slow", 2.0, (0.5, 4.0), "all"),
    Dose("reset", 1.5, targets="all"),
    Dose("forget", 3.0),
)
PARTITION = (
    Dose("partition", 1.0, (0.2, 6.0)),
    Dose("partition", 3.0, (0.2, 6.0), "coordinator"),
    Dose("partition", 3.0, (0.2, 6.0), "shards"),
)
ONEWAY = tuple(dataclasses.replace(dose, fault="oneway") for dose in PARTITION)
RESET = (Dose("reset", 0.7, targets="all"), Dose("fuse", 0.3, targets="all"))
FORGET = (Dose("forget", 1.0, targets="all"),)
CLOG = (
    Dose("clog", 1.0, (0.1, 4.0)),
    Dose("clog", 3.0, (0.1, 5.0), "coordinator"),
    Dose("clog", 3.0, (0.1, 5.0), "shards"),
)
SWIZZLE = (Dose("swizzle", 1.5, (0.5, 6.0)), *CLOG[1:])
CHURN = (Dose("join", 1.5), Dose("leave", 2.5), Dose("kill", 3.0))
ESTRANGED = (Dose("estrange", 1.0, (3.5, 20.0), "shards"), Dose("estrange", 2.0, (3.5, 20.0)))
ASLEEP = (Dose("pause", 1.0, (25.0, 35.0), "shards"),)
DISK = (Dose("disk", 0.7, (0.1, 3.0), "coordinator"),)
MOVES = (
    Dose("move", 0.7, (0.0, 2.0), "shards"),
    Dose("reset", 1.5, targets="all"),
    Dose("pause", 4.0, (0.1, 4.0), "shards"),
    Dose("oneway", 4.0, (0.2, 4.0), "shards"),
)
SWITCHES = (Dose("switch", 0.4, targets="coordinator"),)
SWITCH = (
    *SWITCHES,
    Dose("kill", 3.0),
    Dose("reset", 1.5, targets="all"),
    Dose("pause", 4.0, (0.1, 4.0), "shards"),
    Dose("estrange", 3.0, (0.5, 6.0), "all"),
    Dose("move", 3.0, (0.0, 2.0), "shards"),
)
HOSTILE = (Dose("hostile", 0.25), Dose("reset", 2.0, targets="replicas"))
DAY_S: Final = 86_400.0

PLANS: Final[dict[str, FaultPlan]] = {
    plan.name: plan
    for plan in (
        FaultPlan("calm"),
        FaultPlan("kill", KILL),
        FaultPlan("power", POWER),
        FaultPlan("pause", PAUSE),
        FaultPlan("zombie", ZOMBIE),
        FaultPlan("slow", SLOW),
        FaultPlan("links", LINKS),
        FaultPlan("partition", PARTITION),
        FaultPlan("oneway", ONEWAY),
        FaultPlan("estranged", ESTRANGED, storm_s=22.0),
        FaultPlan("asleep", ASLEEP, storm_s=40.0),
        FaultPlan("reset", RESET),
        FaultPlan("forget", FORGET),
        FaultPlan("clog", CLOG),
        FaultPlan("skew", RESET, skew_s=DAY_S),
        FaultPlan("swizzle", SWIZZLE),
        FaultPlan("churn", CHURN),
        FaultPlan("disk", DISK),
        FaultPlan("hostile", HOSTILE),
        FaultPlan("moves", MOVES, storm_s=6.0),
        FaultPlan("switch", SWITCH, storm_s=6.0),
        FaultPlan(
            "swarm",
            KILL + POWER + PAUSE + ZOMBIE + SLOW + PARTITION + ONEWAY + ESTRANGED + RESET
            + FORGET + CLOG + SWIZZLE + CHURN + DISK,
            is_drawn=True,
            apart=MOVES[:1],
            skew_s=10.0,
        ),
        FaultPlan(
            "doom",
            (Dose("doom", 2.0, targets="shards"), Dose("doom", 3.0, targets="coordinator")),
            is_doom=True,
        ),
    )
}  # fmt: skip


def fault_plan(name: str) -> FaultPlan:
    """The plan of a name.

    Raises:
        ConfigError: there is none; names them all.
    """
    if name not in PLANS:
        raise ConfigError(f"no fault plan {name!r}; there are {', '.join(PLANS)}")
    return PLANS[name]
