"""The coordinator's decisions, all of them, without a socket, a clock or a file.

One object takes every message with the time it arrived and gives the answer, or raises the error
that the peer shall see. What happened goes to ``events``, in order, for whoever records it.

A shard that is only silent does not change the job: see ``silence``. Shards hear of a failure
last, when what they hold has been read, or cannot be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final

from pydownpour import limits
from pydownpour.coordinator import admission
from pydownpour.coordinator.declared import Declared, work_entry
from pydownpour.coordinator.detector import Change, Detector
from pydownpour.coordinator.groups import Groups
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.membership import Member, Membership
from pydownpour.coordinator.places import Place, Places, Successor
from pydownpour.coordinator.policies import Policies
from pydownpour.coordinator.progress import Progress
from pydownpour.coordinator.salvage import salvage_words
from pydownpour.coordinator.units import Lease
from pydownpour.coordinator.waits import WaitNews
from pydownpour.errors import ClosedError, ConfigError, DownpourError, Fenced, JobFailed, NotReady
from pydownpour.fields import clip
from pydownpour.layout import partition
from pydownpour.limits import DEFAULT, Limits
from pydownpour.policy.phases import phases_of
from pydownpour.states import State, Table
from pydownpour.wire.messages import (
    Complete,
    CompleteAnswer,
    Completion,
    EvaluationEntry,
    Group,
    Heartbeat,
    HeartbeatAnswer,
    JobStateName,
    Join,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    PolicyStatus,
    SetPolicy,
    ShardAssigned,
    ShardEnded,
    ShardHello,
    ShardMap,
    ShardStats,
    UnitFailure,
)
from pydownpour.wire.proof import Keeper

JOB: Final[Table[JobStateName]] = Table(
    "a job",
    "waiting",
    {
        "waiting": {
            "running": "every shard has its parameters, and a replica joins",
            "evaluating": "somebody stops it before it has begun",
            "failed": "a fault of the coordinator's own",
        },
        "running": {
            "evaluating": "the work is complete, it is stopped, or every replica has left",
            "failed": "a shard that may hold updates is given up, or a fault of our own",
        },
        "evaluating": {
            "done": "the final parameters are read, kept and evaluated",
            "failed": "they cannot be read, nothing was applied, or nobody could go on",
        },
        "done": {},
        "failed": {},
    },
)
"""The states of a job, what each may become, and when."""

Event: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Literal["done", "stopped", "failed"]

EVALUATION_ERROR_LEN_MAX: Final = 1024
"""Characters of a failed evaluation that are kept: a user's exception may say what it likes."""
IN_DOUBT: Final = (
    "the policy did not want a gradient of it, or nobody can say whether it was applied; nobody is "
    "to blame, and it is lent again under another lease"
)
SILENT_NAMED_MAX: Final = 3
"""Silent shards, and shards that move, that the reason names; of more silent ones it says how many
there are."""


