"""What a training loop's calls do in the user's thread, step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, final

import numpy as np

from pydownpour import _core, config
from pydownpour.errors import ConfigError, GradientsRefused, NonFiniteGradient, ParameterError
from pydownpour.policy import Actions, ClusterView, Policy, check_known
from pydownpour.replica.accrual import Accrual, Accrued
from pydownpour.replica.encoded import EncodedPush, Encoder, Found
from pydownpour.replica.fetcher import Gate
from pydownpour.replica.guard import Guard
from pydownpour.replica.local_copy import LocalCopy
from pydownpour.replica.memory import PushMemory
from pydownpour.replica.portal import Portal, Work
from pydownpour.replica.pushes import Base, Portion, Push
from pydownpour.replica.session import Session
from pydownpour.replica.standing import Until
from pydownpour.replica.switching import Ruling
from pydownpour.replica.waited import Kind, Waited
from pydownpour.replica.work import PREFETCH_UNIT_S, Leases, Unit
from pydownpour.wire import frames
from pydownpour.wire.messages import Completion, PolicyEntry, ReplicaStats, UnitEntry

log = logging.getLogger(__name__)

T = TypeVar("T")
Steps: TypeAlias = Generator[Work, Any, T]
"""What one call does: what it yields runs on the session's loop and is waited for, by ``await`` or
by blocking, and its result is sent back."""

LARGEST: Final = {
    "float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308
}  # fmt: skip
"""The largest finite value of each dtype gradients may travel as."""
NOTHING: Final = Actions(push=False, fetch=False)
"""What a rule wants that waits for nothing."""
LOSSES_KEPT: Final = 50
"""Losses averaged for the progress display."""


@final
class Trainer:
    """The user's side of a replica: everything that happens in the user's thread.

    Order of one step (Dean et al. 2012, appendix): accrue the gradient, step locally, push what is
    accrued if it is time, land a finished fetch, start the next if it is time. Where the policy has
    replicas train by themselves: step locally, push how far that went if it is time, and so on.

    Args:
        session: Open.
        portal: The way to the session's loop.
        clock: Seconds, of the user's thread.
        policies: The classes of the job's policies that are none of ours.
    """

    def __init__(
        self,
        session: Session,
        portal: Portal,
        clock: Callable[[], float],
        policies: Sequence[type[Policy]] = (),
    ) -> None:
        joined = session.joined
        check_known(joined.policies_own, policies)
        self.session, self.portal, self.clock = session, portal, clock
        self.standing, self.fetcher, self.outbox = session.standing, session.fetcher, session.outbox
        self.leases = Leases(session.coordination, session.outbox, session.spawn)
        self.guard = Guard()
        self.work = joined.work
        self._policies = policies
        self.copy = LocalCopy(session.layout)
        self.accrual = Accrual(session.layout)
        self.encoder = Encoder(session.layout, joined)
        self.local: _core.LocalOptimizer | None = None
        """What the copy is trained with, if the policy has replicas do that and the job says how;
        its state stays when the policy changes."""
        self._rejoins: Gate | None = None
        """What a fetch waits for that is to land before the copy goes on: its delta was pushed."""
        self.steps = self.samples = self.units = self.pushes = 0
        self._obey(session.coordination.policy)
        self.switches = 0
        self._head_start = 0
        """Steps that shards counted for the slowest before this replica's first, or without it."""
        self.dropped = self._dropped_in_a_row = 0
        self._unsent = 0
        """Pushes that could not be sent."""
        self.overflowed = self.underflowed = 0
        """Values too large, and too small, for what gradients travel as."""
        self.waited = Waited(clock, [link.turned_down for link in session.links])
        self.unit: Unit | None = None
        self._unit_began = 0.0
        self._losses: list[float] = []
        self.losses_not_finite = 0
        self.land()
        session.progress = self.statistics

    @contextlib.contextmanager
    def reached_by(self, portal: Portal) -> Iterator[None]:
        """Meanwhile the user's code has another way to the session's loop.

        For who runs a plain function on a thread that the session knows nothing of.
        """
        before, self.portal = self.portal, portal
        try:
            yield
        finally:
            self.portal = before

    # -- the calls -------------------------------------------------------------------------------

    def step(
        self, gradients: Mapping[str, Any] | None, loss: float | None, samples: int | None
    ) -> Steps[None]:
        """Give one minibatch's gradient, or say that a step was made."""
        self.standing.check_training()
        self._check_refusals()
        self._check_who_steps(gradients is not None)
        arrays = None if gradients is None else self._taken(gradients)
        count = self._note_step(loss, samples)
        actions = self.ruling.rule.after_step(self.steps - 1, self._view())
        if arrays is None or self.ruling.rule.trains:
            push = yield from self._train(arrays, count, actions)
        else:
            push = yield from self._give(arrays, count, actions)
        if push is not None and actions.wait:
            yield from self._await("push", self.outbox.all_settled(push.index))
        elif push is not None and self.must_wait:
            yield from self._await("push", self.outbox.in_flight(self.ruling.in_flight_max))
        gate = self._gate(actions, push)
        if actions.push and (push is None or push.reason):
            # Nothing is pushed of this step, and others may wait for it.
            self.portal.post(self.fetcher.tell, self.told_clock)
        if actions.wait:
            if actions.fetch:
                yield from self.fetch(gate)
        else:
            self.land()
            if actions.fetch and self.fetcher.is_idle:
                self.copy.asked()
                self.fetcher.begin()
                self.portal.post(self.fetcher.start, gate)
        yield from self._go_over()

    def _await(self, kind: Kind, work: Work) -> Steps[Any]:
        """Wait for something, and count for how long."""
        self.waited.begins(kind)
        try:
            return (yield work)
        finally:
            self.waited.ended()

    def _gate(self, actions: Actions, push: Push | None) -> Gate:
        """What the next fetch waits for. A push that is in no round is not waited for."""
        rounds: tuple[int, ...] = ()
        if actions.after_round and push is not None and not push.reason:
            rounds = tuple(round + 1 for round in push.base.rounds)
        least = 0 if actions.least_clock is None else actions.least_clock + self._head_start
        apart = self.ruling.rule.land == "redo"
        return Gate(rounds, max(0, least), self.told_clock, apart, self.ruling.version)

    def _view(self) -> ClusterView:
        """What the rule is told of the others, in steps of this replica's own.

        The shards' clocks run on while a replica takes no part, or before it does. Nobody waits for
        it then: it goes on from where the slowest of the others is, at the shard that is furthest.
        """
        least, most = self.fetcher.least_clocks()
        self._head_start = max(self._head_start, most - self.steps)
        epoch = self.session.coordination.shard_map.epoch
        draws = tuple(self.session.rng.random() for _ in range(self.ruling.rule.draws))
        # What has been fetched lands before the next step.
        clock = self.fetcher.clock if self.fetcher.is_idle else self.copy.base.clock
        return ClusterView(
            epoch,
            least_clock=least - self._head_start,
            copy_clock=clock - self._head_start,
            deviation=self.fetcher.deviation() if draws else 0.0,
            draws=draws,
        )

    @property
    def told_clock(self) -> int:
        """Steps finished, as shards are told: this replica's own, and those before it came."""
        return self._head_start + self.steps

    def fetch(self, gate: Gate | None = None) -> Steps[None]:
        """As ``Replica.fetch``."""
        gate = gate or self._gate(NOTHING, None)
        kind: Kind = "round" if gate.rounds else "clock" if gate.least_clock else "fetch"
        self.copy.asked()
        yield from self._await(kind, self.fetcher.fetch(gate))
        self.land()

    def flush(self) -> Steps[None]:
        """Push what is accrued; wait until it is answered and finished units are reported."""
        push = yield from self._push()
        if push is not None and self.ruling.rule.trains:
            actions = self.ruling.rule.after_flush(self.steps, self._view())
            self._rejoins = self._gate(actions, push) if actions.fetch else None
        yield from self._await("push", self.outbox.all_settled(self.pushes))
        yield from self._await("work", self.leases.settle())

    def next_unit(self) -> Steps[Unit | None]:
        """Finish a unit, begin the next; None when the work is done."""
        if self.work is None:
            raise ConfigError("this job has no data=Work(...): replica.work() has nothing to lease")
        ahead = self._finish_unit()
        while True:
            lent = self.leases.next(accrued=not self.accrual.is_empty, ahead=ahead)
            entry = yield from self._await("work", lent)
            if isinstance(entry, UnitEntry):
                yield from self._go_over()
                if self.leases.waited or self._rejoins is not None:
                    # Its parameters are as old as the wait: after a warm start, all of it.
                    self.leases.waited = False
                    yield from self._rejoin()
                self._unit_began = self.clock()
                self.unit = Unit(entry, self.work)
                return self.unit
            yield from self.flush()
            if entry is None:
                return None

    # -- the policy ------------------------------------------------------------------------------

    def _obey(self, entry: PolicyEntry) -> None:
        """Make what depends on the policy; no push is open."""
        session = self.session
        self.ruling = Ruling(
            entry,
            session.joined,
            self.encoder.size,
            session.coordination.limits,
            lambda: self._policies,
        )
        self._pushes_before = self.pushes
        """Made under another rule."""
        rule = self.ruling.rule
        self.copy.begin(rule.land, is_pushed=rule.trains)
        if rule.trains and self.local is None and session.joined.optimizer:
            chain = _core.Optimizer(session.joined.optimizer)
            self.local = _core.LocalOptimizer(chain, len=session.layout.len)
        self.encoder.leaves_out = self.ruling.leaves_out
        self.memory = PushMemory(
            self.encoder, self.ruling.in_flight_max, session.coordination.limits
        )

    def _go_over(self) -> Steps[None]:
        """Between two steps: go over to the newest version of the policy, if it is not ours."""
        while (entry := self.session.coordination.policy).version > self.ruling.version:
            before = self.ruling.version
            yield from self._push()
            yield from self._await("push", self.outbox.all_settled(self.pushes))
            self._obey(entry)
            self._rejoins = None
            self.switches += 1
            log.info(
                "policy %s, version %d; before: version %d", entry.settings, entry.version, before
            )
            yield from self.fetch()

    # -- gradients -------------------------------------------------------------------------------

    def _taken(self, gradients: Mapping[str, Any]) -> _core.Arrays:
        """The user's arrays, as they are; copies of those that are our parameters."""
        arrays = self.encoder.take(gradients)
        if arrays.overlaps(self.copy.flat):
            arrays = self.encoder.take({name: np.array(g) for name, g in gradients.items()})
        return arrays

    def _note_step(self, loss: float | None, samples: int | None) -> int:
        """Count one more step; returns its samples."""
        unit = self.unit
        if samples is None:
            count = unit.batch_len if unit is not None else 1
        else:
            count = config.whole("step(): samples", samples, least=0)
        self._note_loss(loss, unit)
        self.steps += 1
        self.samples += count
        return count

    def _give(self, arrays: _core.Arrays, samples: int, actions: Actions) -> Steps[Push | None]:
        """Push or accrue one step's gradient, and step locally; or drop it.

        One that is pushed at once is encoded from the user's arrays, and nothing is accrued.
        """
        unit = self.unit
        lease = None if unit is None else unit.lease
        is_pushed, again = actions.push, actions.again
        at_once = is_pushed and self.accrual.is_empty
        if at_once:
            room, found = yield from self._encode(arrays, self.copy.base)
            bad, first = found.bad, found.first_bad
        else:
            bad, first, _ = arrays.check(self.encoder.fragment_len)
        if bad:
            if at_once:
                self.memory.keep(room, None)
            self._drop(bad, first)
            return (yield from self._push(again=again)) if is_pushed else None
        self._dropped_in_a_row = 0
        if unit is not None:
            unit.last_push = self.pushes + 1
        if not at_once:
            self.accrual.add(arrays, self.copy.base, samples, lease)
        if self.ruling.local_rate:
            self.copy.step(arrays, self.ruling.local_rate)
        if at_once:
            leases = () if lease is None else (lease,)
            accrued = Accrued(self.copy.base, samples, 1, leases)
            return self._post(arrays, accrued, room, found, again=again)
        return (yield from self._push(again=again)) if is_pushed else None

    def _check_who_steps(self, has_gradients: bool) -> None:
        """Who makes a step, the replica's optimizer or the user's loop, if either may.

        Raises:
            ConfigError: neither; what would.
        """
        name, trains = self.ruling.name, self.ruling.rule.trains
        if not has_gradients and not trains:
            raise ConfigError(
                f"step() without gradients, and policy {name} pushes gradients: give them, "
                "step(grads). Steps of a loop's own go with a policy whose replicas train by "
                "themselves, such as dp.ModelAveraging or dp.DiLoCo"
            )
        if has_gradients and trains and self.local is None:
            raise ConfigError(
                "step(grads), and the job has no optimizer=: write the step into the parameters "
                "and call step(), or give the job one, such as dp.SGD(lr=0.1)"
            )

    def _train(
        self, arrays: _core.Arrays | None, samples: int, actions: Actions
    ) -> Steps[Push | None]:
        """Step the replica's own copy, or take the step that was made; push if it is time."""
        bad, first, _ = (0, -1, 0.0) if arrays is None else arrays.check(self.encoder.fragment_len)
        is_finite = True
        if bad:
            self._drop(bad, first)
        else:
            if arrays is None:
                self.copy.trained()
            elif self.local is not None:
                is_finite = self.copy.train(arrays, self.local, samples)
            self._dropped_in_a_row = 0
            unit = self.unit
            if unit is not None:
                unit.last_push = self.pushes + 1
            self.accrual.note(self.copy.base, samples, None if unit is None else unit.lease)
        if not is_finite:
            words = "the step of its own optimizer did not stay finite; choose a smaller rate"
            return (yield from self._push(lost=words))
        if self._rejoins is not None:
            yield from self._rejoin()
        return (yield from self._push()) if actions.push else None

    def _rejoin(self) -> Steps[None]:
        """Fetch before the copy goes on; behind a delta that was pushed, as the rule said then."""
        gate, self._rejoins = self._rejoins, None
        yield from self.fetch(gate)

    def _drop(self, bad: int, first: int) -> None:
        """A NaN or Inf is never pushed: the step's gradient is dropped, counted and named."""
        self.dropped += 1
        self._dropped_in_a_row += 1
        name, index = self.encoder.place(first)
        words = (
            f"{self._who()}: the gradient holds {bad} NaN or infinite values, the first "
            f"in {name!r} at flat index {index}; dropped, nothing was pushed"
        )
        if self._dropped_in_a_row >= self.session.coordination.limits.nonfinite_steps_max:
            raise NonFiniteGradient(
                f"{words}. That was {self._dropped_in_a_row} steps in a row "
                "(nonfinite_steps_max): the parameters or the data are broken",
                array=name,
                index=index,
                count=bad,
            )
        if self.unit is not None:
            self.unit.failure = self.unit.failure or words
        log.warning(words)

    def _who(self) -> str:
        return f"replica {self.session.joined.replica}, step {self.steps - 1}"

    def _check_refusals(self) -> None:
        """Refusals that repeat are as loud as NaN in each gradient.

        Raises:
            GradientsRefused: too many pushes in a row were not applied.
        """
        count = self.outbox.refused_in_a_row
        if count >= self.session.coordination.limits.nonfinite_steps_max:
            raise GradientsRefused(
                f"{self.outbox.last_refusal}. That was push {count} in a row that was not applied "
                "(nonfinite_steps_max)",
                count=count,
            )

    def _note_loss(self, loss: float | None, unit: Unit | None) -> None:
        if loss is None:
            return
        try:
            value = float(loss)
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"step(loss=...) takes one number, not a {type(loss).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            self.losses_not_finite += 1
            return
        self._losses = [*self._losses[-(LOSSES_KEPT - 1) :], value]
        if unit is not None:
            unit.note_loss(value)

    # -- push and fetch --------------------------------------------------------------------------

    def _push(self, *, again: bool = False, lost: str = "") -> Steps[Push | None]:
        """Hand what is accrued to the outbox, or drop it for the last; None if there is nothing.

        ``lost``: why nothing of it may be applied.
        """
        if self.accrual.is_empty:
            return None
        trains, accrued = self.ruling.rule.trains, self.accrual.take()
        if trains:
            # It is counted from what landed last, whenever its first step was made.
            accrued = dataclasses.replace(accrued, base=self.copy.base)
        arrays = self.encoder.whole(self.copy.delta() if trains else self.accrual.sum)
        room, found = yield from self._encode(arrays, accrued.base)
        push = self._post(arrays, accrued, room, found, again=again, lost=lost)
        if trains:
            self.copy.carried()
            if self.local is not None and (push.reason or not self.ruling.rule.keeps_state):
                self.local.begin()
            if push.reason:
                # The copy holds what nobody has: back to what there is.
                yield from self.fetch()
        return push

    def _encode(self, arrays: _core.Arrays, base: Base) -> Steps[tuple[EncodedPush, Found]]:
        """Encode the next push, into memory that an earlier one may still be leaving."""
        for old in self.outbox.take_not_applied():
            self.encoder.not_applied(old.encoded, old.unused_fragments)
        room, before = self.memory.take()
        if before is not None and self.encoder.residual is not None:
            # What the next one takes of the residual is taken, or given back, as a whole.
            yield from self._await("push", self.outbox.all_settled(before.index))
            room, before = self.memory.fresh() if before.refused else room, None

        def encode(found: Found, first: int, count: int) -> None:
            found.add(
                self.encoder.encode(
                    arrays,
                    room,
                    push=self.pushes + 1,
                    base=base.versions,
                    first=first,
                    count=count,
                )
            )

        found = Found()
        if before is not None:
            try:
                yield from self._encode_behind(before, functools.partial(encode, found))
            except BaseException:
                self.memory.keep(room, before)
                raise
            if not before.refused:
                return room, found
            # A connection may still be reading what was refused.
            room, found = self.memory.fresh(), Found()
        if self.encoder.residual is not None:
            found.bad, found.first_bad, _ = arrays.check(self.encoder.fragment_len)
        if not found.bad:
            encode(found, 0, self.encoder.fragments)
        return room, found

    def _encode_behind(self, before: Push, encode: Callable[[int, int], None]) -> Steps[None]:
        """Encode each fragment when the push before, in the same memory, has its answer for it."""
        done: dict[Portion, int] = {}

        def more() -> bool:
            portions = before.portions
            return before.is_settled or any(
                portion.answered > done.get(portion, 0) for portion in portions
            )

        while sum(done.values()) < self.encoder.fragments and not before.refused:
            yield from self._await("push", Until(self.standing, more))
            for portion in before.portions:
                first, answered = done.get(portion, 0), portion.answered
                if answered > first and not before.refused:
                    encode(portion.first + first, answered - first)
                    done[portion] = answered

    def _post(
        self,
        arrays: _core.Arrays,
        accrued: Accrued,
        room: EncodedPush,
        found: Found,
        *,
        again: bool,
        lost: str = "",
    ) -> Push:
        self.underflowed += found.underflowed
        self.pushes += 1
        push = Push(
            index=self.pushes,
            encoded=room,
            base=accrued.base,
            clock=self.told_clock,
            samples=accrued.samples,
            norm=found.norm,
            leases=accrued.leases,
        )
        most = self.session.joined.max_norm
        if lost:
            push.reason = self._not_sent(accrued, f"{lost}; {self._what(accrued)} is given up")
            if not found.bad:  # else nothing was taken of what a codec keeps
                self.encoder.not_applied(room, range(room.fragments))
        elif found.bad or found.overflowed:
            push.reason = self._cannot_be_sent(arrays, accrued, found)
        elif most is not None and found.norm > most:
            push.reason = self._too_large(accrued, found, most)
            self.encoder.not_applied(room, range(room.fragments))
        # The last one is meant: the first push under a rule has none that its shards surely kept,
        # and of those that are open nobody could say which it will be.
        if again and self._pushes_before + 1 < self.pushes == self.outbox.settled + 1:
            joined, base = self.session.joined, accrued.base.versions.tolist()
            records = frames.again(
                replica=joined.replica,
                incarnation=joined.incarnation,
                push=push.index,
                versions=base,
            )
            push.again = memoryview(records)
        self.memory.keep(room, None if push.reason else push)
        self.portal.post(self.outbox.push, push)
        return push

    def _cannot_be_sent(self, arrays: _core.Arrays, accrued: Accrued, found: Found) -> str:
        """A sum of finite gradients that is not finite as it would travel: dropped, and why."""
        wire, count = self.encoder.words, found.bad + found.overflowed
        self.overflowed += count
        first = found.first_bad if found.bad else found.first_overflowed
        name, index = self.encoder.place(first)
        if found.bad and self.ruling.rule.trains:
            return self._not_sent(
                accrued,
                f"{self._what(accrued)} holds {found.bad} NaN or infinite values, the first in "
                f"{name!r} at flat index {index}; given up, nothing was pushed",
            )
        return self._not_sent(
            accrued,
            f"{count} values of {self._what(accrued)} are too large for the "
            f"{wire} they travel as, the first in {name!r} at flat index {index}: "
            f"{arrays.value(first):g}"
            + (f", the largest possible is {LARGEST[wire]:g}" if wire in LARGEST else "")
            + "; nothing was pushed. Choose "
            + self.encoder.wider
            + "a smaller learning rate",
        )

    def _too_large(self, accrued: Accrued, found: Found, most: float) -> str:
        """A push that the shards would refuse is not sent to them: dropped, and why."""
        return self._not_sent(
            accrued,
            f"{self._what(accrued)} has an L2 norm of {found.norm:.6g}, above the "
            f"job's max_norm of {most:g}; dropped, nothing was pushed. Scale or clip it before "
            "step(), or choose a larger max_norm",
        )

    def _what(self, accrued: Accrued) -> str:
        """For messages: what a push carries."""
        if self.ruling.rule.trains:
            return f"the delta of {accrued.steps} step{'s' if accrued.steps > 1 else ''}"
        many = f", accrued over {accrued.steps} steps," if accrued.steps > 1 else ""
        return f"the gradient{many}"

    def _not_sent(self, accrued: Accrued, why: str) -> str:
        self._unsent += 1
        self.dropped += accrued.steps
        words = f"{self._who()}: {why}"
        log.warning(words)
        return words

    @property
    def must_wait(self) -> bool:
        """True when the window of unacknowledged pushes is full."""
        return self.pushes - self.outbox.settled > self.ruling.in_flight_max

    def land(self) -> None:
        """Land a finished fetch, as the policy says, if there is one."""
        if self.fetcher.landing():
            self.copy.land(self.fetcher.staging, self.fetcher.base())

    # -- units and counts ------------------------------------------------------------------------

    def _finish_unit(self) -> bool:
        """Report the unit just worked through; whether the next but one should be leased, too."""
        unit, self.unit = self.unit, None
        if unit is None:
            return False
        self.units += 1
        completion = Completion(
            pass_index=unit.pass_index,
            unit=unit.unit,
            lease=unit.lease,
            samples=len(unit),
            loss=unit.loss,
            seconds=self.clock() - self._unit_began,
        )
        self.portal.post(self.leases.finish, unit.last_push, completion, unit.failure)
        return completion.seconds < PREFETCH_UNIT_S

    def statistics(self) -> ReplicaStats:
        """This side's counts; read from the session's thread, so only plain attributes."""
        losses = self._losses
        return ReplicaStats(
            policy=self.ruling.version,
            switches=self.switches,
            steps=self.steps,
            samples=self.samples,
            units=self.units,
            pushes_sent=self.pushes - self._unsent,
            gradients_dropped=self.dropped,
            values_overflowed=self.overflowed,
            values_underflowed=self.underflowed,
            loss=sum(loss / len(losses) for loss in losses) if losses else None,
            losses_not_finite=self.losses_not_finite,
            **self.waited.by_kind(),
            residual_bytes=0 if self.encoder.residual is None else self.encoder.residual.nbytes,
            state_bytes=0 if self.local is None else self.local.size,
        )
