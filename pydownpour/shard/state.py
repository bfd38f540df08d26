"""One shard: its store, its policy and its counts, without sockets.

The decision about a push is made here once, from its announcement; the core then receives, checks
and applies the fragments without asking again.
"""

from __future__ import annotations

import abc
import dataclasses
import heapq
import math
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias, final

import msgspec
import numpy as np

from pydownpour import _core, histogram, waits
from pydownpour.codecs import compiled
from pydownpour.errors import Fenced, LimitExceeded, WrongEpoch
from pydownpour.histogram import Histogram
from pydownpour.limits import (
    CONTROL_SIZE_MAX,
    COUNT_MAX,
    DEFAULT,
    HEADER_SIZE,
    PUSHES_OPEN_MAX,
    REFUSERS_TOLD_MAX,
    Limits,
)
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.policy import Accumulate, Apply, NotYet, PushInfo, Refuse, UsersPolicies
from pydownpour.shard.gate import AckGate
from pydownpour.shard.rounds import Rounds
from pydownpour.shard.switching import Ruling
from pydownpour.shard.turns import Turns
from pydownpour.states import State, Table
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, GroupMark
from pydownpour.wire.messages import (
    Contents,
    KnownIds,
    PolicyEntry,
    RefusedEntry,
    ShardAssigned,
    ShardEntry,
    ShardMap,
    ShardStats,
)
from pydownpour.wire.proof import Keeper

ShardState: TypeAlias = Literal["loading", "prepared", "serving", "giving", "gone"]

SHARD: Final[Table[ShardState]] = Table(
    "a shard's process",
    "loading",
    {
        "loading": {
            "serving": "it has the job's initial parameters",
            "prepared": "it has everything that the process has whose place it is to take",
        },
        "prepared": {"serving": "the coordinator says that the place is its own"},
        "serving": {"giving": "who is to take its place asks for what it has"},
        "giving": {
            "serving": "the other process was given up: the place stays its own",
            "gone": "the place is the other's",
        },
        "gone": {},
    },
)
"""What a process may become to its shard. It takes pushes only while it serves, and at most one
process of a shard does: one that gives goes on only if the other never will."""

NOT_SUMMED: Final = frozenset(
    ("index", "ready", "durability", "lsn", "refused_by", "streams", "staleness", "memory",
     "rss_bytes", "rss_peak_bytes", "waits", "clock_least", "clock_most", "clock_spread_max",
     "policy")
)  # fmt: skip
"""What of ShardStats is no total, or is added up in another way."""

_VERDICT_CODES = {
    "fenced": Code.FENCED,
    "unknown": Code.UNKNOWN,
    "elsewhere": Code.FRAGMENT,
    "window": Code.WINDOW,
}


class Stream(StreamProtocol):
    """A stream that keeps memory of the shard's."""

    @property
    @abc.abstractmethod
    def is_resting(self) -> bool:
        """It keeps none just now."""

    @abc.abstractmethod
    def rest(self) -> None:
        """Give it back, if nothing is under way."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A push that is not taken: the code and the reason in words.

    Attributes:
        push: Where the policy may take it later.
    """

    code: Code
    words: str
    push: PushInfo | None = None


@final
class Admitted(NamedTuple):
    """A push that is taken, and how; or one of which every record was taken before."""

    push: PushInfo
    decision: Apply | Accumulate
    is_done: bool = False


@final
class Refusals:
    """How many records were refused, and whose: names for a bounded number of replicas.

    Args:
        kept_max: That number.
    """

    def __init__(self, kept_max: int = DEFAULT.refusers_kept_max) -> None:
        self._kept_max = kept_max
        self.records = 0
        self._by_replica: dict[int, int] = {}

    def add(self, replica: int, records: int) -> None:
        """Records of one replica were refused."""
        self.records += records
        known = self._by_replica.get(replica)
        if known is not None or len(self._by_replica) < self._kept_max:
            self._by_replica[replica] = (known or 0) + records

    def most(self) -> list[RefusedEntry]:
        """Of whom the most were refused, the worst first."""
        worst = heapq.nsmallest(
            REFUSERS_TOLD_MAX, self._by_replica.items(), key=lambda one: (-one[1], one[0])
        )
        return [RefusedEntry(replica=replica, records=records) for replica, records in worst]


