"""What a policy is: a description, the two rules it makes, and the values they answer with.

A policy is frozen and owned by the server; replicas adopt it at join. It makes two machines that
are told everything and hold no socket, clock or chance of their own::

    policy.replica() -> ReplicaRule    after_step(clock, view) -> push? fetch? wait, and for what?
    policy.shard()   -> ShardRule      announce(push, view)    -> apply, accumulate, not yet, refuse
                                       due(view, now)          -> for whom the round waits

The arithmetic is named, never written, here: what is pushed and how what was fetched lands
(``pieces/payload.py``), and how a gradient is scaled (``pieces/scale.py``, evaluated by the core
where the staleness of each fragment is known).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, final

from pydownpour.codecs import Codec
from pydownpour.optimizers import Part
from pydownpour.policy.pieces.scale import AS_IT_IS, Scale

NAMED_MAX: Final = 8
"""Replicas that words about waiting name; of more they say how many there are."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ClusterView:
    """What one role knows of the others when a rule decides.

    Attributes:
        epoch: Of the shard map.
        live: Replicas that take part and have work, ascending: those an answer may wait for. A
            shard hears of them with heartbeats; a replica is not told (empty).
        clocks: Steps finished, by live replica; at a shard. A step counts there when the push that
            carries it has its answers, or when its replica says that none does.
        least_clock: The smallest of them. It only grows: whoever joins, or takes part again, begins
            there. At a replica it is in steps of its own: what the slowest has finished when it
            itself had finished so many; negative if that was before it joined.
        copy_clock: At a replica, in the same steps: what every live replica had finished of is in
            its copy when the next step begins, if that waits for nothing.
        deviation: At a replica, the mean over all parameters of how much gradients differ, as
            ``dp.FASGD`` at the shards has told it last; 0 without that.
        draws: At a replica, as many numbers as its rule wants (``ReplicaRule.draws``), each drawn
            for this step, at random and alike from [0, 1).
    """

    epoch: int = 0
    live: tuple[int, ...] = ()
    clocks: Mapping[int, int] = dataclasses.field(default_factory=dict)
    least_clock: int = 0
    copy_clock: int = 0
    deviation: float = 0.0
    draws: tuple[float, ...] = ()


@final
class PushInfo(NamedTuple):
    """What a shard knows of a push when it decides: all from its announcement.

    Attributes:
        replica: Who pushes.
        clock: Steps that replica has finished.
        samples: Samples the gradient was summed or averaged over.
        norm: L2 norm of the whole push over all shards, as the replica measured it.
        round: Rounds that were closed at this shard when the parameters were fetched from it that
            the gradient was computed from: the round it was made for. Where replicas reduce among
            themselves: the number of the group whose sum it is.
    """

    replica: int
    clock: int
    samples: int
    norm: float
    round: int = 0


# -- a replica's half ------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Actions:
    """What a replica does after a step.

    Attributes:
        push: Send what it has accrued.
        fetch: Get parameters.
        wait: Go on only when the push is answered and the fetch has landed; else both go on in the
            background.
        after_round: Each shard answers the fetch when it has closed the round that the parameters
            of this step were for, so that what comes holds the push.
        least_clock: Each shard answers the fetch when every live replica has finished so many
            steps, in this replica's own as the view's are. None: at once.
        again: Of a push: each shard takes the last gradient that it had of this replica once more,
            in place of what is accrued, which is dropped. That travels only where a shard has none
            (``ShardRule.repeats``), and to all shards while an earlier push has no answer.
    """

    push: bool
    fetch: bool
    wait: bool = False
    after_round: bool = False
    least_clock: int | None = None
    again: bool = False


class ReplicaRule(abc.ABC):
    """A policy's half at one replica.

    Attributes:
        payload: What is pushed; one of ``pieces.payload.PAYLOADS``.
        land: How a fetch lands; one of ``pieces.payload.LANDS``.
        in_flight: Pushes that may be without an answer when the next is sent, >= 1;
            ``limits.PUSHES_IN_FLIGHT_MAX`` and ``Limits.pushes_in_flight_size_max`` bound it, too.
        local_rate: Step of the replica's own copy between fetches, >= 0. None: the optimizer's lr
            if that is plain SGD, else 0.
        draws: How many random numbers it wants with each step: a rule has no chance of its own.
        keeps_state: Where a replica trains by itself, its optimizer's state goes on behind a push.
    """

    payload: str = "accrued"
    land: str = "replace"
    in_flight: int = 1
    local_rate: float | None = None
    draws: int = 0
    keeps_state: bool = True

    @property
    def trains(self) -> bool:
        """The replica trains its own copy, and pushes deltas of it.

        It steps by the job's optimizer, or its user's loop does; shards have one of the policy's
        (``Policy.outer``).
        """
        return self.payload == "delta"

    @abc.abstractmethod
    def after_step(self, clock: int, view: ClusterView) -> Actions:
        """What to do after step number ``clock`` (the first step is 0)."""

    def after_flush(self, clock: int, view: ClusterView) -> Actions:
        """What to fetch, and wait for, behind a delta whose push no step asked for.

        There was no more work, say. It is done before the replica goes on.
        """
        return Actions(push=True, fetch=self.trains)


# -- a shard's half --------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Apply:
    """Each record is an update of its own.

    Attributes:
        staleness_max: A record that is staler is not applied, and nobody is to blame: others have
            changed its fragment since its base. 0: only to the very version that the gradient was
            computed from, so of several pushes that name the same base each fragment takes one.
            None: however stale.
    """

    scale: Scale = AS_IT_IS
    staleness_max: int | None = None


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Accumulate:
    """Records are added, times their weight, to a round, which is one update when it is closed."""

    round: int
    weight: float = 1.0
    scale: Scale = AS_IT_IS