@final
class JobState:
    """Membership, shard map, work ledger and state of one job.

    Args:
        declared: What the user declared.
        shards: How many shards its parameters are cut into.
        expected_replicas: How many the operator means to start; only for words, and for knowing
            when a job without declared work is over.
        tls: The job is reached by https: so must its shards be.
        now: The time the job starts.
        key: ``proof.KEY_SIZE`` random bytes: who has them can speak for every role.
        limits: What is waited for and kept at most.

    Raises:
        ConfigError: more shards than fragments, or impossible work.
    """

    def __init__(
        self,
        declared: Declared,
        *,
        shards: int,
        now: float,
        key: bytes,
        expected_replicas: int = 0,
        tls: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        self.declared, self.tls, self.limits = declared, tls, limits
        self.keeper = Keeper(key)
        """Of the secrets of shards."""
        self.replica_keeper = self.keeper.derive(admission.REPLICAS)
        self.partition = partition(declared.layout.len, shards, fragment_size=limits.fragment_size)
        self.work = work_entry(declared.data)
        self.ledger = Ledger(self.work, limits) if self.work is not None else None
        self.places = Places(self.partition, limits)
        self.policies = Policies(
            declared.policy, limits, admission.parts_of(declared), declared.codec
        )
        self.members = Membership(limits)
        self.groups = Groups(phases_of(declared.policy).reduction, self.replica_keeper, limits)
        self.detector = Detector(limits)
        self.progress = Progress(limits)
        self._wait_news = WaitNews(limits)
        self._state: State[JobStateName] = State(JOB)
        self.on_lease: Callable[[LeaseRequest, LeaseAnswer], object] = _unobserved
        """An observer: called with each request for units and its answer. Audits count on it."""
        self.on_complete: Callable[[Complete, CompleteAnswer], object] = _unobserved
        """The same for each report of finished units."""
        self.expected_replicas = expected_replicas
        self.started = now
        self._events: deque[Event] = deque()
        self._events_dropped = 0
        self._pass_ended_lately = False
        self._are_parameters_secured = False
        self._missing: list[Event] = []
        self._books_closed = False
        self._notes: dict[str, str] = {}
        self.outcome: Outcome = "done"
        """How a job ends whose work is over and whose final parameters are secured."""
        self.units_aside: list[dict[str, Any]] = []
        """The first ``limits.units_aside_told_max`` units that were set aside, for the report."""
        self._aside_in_a_row = 0
        self._why = ""
        self._is_concluded = False
        self._ticked: float | None = None
        self._replica_seen = now
        self.note_event(
            now,
            "start",
            job=declared.name,
            shards=shards,
            parameters=declared.layout.len,
            state=self.state,
        )

    # -- shards ----------------------------------------------------------------------------------

    def hello(self, message: ShardHello, now: float) -> ShardAssigned:
        """A shard offers itself.

        Raises:
            ConfigError: protocols do not meet, a URL that replicas cannot use or should not, or
                there is no place for it.
            NotReady: its place may become free.
            JobFailed, ClosedError: the job is over.
        """
        self.check_hello(message, now)
        if message.ticket:
            return self._offered(message, now)
        place, repeated = self.places.place(message, now, running=self.state == "running")
        if not repeated:
            self.note_event(
                now, "shard", index=place.index, url=place.url, host=place.host, pid=place.pid
            )
        return admission.assigned(
            self.declared, self.policies.entry, self.partition, place, self.keeper, self.limits
        )

    def check_hello(self, message: ShardHello, now: float) -> None:
        """What can be said about an offer before anybody calls its URL; raises as ``hello``."""
        admission.protocol(message.protocol_min, message.protocol_max, "shard")
        self.check_open()
        admission.check_policy(self.declared, message)
        admission.check_codec(self.declared, message, "shard")
        admission.check_url(message.url, tls=self.tls)
        if message.ticket:
            place, repeated = self.places.find_offered(message)
            if not repeated:
                admission.check_ticket(place, message.ticket, self.keeper)
        else:
            self.places.find(message, now, running=self.state == "running")

    def move(self, index: int) -> str:
        """Let a shard move to another process: the ticket that this process shows, once.

        It is no route's: who holds a job's token may train, and not take shards away.

        Raises:
            RemoteProtocolError: no such shard.
            JobFailed, ClosedError: the job is over.
        """
        self.check_open()
        place = self.places.get(index)
        place.is_to_move = True
        return admission.ticket(place, self.keeper)

    def _offered(self, message: ShardHello, now: float) -> ShardAssigned:
        """A process offers to take a shard over."""
        place, successor, repeated = self.places.offer(message, now)
        if not repeated:
            self.note_event(
                now, "hand-over", shard=place.index, to=successor.url, host=successor.host,
                pid=successor.pid,
            )  # fmt: skip
        return admission.successor(
            self.declared, self.policies.entry, self.partition, place, self.keeper, self.limits
        )

    def loading(self, index: int, secret: str, now: float) -> Place:
        """A shard asks for its first parameters: a sign of life, too.

        Raises:
            RemoteProtocolError: no such shard.
            Fenced: it has not said hello, or lost its place since.
            AuthError: it is not the shard that has this place.
        """
        place = self.places.get(index)
        if not place.is_taken:
            raise Fenced(f"shard {index} has no place: offer it (again) with POST /v1/shard")
        self.keeper.check("shard", index, place.incarnation, secret)
        place.seen_at = now
        return place

    def _shard_heartbeat(self, message: Heartbeat, now: float) -> HeartbeatAnswer:
        self.keeper.check("shard", message.id, message.incarnation, message.secret)
        before = self.places.get(message.id)
        successor = before.successor
        if successor is not None and message.incarnation == successor.incarnation:
            return self._successor_heartbeat(message, before, successor, now)
        if message.incarnation != before.incarnation:
            raise Fenced(f"another process took the place of shard {message.id}; start it anew")
        counted, silence = before.stats, before.silence
        place, became_ready = self.places.heard(message.id, message.shard, now)
        self.detector.seen(("shard", message.id), now)
        if became_ready:
            self.note_event(now, "shard ready", index=place.index, url=place.url)
        if silence is not None:
            silent_s = round(now - silence.since, 3)
            self.note_event(now, "alive", shard=place.index, was="silent", seconds=silent_s)
        self._note_refusals(counted, place.stats, now)
        self._note_waits(place, now)
        if place.stats.policy > max(counted.policy, 1):
            self.note_event(now, "policy obeyed", shard=place.index, version=place.stats.policy)
        place.told_end = self._is_concluded
        state = self.state if self._is_concluded or self.state != "failed" else "evaluating"
        is_behind = message.ids_version != self.members.forgotten.replicas
        ids = self.members.known_ids() if is_behind else None
        is_behind = message.live_version != self.members.live_version
        return HeartbeatAnswer(
            state=state,
            reason=self.reason(now),
            ids=ids,
            live=self.members.live_ids() if is_behind else None,
            shard_map=self._newer_map(message),
            policy=self.policies.newer(message.policy),
            serves=place.epoch,
            gives=admission.handover_secret(place, self.keeper),
        )

    def _successor_heartbeat(
        self, message: Heartbeat, place: Place, successor: Successor, now: float
    ) -> HeartbeatAnswer:
        """Who takes a place over lives; once it has everything, the place is its own."""
        successor.seen_at = now
        if message.shard is not None and message.shard.ready:
            self.places.take_over(place, message.shard, now)
            self.detector.seen(("shard", place.index), now)
            self.note_event(
                now, "moved", shard=place.index, to=place.url, epoch=place.epoch,
                lsn=place.stats.lsn,
            )  # fmt: skip
            return self._shard_heartbeat(message, now)
        return HeartbeatAnswer(state=self.state, reason=self.reason(now))

    def _newer_map(self, message: Heartbeat) -> ShardMap | None:
        """The shard map, for who has told that it knows an older one."""
        places = self.places
        return places.shard_map if message.epoch < places.epoch and places.complete else None

    def shard_answered(self, index: int, stats: ShardStats, now: float) -> None:
        """A shard answered the coordinator's own question."""
        place = self.places.get(index)
        place.ended = ""
        if place.silence is not None and stats.ready and stats.index == index:
            place.silence.answered(now)
            place.stats = stats

    def shard_did_not_answer(self, index: int, now: float, *, refused: bool) -> None:
        """It did not; ``refused``: its host says that nobody listens there."""
        place = self.places.get(index)
        silence = place.silence
        if place.ended and refused and place.is_taken:
            self.detector.forget(("shard", index))
            self._shard_lost(index, place.ended, now)
        elif silence is not None and refused:
            silence.refused(now)
        elif silence is not None:
            silence.unreachable()

    def shard_ended(self, message: ShardEnded) -> bool:
        """Whoever started a shard's process says that it has ended; False if it is another's.

        Words are no proof: once its host refuses a connection, too, it is dead without a wait.

        Raises:
            RemoteProtocolError: no such shard.
        """
        place = self.places.get(message.index)
        if place.pid != message.pid or not place.is_taken:
            return False
        place.ended = message.reason or "its process has ended"
        return True

    def _note_waits(self, place: Place, now: float) -> None:
        for event, fields in self._wait_news.heard(place.index, place.stats.waits, now):
            self.note_event(now, event, **fields)

    def _note_refusals(self, before: ShardStats, after: ShardStats, now: float) -> None:
        known = {one.replica: one.records for one in before.refused_by}
        for one in after.refused_by:
            if one.records > known.get(one.replica, 0):
                self.note_event(
                    now, "refusal", shard=after.index, replica=one.replica, records=one.records,
                    of=after.records_refused,
                )  # fmt: skip

    # -- replicas --------------------------------------------------------------------------------

    def join(self, message: Join, now: float) -> Joined:
        """A replica asks to take part.

        Raises:
            ConfigError: protocols do not meet, or a name, id or dtype that cannot be.
            LayoutMismatch: its parameters are not the job's.
            LimitExceeded: too many replicas.
            NotReady: shards are missing; the message says which.
            JobFailed, ClosedError: the job is over.
        """
        protocol = admission.protocol(message.protocol_min, message.protocol_max, "replica")
        self.check_open()
        admission.check_layout(self.declared, message)
        admission.check_dtype(self.declared, message)
        admission.check_codec(self.declared, message, "replica")
        if not self.places.complete:
            raise NotReady(f"the job waits for {self.places.waiting_for()}")
        joined = self.members.register(message, now)
        member = joined.member
        self.detector.seen(("replica", member.id), now)
        self._replica_seen = now
        if not joined.repeated:
            released = self._take_over(member) if joined.rejoined else []
            self._note_join(member, message, now, released, rejoined=joined.rejoined)
        if self.state == "waiting":
            self._become("running")
            self.note_event(now, "running")
        if self.ledger is None:
            self.progress.begin(now)
        return admission.joined(
            self.declared,
            self.policies.entry,
            self.partition,
            self.places.shard_map,
            self.work,
            member,
            protocol,
            self.keeper,
            self.limits,
        )

    def _take_over(self, member: Member) -> list[Lease]:
        """A member came back as a new incarnation: what the older ones held goes to others."""
        member.left_because = ""
        if self.ledger is None:
            return []
        return self.ledger.release(member.id, below=member.incarnation)

    def _note_join(
        self, member: Member, message: Join, now: float, released: list[Lease], *, rejoined: bool
    ) -> None:
        self.note_event(
            now,
            "rejoin" if rejoined else "join",
            replica=member.id,
            name=member.name,
            incarnation=member.incarnation,
            host=member.host,
            pid=member.pid,
            version=message.version,
            **_returned(released),
        )

    def _replica_heartbeat(self, message: Heartbeat, now: float) -> HeartbeatAnswer:
        member = self._hear(message.id, message.incarnation, message.secret, now)
        if message.replica is not None:
            more = message.replica.samples - member.current.samples
            member.current = message.replica
            if self.ledger is None and message.replica.loss is not None and more > 0:
                self.progress.curve.add(
                    now - self.started, self.samples_done, message.replica.loss, more
                )
        member.rss_peak_bytes = max(member.rss_peak_bytes, message.rss_peak_bytes)
        member.told_end = self.state_told in ("done", "failed")
        self._reduces(member, message, now)
        missed = self.places.silent
        for place, silence in missed:
            if place.index in message.answering:
                silence.heard_of(f"replica {member.id}", now)
        return HeartbeatAnswer(
            state=self.state_told,
            reason=self.reason(now),
            missed=[place.index for place, _ in missed[: limits.MISSED_TOLD_MAX]],
            shard_map=self._newer_map(message),
            policy=self.policies.newer(message.policy),
            group=self._newer_group(member, message),
        )

    def _reduces(self, member: Member, message: Heartbeat, now: float) -> None:
        """What a replica says of the others that it reduces with."""
        groups = self.groups
        groups.told(member, message.listens)
        before = len(groups.seats)
        broke = bool(message.broke) and groups.broke(message.broke, member.id, now)
        if groups.look(self.members) or broke:
            self.note_event(
                now, "group", number=groups.number, replicas=len(groups.seats), before=before,
                reason=groups.reason,
            )  # fmt: skip

    def _newer_group(self, member: Member, message: Heartbeat) -> Group | None:
        """The newest group, for who reduces with others and has told that it knows an older one."""
        is_behind = message.listens is not None and message.group < self.groups.number
        return self.groups.message(member) if is_behind else None

    def _hear(self, replica: int, incarnation: int, secret: str, now: float) -> Member:
        """A sign of life of a replica, by whatever message, once it has shown that it is one."""
        self.replica_keeper.check("replica", replica, incarnation, secret)
        known = self.members.get(replica)
        was = known.state if known is not None else "left"
        member = self.members.check(replica, incarnation, now)
        self.detector.seen(("replica", replica), now)
        self._replica_seen = now
        if self.ledger is not None:
            self.ledger.renew(replica, incarnation, now)
        if was in ("dead", "suspect"):
            self.note_event(now, "alive", replica=replica, was=was)
        return member

    def heartbeat(self, message: Heartbeat, now: float) -> HeartbeatAnswer:
        """A role lives and tells its counts; the answer tells it how the job stands."""
        try:
            if message.role == "shard":
                return self._shard_heartbeat(message, now)
            return self._replica_heartbeat(message, now)
        except Fenced as error:
            is_shard = message.role == "shard"
            return HeartbeatAnswer(
                state=self.state,
                reason=str(error),
                fenced=True,
                # To the process that a shard has moved from: where it is now.
                shard_map=self._newer_map(message) if is_shard else None,
                moved=is_shard and self.places.is_taken_from(message.id, message.incarnation),
            )

    def leave(self, message: Leave, now: float) -> HeartbeatAnswer:
        """A replica says goodbye.

        Raises:
            Fenced: it is not a member, or an older incarnation.
            AuthError: somebody else says so.
        """
        self.replica_keeper.check("replica", message.replica, message.incarnation, message.secret)
        known = self.members.get(message.replica)
        was_there = known is not None and known.state != "left"
        if message.units and known is not None and known.incarnation == message.incarnation:
            self._last_units(known, message, now)
        member = self.members.leave(message.replica, message.incarnation, message.stats)
        self.detector.forget(("replica", member.id))
        if was_there and message.failed:
            member.left_because = message.reason or "something went wrong there"
        if message.failure is not None:
            self._unit_failed(member, message.failure, now)
        if was_there:
            released = self.ledger.release(member.id) if self.ledger is not None else []
            self.note_event(
                now, "leave", replica=member.id, reason=message.reason, **_returned(released)
            )
        return HeartbeatAnswer(state=self.state_told, reason=self.reason(now))

    def _last_units(self, member: Member, message: Leave, now: float) -> None:
        """Units whose report was under way when their replica left: they need not be done again."""
        report = Complete(
            replica=message.replica, incarnation=message.incarnation, units=message.units
        )
        if self.ledger is not None and member.state != "left":
            self._completed(member, report, now)

    # -- work ------------------------------------------------------------------------------------

    def lease(self, message: LeaseRequest, now: float) -> LeaseAnswer:
        """A replica asks for units.

        Raises:
            Fenced: it is not a member, or an older incarnation.
            ConfigError: the job declares no work.
        """
        answer = self._lease(message, now)
        self.on_lease(message, answer)
        return answer

    def _lease(self, message: LeaseRequest, now: float) -> LeaseAnswer:
        member = self._hear(message.replica, message.incarnation, message.secret, now)
        answer = self._lend(message, now)
        # One that still holds units asks ahead.
        self.members.set_idle(member, not answer.units and message.held == [])
        return answer

    def _lend(self, message: LeaseRequest, now: float) -> LeaseAnswer:
        ledger = self._ledger()
        if self.is_over:
            return LeaseAnswer(
                done=True, failed=self.state_told == "failed", reason=clip(self._why)
            )
        wait_s = max(
            self.limits.lease_retry_s, self.members.present_count / self.limits.lease_asks_per_s_max
        )
        gate = self.policies.current.may_lease(
            message.replica, self.members.present, ledger.samples_done
        )
        if gate:
            return LeaseAnswer(wait_s=wait_s, reason=clip(gate))
        lending = ledger.lease(
            message.replica, message.incarnation, message.count, now, held=message.held
        )
        if lending.units:
            self.progress.begin(now)
            for backup in lending.backups:
                self.note_event(
                    now, "backup", replica=message.replica, pass_index=backup.pass_index,
                    unit=backup.unit, reason=ledger.overdue(now),
                )  # fmt: skip
            return LeaseAnswer(units=list(lending.units))
        return LeaseAnswer(
            done=lending.done, wait_s=0.0 if lending.done else wait_s, reason=lending.reason
        )

    def complete(self, message: Complete, now: float) -> CompleteAnswer:
        """A replica finished units: their gradients are applied, or it says why they are not.

        Once the final parameters are read nothing counts any more: it would be in the books and
        not in them.

        Raises:
            Fenced: it is not a member, or an older incarnation.
            ConfigError: the job declares no work.
            RemoteProtocolError: a unit it was never given.
        """
        member = self._hear(message.replica, message.incarnation, message.secret, now)
        return self._completed(member, message, now)

    def _completed(self, member: Member, message: Complete, now: float) -> CompleteAnswer:
        ledger = self._ledger()
        counted = [False] * len(message.units)
        if not self.books_closed:
            counted = [self._record(ledger, message.replica, unit, now) for unit in message.units]
            for failure in message.failures:
                self._unit_failed(member, failure, now)
            for lease in message.in_doubt:
                if (ended := ledger.give_back(member.id, lease)) is not None:
                    self.note_event(
                        now, "in doubt", replica=member.id, reason=IN_DOUBT, **_returned([ended])
                    )
            self._finish_if_complete(ledger, now)
            self._advance_policy(now)
        answer = CompleteAnswer(counted=counted)
        self.on_complete(message, answer)
        return answer

    def _finish_if_complete(self, ledger: Ledger, now: float) -> None:
        if ledger.complete and not self.is_over:
            count = ledger.units_aside
            but = f" but for {count} unit{'s' * (count > 1)} set aside" if count else ""
            self.finish(f"all {ledger.work.passes} passes are complete{but}", now)

    def _record(self, ledger: Ledger, replica: int, unit: Completion, now: float) -> bool:
        recorded = ledger.record(replica, unit.pass_index, unit.unit, unit.lease, now)
        if recorded.repeated:
            return recorded.counted
        if recorded.reason:
            self.note_event(
                now, "late completion", replica=replica, pass_index=unit.pass_index, unit=unit.unit,
                counted=recorded.counted, reason=recorded.reason,
            )  # fmt: skip
        if recorded.counted:
            self._aside_in_a_row = 0
        if recorded.counted and unit.loss is not None:
            start, stop = ledger.bounds(unit.unit)
            self.progress.curve.add(
                now - self.started, ledger.samples_done, unit.loss, stop - start
            )
        self._pass_ended(ledger, recorded.finished, now)
        return recorded.counted

    def _pass_ended(self, ledger: Ledger, pass_index: int | None, now: float) -> None:
        if pass_index is None:
            return
        self._pass_ended_lately = True
        self.note_event(
            now,
            "pass",
            pass_index=pass_index,
            passes=ledger.work.passes,
            samples=ledger.samples_done,
            loss=self.progress.curve.last,
        )

    def _unit_failed(self, member: Member, failure: UnitFailure, now: float) -> None:
        """A try at a unit failed: it gets another, or is set aside."""
        ledger = self.ledger
        failed = (
            ledger.fail(member.id, failure.pass_index, failure.unit, failure.lease)
            if ledger is not None
            else None
        )
        if ledger is None or failed is None:
            return
        start, stop = ledger.bounds(failure.unit)
        place = {
            "pass_index": failure.pass_index, "unit": failure.unit, "start": start, "stop": stop,
            "times": failed.times, "replica": member.id, "error": failure.words,
        }  # fmt: skip
        self.note_event(now, "unit failed", **place)
        if not failed.aside:
            return
        aside = {**place, "traceback": failure.traceback}
        self.note_event(now, "unit set aside", **aside)
        if len(self.units_aside) < self.limits.units_aside_told_max:
            self.units_aside.append(aside)
        self._aside_in_a_row += 1
        words = (
            f"unit {failure.unit} of pass {failure.pass_index + 1} (places {start} to "
            f"{stop - 1} of the pass's order) failed {failed.times} times, the last time at "
            f"replica {member.name or member.id}: {failure.words}"
        )
        if self.declared.on_error != "skip":
            self.finish(f'{words}; dp.Job(on_error="skip") would go on', now, outcome="failed")
        elif self._aside_in_a_row >= self.limits.units_aside_in_a_row_max:
            self.finish(
                f"{words}. That is the {self._aside_in_a_row}th unit set aside with none completed "
                "between them (units_aside_in_a_row_max): the code is broken, not a sample",
                now,
                outcome="failed",
            )
        else:
            count = ledger.units_aside
            self.note("set aside", f"{count} unit{'s' * (count > 1)} set aside, the last: {words}")
            self._pass_ended(ledger, failed.finished, now)
            self._finish_if_complete(ledger, now)

    def _ledger(self) -> Ledger:
        if self.ledger is None:
            raise ConfigError(
                "this job declares no work: give it data=dp.Work(len(x)), or do not ask for units"
            )
        return self.ledger

    # -- the policy ------------------------------------------------------------------------------

    def set_policy(self, message: SetPolicy, now: float) -> PolicyStatus:
        """Somebody wants another policy from now on.

        Raises:
            ConfigError: what is wrong with it; nothing changes.
            JobFailed, ClosedError: the job is over.
        """
        self.check_open()
        by = message.by or "a command"
        if self.policies.set(message.settings, self.samples_done, now - self.started, by):
            self._note_policy(now)
        return self.policies.status

    def _advance_policy(self, now: float) -> None:
        """The next of the job's phases, if it is its turn."""
        if not self.is_over and self.policies.advance(self.samples_done, now - self.started):
            self._note_policy(now)

    def _note_policy(self, now: float) -> None:
        status = self.policies.status
        self.note_event(
            now, "policy", version=status.entry.version, policy=status.entry.settings,
            samples=status.samples, by=status.by,
        )  # fmt: skip

    # -- time passes -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look for silent roles, ended leases and the end of the job. Call it regularly."""
        self._forgive_own_stall(now)
        verdict = self.detector.judge(now)
        if verdict.reason and "doubt" not in self._notes:
            self.note_event(now, "doubt", reason=verdict.reason)
        self.note("doubt", verdict.reason)
        for change in verdict.changes:
            if change.who[0] == "replica":
                self._replica_changed(change, now)
            else:
                self._shard_changed(change, now)
        for place, silence in self.places.silent:
            if why := silence.spent(now):
                self._shard_lost(place.index, why, now)
        for place, successor in self.places.abandoned(now):
            self.note_event(
                now, "hand-over given up", shard=place.index, to=successor.url,
                reason=f"not heard for {self.limits.handover_silence_s:g} s (handover_silence_s)",
            )  # fmt: skip
        for place in self.places.overdue(now):
            self._shard_lost(
                place.index, f"did not load within {self.limits.join_patience_s:g} s", now
            )
        self._forget_the_gone(now)
        if self.ledger is not None:
            for lease in self.ledger.expire(now):
                self.note_event(now, "lease expired", replica=lease.replica, **_returned([lease]))
            self.note("held", self.ledger.overdue(now))
        elif self.state == "running" and self._all_replicas_gone(now):
            self._finish_without_replicas(now)
        self._advance_policy(now)

    def _forget_the_gone(self, now: float) -> None:
        for member in self.members.forget(now):
            self.detector.forget(("replica", member.id))
            if self.ledger is not None:
                self.ledger.forget(member.id)
            self.note_event(now, "forgotten", replica=member.id, was=member.state)

    def _forgive_own_stall(self, now: float) -> None:
        gap = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        if gap <= self.limits.stall_s:
            return
        self.detector.forgive(gap, now)
        self.places.forgive(gap)
        if self.ledger is not None:
            self.ledger.extend(gap, now)
        self.note_event(now, "stall", seconds=round(gap, 3))

    def _replica_changed(self, change: Change, now: float) -> None:
        member = self.members.get(change.who[1])
        if member is None or change.state == "live":
            return
        self.members.change(member, change.state)
        released: list[Lease] = []
        if change.state == "dead" and self.ledger is not None:
            released = self.ledger.release(member.id)
        self.note_event(
            now, change.state, replica=member.id, reason=change.reason, **_returned(released)
        )

    def _shard_changed(self, change: Change, now: float) -> None:
        index = change.who[1]
        if change.state != "dead":
            self.note_event(now, change.state, shard=index, reason=change.reason)
        elif self.state == "waiting":
            self._shard_lost(index, change.reason, now)
        else:
            self.places.missed(index)
            self.note_event(now, "silent", shard=index, reason=change.reason)

    def _shard_lost(self, index: int, reason: str, now: float) -> None:
        self.note_event(now, "dead", shard=index, reason=reason)
        place = self.places.lost(index, holds_updates=self.state != "waiting")
        if place.state == "dead" and not self._are_parameters_secured:
            self.fail(
                f"{place.describe()} died: {reason}. Its parameters and their updates are gone "
                "with it; start the job anew",
                now,
            )

    def _all_replicas_gone(self, now: float) -> bool:
        """For a job without declared work: everybody left, and who failed had time to come back."""
        members = list(self.members)
        return (
            len(members) + self.members.forgotten.replicas >= max(1, self.expected_replicas)
            and any(member.state == "left" for member in members)
            and all(
                (member.state == "left" and not member.left_because)
                or (not member.is_present and now - member.seen_at >= self.limits.lease_s)
                for member in members
            )
        )

    def _finish_without_replicas(self, now: float) -> None:
        """The end of a job without declared work: done only if somebody has finished."""
        left = [member for member in self.members if member.state == "left"]
        if any(not member.left_because for member in left):
            self.finish("every replica has left", now)
        else:
            last = max(left, key=lambda member: member.seen_at)
            self.finish(
                f"every replica has failed, the last one, {last.describe()}: {last.left_because}",
                now,
                outcome="failed",
            )

    # -- the end ---------------------------------------------------------------------------------

    @property
    def state(self) -> JobStateName:
        """What the job is, of :data:`JOB`'s states."""
        return self._state.now

    def _become(self, state: JobStateName, why: str = "") -> None:
        """Change as :data:`JOB` allows, which raises otherwise; ``why`` is told to everybody."""
        self._state.become(state, f"job {self.declared.name}")
        if why:
            self._why = clip(why)

    @property
    def is_over(self) -> bool:
        """No more work is given out."""
        return self.state in ("evaluating", "done", "failed")

    @property
    def state_told(self) -> JobStateName:
        """To replicas: a job that will be failed is, though parameters are still to be written."""
        return "failed" if self.is_over and self.outcome == "failed" else self.state

    def finish(self, reason: str, now: float, *, outcome: Outcome = "done") -> None:
        """No more work: what remains is to read the parameters and evaluate them.

        ``outcome`` is what the job is then: done, stopped early because somebody wanted it, or
        failed because nobody could go on with it.
        """
        if self.is_over:
            return
        self.progress.end(now)
        self.outcome = outcome
        self._become("evaluating", reason)
        self.note_event(now, "end of work", reason=reason)

    def fail(self, reason: str, now: float) -> None:
        """The job cannot be finished."""
        if self.state in ("done", "failed"):
            return
        self.progress.end(now)
        self._become("failed", reason)
        self.note_event(now, "failure", reason=reason)

    def close_books(self) -> None:
        """The parameters are read from now on: what is completed later may not be in them."""
        self._books_closed = True

    @property
    def books_closed(self) -> bool:
        """No completion counts any more."""
        return self._books_closed

    def secure_parameters(self) -> None:
        """The final parameters are read: a shard that dies now loses nothing."""
        self._are_parameters_secured = True

    @property
    def are_parameters_secured(self) -> bool:
        """The final parameters are read."""
        return self._are_parameters_secured

    def salvaged(self, missing: list[Event]) -> None:
        """The job failed, and these parts of the parameters could not be kept (``salvage``)."""
        self._missing = missing
        if len(missing) < len(self.places):
            self.note("salvage", salvage_words(missing))

    @property
    def missing(self) -> Sequence[Event]:
        """Parts of the parameters that could not be kept."""
        return self._missing

    def last_counts(self, index: int, stats: ShardStats) -> None:
        """What a shard counted in all, as it says at the end."""
        self.places.get(index).stats = stats

    def judge(self) -> None:
        """The last counts are in: a job whose gradients nobody applied has not succeeded."""
        applied = max((place.stats.pushes for place in self.places), default=0)
        if self.state != "evaluating" or self.outcome != "done" or applied:
            return
        stats = [member.stats for member in self.members]
        steps = sum(s.steps for s in stats)
        dropped, refused, silent = (
            sum(s.gradients_dropped for s in stats),
            sum(s.pushes_refused for s in stats),
            sum(s.pushes_silent for s in stats),
        )
        self.outcome = "failed"
        self._why = clip(
            f"{self._why}, but no gradient was applied: {steps} steps were taken, {dropped} of "
            f"their gradients held NaN, infinite or too large values, {refused} pushes were refused"
            + (f", and of {silent} the codec had nothing to say" if silent else "")
            + ("" if steps else "; call replica.step (and await it in an async def)")
        )

    def conclude(self, now: float) -> None:
        """The final parameters are evaluated and stored."""
        if self.state == "evaluating":
            self._become("failed" if self.outcome == "failed" else "done")
        self._is_concluded = True
        self.note_event(now, "end", state=self.state, reason=self._why)

    def everyone_knows(self) -> bool:
        """Each role that lives has been told the end."""
        return all(m.told_end for m in self.members if m.is_present) and all(
            place.told_end for place in self.places if place.state in ("loading", "ready")
        )

    # -- words -----------------------------------------------------------------------------------

    @property
    def samples_done(self) -> int:
        """Samples completed, or computed where no work is declared."""
        if self.ledger is not None:
            return self.ledger.samples_done
        return min(sum(counts.samples for counts in self.members.counts), limits.COUNT_MAX)

    def reason(self, now: float) -> str:
        """How the job stands and for whom it waits, in one line."""
        if self.is_over:
            words = [self._why]
        elif not self.places.complete:
            words = [f"waiting for {self.places.waiting_for()}"]
        elif self.state == "waiting":
            expected = f" ({self.expected_replicas} expected)" if self.expected_replicas else ""
            words = [f"waiting for a replica to join{expected}"]
        else:
            words = [self._quiet(now)]
        silent = [
            f"{place.describe()} is {silence.describe(now)}"
            for place, silence in self.places.silent[:SILENT_NAMED_MAX]
        ]
        if len(self.places.silent) > SILENT_NAMED_MAX:
            silent.append(f"{len(self.places.silent) - SILENT_NAMED_MAX} more shards are silent")
        moving = [
            f"{place.describe()} moves to {to.describe()}" for place, to in self.places.moving
        ]
        told = [*words, *silent, *moving[:SILENT_NAMED_MAX], *self._notes.values()]
        return clip("; ".join(filter(None, told)))

    def _quiet(self, now: float) -> str:
        if self.members.present_count and now - self._replica_seen < self.limits.quiet_s:
            return ""
        left = (
            f"; {self.ledger.units_total - self.ledger.units_done} units are left"
            if self.ledger is not None
            else ""
        )
        return (
            f"no replica was heard for {now - self._replica_seen:.0f} s{left}; waiting for one "
            "to join"
        )

    def check_open(self) -> None:
        """Raise if the job is over.

        Raises:
            JobFailed, ClosedError: why it is.
        """
        error: type[DownpourError] = JobFailed if self.state_told == "failed" else ClosedError
        if self.is_over:
            raise error(f"job {self.declared.name} is over: {self._why}")

    def note_event(self, now: float, event: str, **fields: Any) -> None:
        """Put an event on record; when nobody takes them away fast enough, count it only."""
        if len(self._events) >= self.limits.events_queued_max:
            self._events_dropped += 1
            return
        self._events.append({"t": round(now - self.started, 3), "event": event, **fields})

    @property
    def events(self) -> Sequence[Event]:
        """Those that nobody has taken yet."""
        return self._events

    def take_events(self, now: float) -> list[Event]:
        """What happened since this was asked last; the last one may say how many are missing."""
        if self._events_dropped:
            dropped, self._events_dropped = self._events_dropped, 0
            self._events.append(
                {"t": round(now - self.started, 3), "event": "events dropped", "count": dropped}
            )
        taken = list(self._events)
        self._events.clear()
        return taken

    def take_pass_ended(self) -> bool:
        """Whether a pass has ended since this was asked last."""
        ended, self._pass_ended_lately = self._pass_ended_lately, False
        return ended

    @property
    def notes(self) -> Mapping[str, str]:
        """What an operator should know, by topic; shown while the job runs."""
        return self._notes

    def note(self, topic: str, words: str) -> None:
        """Words of one topic for who watches; "": there is no more to say of it."""
        if words:
            self._notes[topic] = words
        else:
            self._notes.pop(topic, None)

    def evaluated(self, entry: EvaluationEntry, now: float) -> None:
        """The parameters were evaluated."""
        self.progress.evaluated(entry)
        self.note_event(
            now, "evaluation", passes=entry.passes, samples=entry.samples, metrics=entry.metrics
        )

    def evaluation_failed(self, passes: int, words: str, now: float) -> None:
        """An evaluation, or a part of what it returned, is worth nothing."""
        text = clip(f"evaluation after pass {passes}: {words}", EVALUATION_ERROR_LEN_MAX)
        self.note("evaluation", text)
        self.progress.evaluation_errors.append(text)
        self.note_event(now, "evaluation failed", passes=passes, reason=words)


def _returned(leases: list[Lease]) -> Event:
    """The fields of an event that gave units back."""
    if not leases:
        return {}
    return {"units_returned": [[lease.pass_index, lease.unit] for lease in leases]}


def _unobserved(message: object, answer: object) -> None: ...