class Shard:
    """The state of one shard process.

    Args:
        assigned: What the coordinator said.
        policies: Gives the classes of the job's policies, if it was given the job file.
        gate: With the journal that records go to; None: they are in memory alone.
        limits: What is reserved, kept and done in a turn at most.

    Statistics:
        ``statistics()`` is a snapshot of all counters; totals since the process started.
    """

    def __init__(
        self,
        assigned: ShardAssigned,
        policies: UsersPolicies | None = None,
        gate: AckGate | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self.assigned, self.limits = assigned, limits
        self.gate = gate or AckGate()
        """Holds acknowledgements until what they name is durable."""
        self.gate.check(assigned.durability)
        self.keeper = Keeper.from_text(assigned.key)
        """Checks the secrets of replicas."""
        self.ids_version = 0
        """Of the ``KnownIds`` heard last."""
        entry = PolicyEntry(version=assigned.policy_version, settings=assigned.policy)
        ruling = Ruling.of(entry, policies)
        codec = compiled(assigned.codec)
        self.store = _core.Shard(
            len=assigned.len,
            stripe_len=assigned.stripe_len,
            fragment_len=assigned.fragment_len,
            first_fragment=assigned.start // assigned.fragment_len,
            optimizer=_core.Optimizer(assigned.optimizer),
            max_norm=assigned.max_norm,
            accumulates=ruling.rule.combines,
            codec=codec,
            journal=self.gate.journal,
        )
        self.turns = Turns(limits)
        self.rounds = Rounds(ruling, self.store, self.turns, policies)
        """What the policy says here, and who waits for it."""
        self.epoch = assigned.epoch
        """Under which it serves, or did."""
        self.map_epoch = 0
        """Of the newest shard map that it has heard of."""
        self.entry: ShardEntry | None = None
        """Where this shard is in that map."""
        self._state: State[ShardState] = State(SHARD)
        self._before = ShardStats()
        """What those have counted whose place it is now."""
        self.streams: dict[int, Stream] = {}
        """The one live stream of each replica."""
        self._reads: dict[int, Callable[[], None]] = {}
        """How to drop each replica's one answer over GET."""
        self.pushes = 0
        self.pushes_duplicate = 0
        self.pushes_refused = 0
        self.records_duplicate = self.records_superseded = 0
        self.refusals = Refusals(limits.refusers_kept_max)
        self.staleness = Histogram()
        self.fetches = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        longest = min(assigned.fragment_len, assigned.len)
        encoded = 0 if codec is None else codec.size_max(longest)
        self.payload_size_max = max(longest * 8, encoded, HEADER_SIZE)
        """Bytes of the longest fragment in the widest dtype, or encoded where that may be more:
        what a connection may have in flight.

        A small shard's are small, so that thousands of replicas may be connected to it.
        """
        self.reserved_bytes = 0
        most = assigned.max_norm
        self._norm_max = math.inf if most is None else float(np.float32(most))
        """Beyond it a push says of itself that it is too large; it was rounded to float32 on its
        way. Its fragments are measured whatever it says."""

    def check_epoch(self, epoch: int) -> None:
        """Whether a request of that epoch is ours to serve.

        Raises:
            WrongEpoch: its sender knows an older shard map than we, or a newer one.
        """
        if self.state != "serving":
            raise self._elsewhere()
        if epoch != self.epoch:
            raise WrongEpoch(
                f"shard {self.assigned.index} is served here under epoch {self.epoch}, the request "
                f"names {epoch}; look at the newest shard map",
                entry=self.entry,
            )

    # -- who has the place -----------------------------------------------------------------------

    @property
    def state(self) -> ShardState:
        """What this process is to its shard, of :data:`SHARD`'s states."""
        return self._state.now

    def become(self, state: ShardState) -> None:
        """Change as :data:`SHARD` allows.

        Raises:
            InternalError: it cannot become that.
        """
        self._state.become(state, f"this process of shard {self.assigned.index}")

    def serve(self, epoch: int) -> None:
        """The place is its own, from now on and under this epoch."""
        self.epoch = epoch
        self.become("serving")
        self.rounds.go_on()

    def give(self) -> None:
        """Nothing is taken or answered any more: whoever has the secret may copy what is here."""
        if self.state == "giving":
            return
        self.become("giving")
        self.rounds.stop()
        for stream in list(self.streams.values()):
            stream.failed(self._elsewhere())

    def check_serving(self) -> None:
        """Between two records: whether they may still be applied here.

        Raises:
            WrongEpoch: the shard moves, or has moved.
        """
        if self._state.now != "serving":
            raise self._elsewhere()

    def heard_map(self, shard_map: ShardMap) -> None:
        """Of a newer map: which process has this shard."""
        if shard_map.epoch > self.map_epoch:
            self.map_epoch = shard_map.epoch
            self.entry = shard_map.entries[self.assigned.index]

    @property
    def is_elsewhere(self) -> bool:
        """Another process has this shard, in a newer map."""
        return self.entry is not None and self.entry.epoch > self.epoch

    def goes_on_from(self, contents: Contents) -> None:
        """Count on where the process did whose place it takes over."""
        self._before, self.ids_version = contents.counts, contents.ids_version
        self.rounds.waits.goes_on_from(contents.counts.waits.count)

    def _elsewhere(self) -> WrongEpoch:
        where = f"has moved to {self.entry.url}" if self.state == "gone" and self.entry else "moves"
        return WrongEpoch(
            f"shard {self.assigned.index} {where}: its new process goes on with what is open",
            entry=self.entry if self.is_elsewhere else None,
        )

    def inlet(self) -> _core.ShardInlet:
        """A receiver of one connection's bytes; its memory is reserved before a byte is read.

        Raises:
            LimitExceeded: all connections together would hold more than ``in_flight_size_max``.
        """
        size = self.payload_size_max
        if self.reserved_bytes + size > self.limits.in_flight_size_max:
            for stream in self.streams.values():
                stream.rest()
        if self.reserved_bytes + size > self.limits.in_flight_size_max:
            raise LimitExceeded(
                f"shard {self.assigned.index} has {self.reserved_bytes} bytes reserved for "
                f"{self.reserved_bytes // size} connections, the limit is in_flight_size_max "
                f"({self.limits.in_flight_size_max}); try again, or use more shards"
            )
        inlet = _core.ShardInlet(
            self.store,
            payload_size_max=size,
            control_size_max=CONTROL_SIZE_MAX,
            ack_every=self.limits.ack_every_fragments,
        )
        self.reserved_bytes += size
        return inlet

    def release_inlet(self) -> None:
        """A connection is gone: its memory may be promised to another."""
        self.reserved_bytes -= self.payload_size_max

    def read_begins(self, replica: int, drop: Callable[[], None]) -> Callable[[], None]:
        """A replica reads over GET, once at a time: an older answer is half dead and goes.

        Returns:
            To be called when the answer has ended.
        """
        older = self._reads.get(replica)
        self._reads[replica] = drop
        if older is not None:
            older()

        def ended() -> None:
            if self._reads.get(replica) is drop:
                del self._reads[replica]

        return ended

    def admit(self, frame: _core.Frame) -> Admitted | Refused:
        """Decide about an announced push: how it is taken, or why not.

        A push that was applied before, wholly or in part, is admitted: the core recognises each
        duplicate record by its identity and answers as the first time.
        """
        notice = frames.push_notice(frame)
        verdict = self.store.admit(
            frame.replica,
            frame.incarnation,
            frame.seq,
            frame.fragment,
            frame.count,
            notice.first_open,
        )
        code = _VERDICT_CODES.get(verdict)
        if code is not None:
            return Refused(code, self._why(verdict, frame))
        if notice.norm > self._norm_max:
            return Refused(Code.NORM, f"replica {frame.replica}: {self._too_large(notice.norm)}")
        push = PushInfo(frame.replica, notice.clock, notice.samples, notice.norm, notice.round)
        if verdict == "done":
            return Admitted(push, Apply(), is_done=True)  # nothing of it will be
        decision = self.rounds.announced(push)
        if isinstance(decision, Refuse):
            return Refused(Code.POLICY, decision.why)
        if isinstance(decision, NotYet):
            return Refused(Code.NOT_YET, decision.whom, push)
        return Admitted(push, decision)

    def _too_large(self, norm: float) -> str:
        return (
            f"the gradient has an L2 norm of {norm:.6g}, above the job's max_norm of "
            f"{self.assigned.max_norm:g}; nothing was applied"
        )

    def welcome(self, replica: int, incarnation: int) -> None:
        """A replica that has shown who it is: its older lives are over here, from now on.

        Raises:
            Fenced: it is one of those itself, and cannot cut its successor off.
        """
        known = self.store.applied(replica)
        if known is not None and known[0] > incarnation:
            raise Fenced(_fenced_words(replica, incarnation, known[0]))
        if self.store.is_retired(replica):
            raise Fenced(_retired_words(replica))
        if known is None and self.store.replicas >= self.limits.replicas_max:
            raise LimitExceeded(
                f"shard {self.assigned.index} remembers {self.store.replicas} replicas, the limit "
                "is replicas_max; try again when the coordinator has forgotten some that are gone"
            )
        self.store.fence(replica, incarnation)
        self.rounds.joined(replica, anew=known is not None and known[0] < incarnation)

    def heard_group(self, mark: GroupMark) -> None:
        """Somebody who fetches says in which group of replicas it is; 0: in none.

        Raises:
            AuthError: the coordinator has not told it so.
        """
        if mark.number:
            self.keeper.check("group", mark.number, 0, mark.proof)
            self.rounds.heard_group(mark.number)

    def retire(self, ids: KnownIds) -> None:
        """Nobody else will push again: fence and forget them, and end what they have open here."""
        if ids.version == self.ids_version:
            return
        self.store.retire(ids.next, ids.ranges)
        self.ids_version = ids.version
        for replica, stream in list(self.streams.items()):
            if self.store.is_retired(replica):
                stream.failed(Fenced(_retired_words(replica)))

    def _why(self, verdict: str, frame: _core.Frame) -> str:
        who = f"replica {frame.replica} incarnation {frame.incarnation}"
        known = self.store.applied(frame.replica)
        if verdict == "fenced" and self.store.is_retired(frame.replica):
            return _retired_words(frame.replica)
        if verdict == "fenced":
            newer = known[0] if known else "?"
            return _fenced_words(frame.replica, frame.incarnation, newer)
        if verdict == "window":
            floor = known[1] if known else 0
            return (
                f"{who}: push {frame.seq} would be one more than the {PUSHES_OPEN_MAX} "
                f"above {floor} that a shard remembers (PUSHES_OPEN_MAX); settle older ones first"
            )
        if verdict == "elsewhere":
            first, count = self.store.first_fragment, self.store.fragments
            return (
                f"{who}: fragments {frame.fragment} to {frame.fragment + frame.count - 1} of push "
                f"{frame.seq} are not all of shard {self.assigned.index}, which has {first} to "
                f"{first + count - 1}"
            )
        return f"{who} is unknown here, but its push is not its first: this shard lost its state"

    def refusal_words(self, refusal: _core.Refusal, replica: int) -> str:
        """Why a record was refused, for the replica's user."""
        code = Code(refusal.code)
        where = f"replica {replica}, push {refusal.push}, fragment {refusal.fragment}"
        if code in (Code.NON_FINITE, Code.RESULT_NON_FINITE):
            first = refusal.fragment * self.assigned.fragment_len
            what = "the gradient" if code is Code.NON_FINITE else "the optimizer's result"
            return (
                f"{where}: {what} holds {refusal.count} NaN or infinite values, the first at "
                f"element {first + refusal.first_index} of the layout; nothing was applied"
            )
        if code is Code.NORM:
            return f"{where}: {self._too_large(refusal.norm)}"
        if code is Code.SUPERSEDED:
            return f"{where}: others have changed the fragment since its base; not applied"
        if code is Code.FULL:
            memory = self.store.memory()
            return (
                f"{where}: no block free to apply it to, or no room in the journal; "
                f"{memory['pinned']} bytes of old blocks are still read, "
                f"{self.store.kept} stripes by unsent answers to {len(self.streams)} "
                f"replicas and other readers{self._journal_words()}"
            )
        return f"{where}: refused ({code.name.lower()}); nothing was applied"

    def _journal_words(self) -> str:
        gate = self.gate
        if gate.journal is None:
            return ""
        return f"; the journal has LSN {gate.journal.last_lsn}, {gate.durable_lsn} is {gate.level}"

    def count_settled(self, settled: _core.Settled, push: PushTally, incarnation: int) -> None:
        """Book acknowledged records; ``push`` gathers one push's."""
        self.records_duplicate += settled.count - settled.applied
        push.applied += settled.applied
        push.staleness = max(push.staleness, settled.staleness)
        if settled.last and not (push.continues or push.is_postponed):
            if push.applied:
                self.pushes += 1
                self.staleness.add(push.staleness)
            elif not (push.refused or push.superseded):
                self.pushes_duplicate += 1
            # A rule is told of what it has decided about, and not what the one before it has.
            is_its_own = push.policy == self.rounds.policy.version
            came = push.applied or push.refused or push.superseded
            if push.info is not None and is_its_own and came:
                self.rounds.arrived(push.info)
            if push.info is not None:
                self.told(push.info.replica, incarnation, push.info.clock, push=settled.push)

    def told(self, replica: int, incarnation: int, clock: int, push: int = 0) -> None:
        """A replica has finished so many steps, and all of their pushes have their answers.

        ``push``: the last of these, if nobody says so but its own answers. Then those before it
        must have been applied; where one was refused, or comes late, the replica says it itself.
        """
        known = self.store.applied(replica)
        if known is None or (known[0] == incarnation and known[1] >= push):
            self.rounds.finished(replica, clock)

    def count_refused(self, replica: int, records: int, push: PushTally) -> None:
        """Book refused records; the push they belong to counts once."""
        self.refusals.add(replica, records)
        if push.refused == 0:
            self.pushes_refused += 1
        push.refused += records

    def count_superseded(self, records: int, push: PushTally) -> None:
        """Book records that were for a version which others have changed: nobody is to blame."""
        self.records_superseded += records
        push.superseded += records

    def statistics(self, *, rss_bytes: int = 0, rss_peak_bytes: int = 0) -> ShardStats:
        live = self.streams.values()
        own = ShardStats(
            index=self.assigned.index,
            ready=self.state != "loading",
            durability=self.gate.level,
            lsn=self.store.lsn,
            pushes=self.pushes,
            pushes_duplicate=self.pushes_duplicate,
            pushes_refused=self.pushes_refused,
            records_duplicate=self.records_duplicate,
            records_superseded=self.records_superseded,
            records_refused=self.refusals.records,
            refused_by=self.refusals.most(),
            rounds=self.rounds.closed,
            rounds_dropped=self.rounds.dropped,
            bases_gone=self.store.bases_gone,
            policy=self.rounds.policy.version,
            switches=self.rounds.switches,
            fetches=self.fetches,
            waits=self.rounds.waits.entry(self.rounds.now),
            clock_least=self.rounds.clocks.least,
            clock_most=self.rounds.clocks.most,
            clock_spread_max=self.rounds.clocks.spread_max,
            bytes_received=self.bytes_received + sum(s.bytes_received for s in live),
            bytes_sent=self.bytes_sent + sum(s.bytes_sent for s in live),
            streams=len(self.streams),
            staleness=self.staleness.entry(),
            memory=self.store.memory(),
            rss_bytes=rss_bytes,
            rss_peak_bytes=rss_peak_bytes,
        )
        return added(self._before, own)


def added(before: ShardStats, own: ShardStats) -> ShardStats:
    """What the processes of one place have counted in all; what is no count is the last one's."""
    sums = {
        name: min(getattr(before, name) + getattr(own, name), COUNT_MAX)
        for name in ShardStats.__struct_fields__
        if name not in NOT_SUMMED
    }
    refused: dict[int, int] = {}
    for one in (*before.refused_by, *own.refused_by):
        refused[one.replica] = refused.get(one.replica, 0) + one.records
    worst = heapq.nsmallest(REFUSERS_TOLD_MAX, refused.items(), key=lambda one: (-one[1], one[0]))
    return msgspec.structs.replace(
        own,
        **sums,
        staleness=histogram.total([before.staleness, own.staleness]),
        waits=waits.total(before.waits, own.waits),
        clock_spread_max=max(before.clock_spread_max, own.clock_spread_max),
        refused_by=[RefusedEntry(replica=who, records=records) for who, records in worst],
    )


def _retired_words(replica: int) -> str:
    return f"replica {replica} is gone for long, says the coordinator, and is fenced; join again"


def _fenced_words(replica: int, incarnation: int, newer: int | str) -> str:
    return (
        f"replica {replica} incarnation {incarnation} is fenced: incarnation {newer} took its place"
    )


@final
@dataclasses.dataclass(slots=True)
class PushTally:
    """What is known so far of the push a connection is in the middle of."""

    info: PushInfo | None = None
    """What its announcement said, if it was taken."""
    policy: int = 0
    """The version of the policy by which it was."""
    is_done: bool = False
    """Each record of the run under way was applied before: it is answered, and changes nothing."""
    continues: bool = False
    """Another run of the same push follows."""
    is_postponed: bool = False
    """Some of its records were turned down for now, and will come again."""
    applied: int = 0
    refused: int = 0
    superseded: int = 0
    staleness: int = 0