@final
@dataclasses.dataclass(frozen=True, slots=True)
class NotYet:
    """The push is turned down for now; the shard says when it may come.

    Attributes:
        whom: What it waits for, in words; ``{on}`` in them becomes the names of those in ``on``.
        on: Ids of the replicas it waits for, ascending. Each is live, by the view that was given:
            nobody waits for the dead. Empty: it waits for something else.
    """

    whom: str
    on: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if "{on}" in self.whom:
            object.__setattr__(self, "whom", self.whom.replace("{on}", replicas(self.on)))


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """The push is refused for good, and nobody's fault: why.

    The units whose gradients are in it are lent again, each under another lease: other pushes of
    theirs may be applied, and then their samples count twice.
    """

    why: str


Decision: TypeAlias = Apply | Accumulate | NotYet | Refuse


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """An answer is held, or the round stays open.

    Attributes:
        whom: What it waits for, in words, as of :class:`NotYet`.
        look_at: When to ask again if nothing happens before.
        on: Ids of the replicas it waits for, as of :class:`NotYet`.
    """

    whom: str
    look_at: float = math.inf
    on: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if "{on}" in self.whom:
            object.__setattr__(self, "whom", self.whom.replace("{on}", replicas(self.on)))


class ShardRule(abc.ABC):
    """A policy's half at one shard.

    Attributes:
        combines: It accumulates, so its shards need the memory for it.
        repeats: Its replicas may want their last gradient taken again, so its shards keep that of
            each: a copy of the parameters a replica, of ``Limits.kept_size_max`` bytes in all.
        mean: A round's sum is divided by the sum of its weights.
        round: Rounds closed: the number of the open one. Counted here, for rules that combine.
    """

    combines: ClassVar[bool] = False
    reduces: ClassVar[bool] = False
    """Replicas add up among themselves, and what comes is a group's sum: of an older group than
    any that was heard of nothing is taken."""
    repeats: bool = False
    mean: bool = True
    round: int = 0

    @abc.abstractmethod
    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        """What becomes of a push.

        It may be asked again for the same one (it comes in several runs, its connection broke, it
        was turned down and may come now) and changes nothing.
        """

    def arrived(self, push: PushInfo) -> None:  # noqa: B027  most rules need not know
        """Every record of a push has its answer here."""

    def due(self, view: ClusterView, now: float) -> Wait | None:
        """For whom the open round waits; None: it is to be closed, if anything is in it.

        Asked when anything has happened.
        """
        return Wait("nobody: no push is combined with others")

    def closed(self) -> None:
        """The round was closed, because it was due or because the job ends: the next is open."""
        self.round += 1

    def export(self) -> dict[str, Any]:
        """All of its state, as JSON has it."""
        return {"round": self.round}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`export` gave."""
        self.round = int(state["round"])


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """How replicas add up gradients among themselves, instead of at shards.

    Attributes:
        mean: The sum is divided by the sum of its weights.
        by_samples: A gradient weighs as many as its samples. False: each the same.
        first: Replicas that the first group has, at least.
        how: Who sends what to whom: a name in ``reductions.TOPOLOGIES``.
    """

    mean: bool = True
    by_samples: bool = False
    first: int = 1
    how: str = "tree"


# -- the whole -------------------------------------------------------------------------------------


class Policy(abc.ABC):
    """A frozen description of one published system. Subclasses are frozen dataclasses.

    Their settings are numbers, flags, short strings or None: they travel as JSON.

    Attributes:
        name: By which replicas and shards know it; that of its class in small letters if it says
            none.
    """

    name: ClassVar[str]

    @property
    def needs_deviation(self) -> bool:
        """It decides by ``ClusterView.deviation``: the optimizer must have a part that tells it."""
        return False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abc.abstractmethod
    def replica(self) -> ReplicaRule:
        """The half of one replica, as it begins."""

    @abc.abstractmethod
    def shard(self) -> ShardRule:
        """The half of one shard, as it begins."""

    def codec(self) -> Codec | None:
        """How its pushes travel, if that is a part of it; None: as the job says."""
        return None

    def reduction(self) -> Reduction | None:
        """How replicas reduce among themselves; None: they push what they have to shards."""
        return None

    def outer(self) -> Part | None:
        """What shards do with deltas, where replicas train with the job's optimizer.

        None: shards have the job's.
        """
        return None

    def may_lease(self, replica: int, members: tuple[int, ...], samples_done: int) -> str:
        """Why a replica may not have work now and for whom it waits; empty if it may.

        Args:
            replica: Who asks.
            members: All live replicas, ascending.
            samples_done: Samples completed by the job so far.
        """
        return ""

    def to_wire(self) -> dict[str, Any]:
        """JSON form: the settings plus the policy's name."""
        return {"name": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload]


def replicas(ids: Sequence[int]) -> str:
    """``replica 3``, or ``replicas 3, 5 and 9``; of many the first few and how many more."""
    if not ids:
        return "nobody"
    if len(ids) == 1:
        return f"replica {ids[0]}"
    shown = [str(one) for one in ids[:NAMED_MAX]]
    if len(ids) > NAMED_MAX:
        return f"replicas {', '.join(shown)} and {len(ids) - NAMED_MAX} more"
    return f"replicas {', '.join(shown[:-1])} and {shown[-1]}"
