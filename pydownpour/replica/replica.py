"""What the user's function gets: parameters to read, gradients to give, work to do.

:class:`Replica` is for ``async def``, :class:`BlockingReplica` for a plain ``def`` in a thread;
both are thin over :class:`Trainer`, which does the arithmetic and asks the policy.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, config, limits
from pydownpour.errors import (
    ConfigError,
    DownpourError,
    GradientsRefused,
    NonFiniteGradient,
    ParameterError,
    UnsupportedArray,
)
from pydownpour.layout import Flat, as_array, numpy_dtype, raw, supported_dtype
from pydownpour.optimizers import local_rate
from pydownpour.policy import ClusterView, UsersPolicy, from_wire
from pydownpour.replica.guard import Guard
from pydownpour.replica.parameters import Parameters
from pydownpour.replica.portal import Portal
from pydownpour.replica.pushes import Encoded, Push, encode
from pydownpour.replica.session import Session
from pydownpour.replica.work import PREFETCH_UNIT_S, Leases, Unit
from pydownpour.wire.messages import Completion, ReplicaStats, UnitEntry

log = logging.getLogger(__name__)

T = TypeVar("T")
Errand: TypeAlias = Generator[Coroutine[Any, Any, Any], Any, T]
"""Steps of the user's side, with what must be waited for on the session's loop yielded."""

PLAIN_DTYPES = {np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)}
"""What numpy converts to float32 by itself."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""The largest finite value of each dtype gradients may travel as."""
LOSSES_KEPT = 50
"""Losses averaged for the progress display."""


@final
class _Slot:
    """A gradient buffer over the whole layout, and a view of it for each array."""

    __slots__ = ("flat", "views")

    def __init__(self, flat: Flat, shapes: list[tuple[int, int, tuple[int, ...]]]) -> None:
        self.flat = flat
        self.views = [flat[start:stop].reshape(shape) for start, stop, shape in shapes]


@final
class Trainer:
    """The user's side of a replica: everything that happens in the user's thread.

    Order of one step (Dean et al. 2012, appendix): gather the gradient, accrue it, step locally,
    push what is accrued if it is time, land a finished fetch, start the next if it is time.
    """

    def __init__(
        self,
        session: Session,
        portal: Portal,
        leases: Leases,
        policy: UsersPolicy | None = None,
    ) -> None:
        joined = session.joined
        self.session, self.portal, self.leases = session, portal, leases
        self.guard = Guard()
        self.layout, self.work = session.layout, joined.work
        self.rule = from_wire(joined.policy, policy).replica()
        rate = self.rule.local_rate
        self._rate = local_rate(joined.optimizer) if rate is None else rate
        self.flat = self.layout.zeros()
        self._anchor = self.layout.zeros() if self.rule.land == "keep" else None
        """What the last fetch brought, where the copy's own progress since then is kept."""
        views = self.layout.views(self.flat)
        self._foreign = {
            spec.name: np.zeros(spec.shape, numpy_dtype(spec.dtype))
            for spec in self.layout.arrays
            if spec.dtype != "float32"
        }
        self._views = views
        self.parameters = Parameters({**views, **self._foreign})
        self._shapes = [(s.start, s.start + s.len, s.shape) for s in self.layout.arrays]
        self._array_shapes = [s.shape for s in self.layout.arrays]
        self._names = [s.name for s in self.layout.arrays]
        self._starts = [s.start for s in self.layout.arrays]
        self._slots: dict[int, _Slot] = {}
        self._slot = self._new_slot()
        self._accrued: _Slot | None = None
        self._accrued_norm = 0.0
        self._accrued_samples = 0
        self._accrued_steps = 0
        self._accrued_leases: list[int] = []
        """Units whose gradients are in what is accrued."""
        self._base: tuple[NDArray[np.uint64], ...] = ()
        self._accrued_base: tuple[NDArray[np.uint64], ...] = ()
        self._requested = session.fetched
        self._landed = -1
        size = max(1, self.layout.len * 4)
        fitting = limits.PUSHES_IN_FLIGHT_SIZE_MAX // size
        self.in_flight_max = max(1, min(self.rule.in_flight, limits.PUSHES_IN_FLIGHT_MAX, fitting))
        self.clock = self.samples = self.units = self.pushes = 0
        self.dropped = self._dropped_in_a_row = 0
        self._unsent = 0
        """Pushes that could not be sent."""
        self.overflowed = self.underflowed = 0
        """Values too large, and too small, for what gradients travel as."""
        self.wait_s = 0.0
        self.unit: Unit | None = None
        self._losses: list[float] = []
        self.losses_not_finite = 0
        self.land()

    # -- gradients -----------------------------------------------------------------------------

    def take(self, gradients: Mapping[str, Any], loss: float | None, samples: int | None) -> None:
        """Gather, check and accrue one step's gradient, and step locally."""
        unit = self.unit
        if samples is None:
            count = unit.batch_len if unit is not None else 1
        else:
            count = config.whole("step(): samples", samples, least=0)
        self._note_loss(loss, unit)
        slot = self._slot
        self._gather(gradients, slot)
        bad, first, squares = _core.check(raw(slot.flat), 1)
        self.clock += 1
        self.samples += count
        if bad:
            self._drop(bad, first)
            return
        self._dropped_in_a_row = 0
        if self._accrued is None:
            self._accrued, self._slot = slot, self._free_slot()
            self._accrued_norm = squares**0.5
            self._accrued_base = self._base
        else:
            _core.accumulate(self._accrued.flat, slot.flat, 1, overwrite=False)
        self._accrued_steps += 1
        self._accrued_samples += count
        if unit is not None and unit.last_push != self.pushes + 1:
            unit.last_push = self.pushes + 1
            self._accrued_leases.append(unit.lease)
        if self._rate:
            _core.step(self.flat, slot.flat, 1, self._rate)
            self._refresh_foreign()

    def _gather(self, gradients: Mapping[str, Any], slot: _Slot) -> None:
        """Lay the gradient's arrays end to end in the slot; None stands for zeros."""
        if type(gradients) is not dict and not isinstance(gradients, Mapping):
            raise UnsupportedArray(
                f"step() takes a mapping from names to gradients, not a {type(gradients).__name__}"
            )
        if len(gradients) != len(self._names):
            self.layout.check_names(gradients)
        try:
            arrays = [gradients[name] for name in self._names]
        except KeyError:
            self.layout.check_names(gradients)
            raise
        kinds = set(map(type, arrays))
        if kinds != {np.ndarray}:
            arrays = [
                None if value is None else as_array(name, value, "gradient")
                for name, value in zip(self._names, arrays, strict=True)
            ]
            kinds = set(map(type, arrays))
        if (
            kinds == {np.ndarray}
            and {array.dtype for array in arrays} <= PLAIN_DTYPES
            and [array.shape for array in arrays] == self._array_shapes
        ):
            # One call for all of them: with thousands of arrays, a statement each costs more than
            # copying their elements.
            np.concatenate(arrays, axis=None, out=slot.flat, casting="same_kind")
            return
        for spec, array, view in zip(self.layout.arrays, arrays, slot.views, strict=True):
            if array is None:
                view[...] = 0
                continue
            if array.dtype.kind != "f":
                supported_dtype(spec.name, array, "gradient")
            if array.shape != view.shape:
                raise self.layout.shape_error(spec, array.shape)
            view[...] = array

    def _drop(self, count: int, first: int) -> None:
        """A NaN or Inf is never pushed: the step's gradient is dropped, counted and named."""
        self.dropped += 1
        self._dropped_in_a_row += 1
        name, index = self._place(first)
        words = (
            f"{self._who()}: the gradient holds {count} NaN or infinite values, the first in "
            f"{name!r} at flat index {index}; dropped, nothing was pushed"
        )
        if self._dropped_in_a_row >= limits.NONFINITE_STEPS_MAX:
            raise NonFiniteGradient(
                f"{words}. That was {self._dropped_in_a_row} steps in a row "
                "(NONFINITE_STEPS_MAX): the parameters or the data are broken",
                array=name,
                index=index,
                count=count,
            )
        if self.unit is not None:
            self.unit.failure = self.unit.failure or words
        log.warning(words)

    def _who(self) -> str:
        return f"replica {self.session.joined.replica}, step {self.clock - 1}"

    def _place(self, element: int) -> tuple[str, int]:
        """An element of the layout as (array, flat index in it)."""
        spec = self.layout.arrays[bisect.bisect_right(self._starts, element) - 1]
        return spec.name, element - spec.start

    def check_refusals(self) -> None:
        """Refusals that repeat are as loud as NaN in each gradient.

        Raises:
            GradientsRefused: too many pushes in a row were not applied.
        """
        count = self.session.refused_in_a_row
        if count >= limits.NONFINITE_STEPS_MAX:
            raise GradientsRefused(
                f"{self.session.last_refusal}. That was push {count} in a row that was not applied "
                "(NONFINITE_STEPS_MAX)",
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

    # -- push and fetch ------------------------------------------------------------------------

    @property
    def accrued(self) -> bool:
        """Gradients that no push carries yet."""
        return self._accrued is not None

    def make_push(self) -> Push | None:
        """Turn what is accrued into a push, or None if there is nothing."""
        slot, self._accrued = self._accrued, None
        if slot is None:
            return None
        wire = self.session.joined.wire_dtype
        if self._accrued_steps == 1 and wire == "float32":
            encoded = Encoded(raw(slot.flat), 0, -1, self._accrued_norm)  # looked at by its step
        else:
            encoded = encode(slot.flat, wire)
        self.underflowed += encoded.underflowed
        self.pushes += 1
        push = Push(
            index=self.pushes,
            values=slot.flat,
            data=encoded.data,
            base=self._accrued_base,
            clock=self.clock,
            samples=self._accrued_samples,
            norm=encoded.norm,
            leases=tuple(self._accrued_leases),
        )
        if encoded.bad:
            push.reason = self._cannot_be_sent(slot.flat, encoded, wire)
        self._accrued_samples = self._accrued_steps = 0
        self._accrued_leases.clear()
        return push

    def _cannot_be_sent(self, values: Flat, encoded: Encoded, wire: str) -> str:
        """A sum of finite gradients that is not finite as it would travel: dropped, and why."""
        self._unsent += 1
        self.dropped += self._accrued_steps
        self.overflowed += encoded.bad
        name, index = self._place(encoded.first)
        steps = self._accrued_steps
        accrued = f", accrued over {steps} steps," if steps > 1 else ""
        words = (
            f"{self._who()}: {encoded.bad} values of the gradient{accrued} are too large for the "
            f"{wire} they travel as, the first in {name!r} at flat index {index}: "
            f"{values[encoded.first]:g}, the largest possible is {LARGEST[wire]:g}; nothing was "
            "pushed. Choose "
            + ("" if wire == "float32" else "wire_dtype='float32' or 'bfloat16' for the job, or ")
            + "a smaller learning rate"
        )
        log.warning(words)
        return words

    @property
    def must_wait(self) -> bool:
        """True when the window of unacknowledged pushes is full."""
        return self.pushes - self.session.settled > self.in_flight_max

    def land(self) -> bool:
        """Land a finished fetch, as the policy says; True if there was one.

        Never called while a fetch is on its way: staging is whole here.
        """
        if self._requested != self.session.fetched or self._landed == self.session.fetched:
            return False
        if self._anchor is None:
            np.copyto(self.flat, self.session.staging)
        else:
            np.subtract(self.session.staging, self._anchor, out=self._anchor)
            np.add(self.flat, self._anchor, out=self.flat)
            np.copyto(self._anchor, self.session.staging)
        self._refresh_foreign()
        self._base = self.session.versions()
        self._landed = self.session.fetched
        return True

    def land_newest(self) -> None:
        """Land after a fetch that was waited for: none is on its way."""
        self._requested = self.session.fetched
        self.land()

    def may_fetch(self) -> bool:
        """True when no fetch is on its way."""
        return self._requested == self.session.fetched

    def begin_fetch(self) -> None:
        """Note that a fetch is on its way."""
        self._requested = self.session.fetched + 1

    def _refresh_foreign(self) -> None:
        for name, array in self._foreign.items():
            array[...] = self._views[name]

    # -- units -----------------------------------------------------------------------------------

    def finish_unit(self, seconds: float) -> tuple[int, Completion, str] | None:
        """The unit just worked through, as :meth:`Leases.finish` takes it."""
        unit, self.unit = self.unit, None
        if unit is None:
            return None
        self.units += 1
        completion = Completion(
            pass_index=unit.pass_index,
            unit=unit.unit,
            lease=unit.lease,
            samples=len(unit),
            loss=unit.loss,
            seconds=seconds,
        )
        return unit.last_push, completion, unit.failure

    def begin_unit(self, entry: UnitEntry) -> Unit:
        """The unit the loop works through next."""
        assert self.work is not None
        self.unit = Unit(entry, self.work)
        return self.unit

    def statistics(self) -> ReplicaStats:
        """This side's counts; read from the session's thread, so only plain attributes."""
        losses = self._losses
        return ReplicaStats(
            steps=self.clock,
            samples=self.samples,
            units=self.units,
            pushes_sent=self.pushes - self._unsent,
            gradients_dropped=self.dropped,
            values_overflowed=self.overflowed,
            values_underflowed=self.underflowed,
            loss=sum(loss / len(losses) for loss in losses) if losses else None,
            losses_not_finite=self.losses_not_finite,
            wait_s=self.wait_s,
        )

    # -- buffers ---------------------------------------------------------------------------------

    def _new_slot(self) -> _Slot:
        slot = _Slot(self.layout.zeros(), self._shapes)
        self._slots[id(slot.flat)] = slot
        return slot

    def _free_slot(self) -> _Slot:
        """A buffer of a settled push, or a new one."""
        released = self.session.released
        return self._slots[id(released.pop())] if released else self._new_slot()


class _Facade:
    """What both faces of a replica share."""

    def __init__(self, trainer: Trainer, clock: Callable[[], float]) -> None:
        self._trainer, self._clock = trainer, clock
        self._unit_began = 0.0

    @property
    def id(self) -> int:
        """The replica's number in the job."""
        return self._trainer.session.joined.replica

    @property
    def incarnation(self) -> int:
        """How often this replica has joined."""
        return self._trainer.session.joined.incarnation

    @property
    def parameters(self) -> Parameters:
        """The replica's copy: named arrays whose memory stays the same through the job.

        They change only inside ``step``, by the local step and when a fetch lands, and before a
        unit that had to be waited for. What you write into them is a local change until the next
        fetch lands; assigning another array raises. ``dict(replica.parameters)`` is a plain dict.
        """
        return self._trainer.parameters

    @property
    def steps(self) -> int:
        """Steps finished."""
        return self._trainer.clock

    def statistics(self) -> ReplicaStats:
        """All counts of this replica, now."""
        return self._trainer.session.statistics()

    # -- what both do, once: each ``yield`` is something to run on the session's loop and wait for

    def _step(
        self, gradients: Mapping[str, Any], loss: float | None, samples: int | None
    ) -> Errand[None]:
        t = self._trainer
        t.session.check_training()
        t.check_refusals()
        t.take(gradients, loss, samples)
        actions = t.rule.after_step(t.clock - 1, ClusterView(epoch=t.session.joined.epoch))
        if actions.push and (push := t.make_push()) is not None:
            t.portal.post(t.session.push, push)
            began = self._clock()
            if actions.wait:
                yield t.session.wait_settled(push.index)
            elif t.must_wait:
                yield t.session.wait_in_flight(t.in_flight_max)
            t.wait_s += self._clock() - began
        if actions.wait:
            if actions.fetch:
                yield from self._fetch()
            return
        t.land()
        if actions.fetch and t.may_fetch():
            t.begin_fetch()
            t.portal.post(t.session.start_fetch)

    def _fetch(self) -> Errand[None]:
        t = self._trainer
        yield t.session.fetch()
        t.land_newest()

    def _flush(self) -> Errand[None]:
        t = self._trainer
        push = t.make_push()
        if push is not None:
            t.portal.post(t.session.push, push)
        yield t.session.wait_settled(t.pushes)
        yield t.leases.settle()

    def _next_unit(self) -> Errand[Unit | None]:
        t = self._trainer
        if t.work is None:
            raise ConfigError("this job has no data=Work(...): replica.work() has nothing to lease")
        finished = t.finish_unit(self._clock() - self._unit_began)
        if finished is not None:
            t.portal.post(t.leases.finish, *finished)
        ahead = finished is not None and finished[1].seconds < PREFETCH_UNIT_S
        while True:
            entry = yield t.leases.next(accrued=t.accrued, ahead=ahead)
            if isinstance(entry, UnitEntry):
                if t.leases.waited:
                    # Its parameters are as old as the wait: after a warm start, all of it.
                    t.leases.waited = False
                    yield from self._fetch()
                self._unit_began = self._clock()
                return t.begin_unit(entry)
            yield from self._flush()
            if entry is None:
                return None


@final
class Replica(_Facade):
    """A model replica, as an ``async def`` training function sees it: one call at a time.

    Raises:
        MisuseError: a call was not awaited (said at the next one, with the line of the first), two
            threads or tasks are inside one replica at once, or a forked child calls.
    """

    def step(
        self,
        gradients: Mapping[str, Any],
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Give one minibatch's gradient; push and fetch go on in the background.

        Args:
            gradients: For each parameter's name an array of its shape: any float dtype, any
                strides; lists too, which cost a conversion each. None is no gradient for that
                parameter and counts as zeros. Integers, masked arrays and nested dicts are refused.
            loss: The minibatch's loss, for the progress display and the report.
            samples: Samples in the minibatch; by default the length of the batch last taken from
                the unit.

        Raises:
            GradientMismatch: a name is missing or added, or a shape differs.
            UnsupportedArray: a gradient that is no array of floating-point numbers.
            NonFiniteGradient: too many steps in a row held NaN or Inf (one alone is dropped,
                counted and logged).
            GradientsRefused: too many pushes in a row were not applied: too large for the wire's
                dtype, an optimizer's result that is not finite, a policy that takes none.
            Fenced, JobFailed: the session ended.
            ClosedError: the job is over; a job's own function need not catch it.
        """
        return self._trainer.guard.call("step", self._stepping, gradients, loss, samples)

    async def _stepping(
        self, gradients: Mapping[str, Any], loss: float | None, samples: int | None
    ) -> None:
        await self._run("step", self._step(gradients, loss, samples))
        await asyncio.sleep(0)  # the user's loop has other tasks

    def fetch(self) -> Coroutine[Any, Any, None]:
        """Fetch now and wait: afterwards the parameters are the shards'."""
        return self._trainer.guard.call("fetch", lambda: self._run("fetch", self._fetch()))

    def flush(self) -> Coroutine[Any, Any, None]:
        """Push what is accrued; wait until it is answered and finished units are reported."""
        return self._trainer.guard.call("flush", lambda: self._run("flush", self._flush()))

    async def work(self) -> AsyncIterator[Unit]:
        """Leased units until the job's work is done; see the job's ``Work``."""
        while (unit := await self._run("work", self._next_unit())) is not None:
            yield unit

    async def _run(self, call: str, errand: Errand[T]) -> T:
        guard, start = self._trainer.guard, self._trainer.portal.start
        guard.enter(call)
        try:
            work = next(errand)
            while True:
                work = errand.send(await start(work))
        except StopIteration as done:
            return cast(T, done.value)
        except DownpourError as error:
            # The caller's line is what matters, not ours.
            raise error.with_traceback(None) from error.__cause__
        finally:
            guard.leave()


@final
class BlockingReplica(_Facade):
    """The same for a plain ``def``, which runs in a thread: every call blocks instead."""

    def step(
        self,
        gradients: Mapping[str, Any],
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> None:
        """As :meth:`Replica.step`."""
        self._run("step", self._step(gradients, loss, samples))

    def fetch(self) -> None:
        """As :meth:`Replica.fetch`."""
        self._run("fetch", self._fetch())

    def flush(self) -> None:
        """As :meth:`Replica.flush`."""
        self._run("flush", self._flush())

    def work(self) -> Iterator[Unit]:
        """As :meth:`Replica.work`."""
        while (unit := self._run("work", self._next_unit())) is not None:
            yield unit

    def _run(self, call: str, errand: Errand[T]) -> T:
        guard = self._trainer.guard
        guard.enter(call)
        try:
            ask = self._trainer.portal.call
            work = next(errand)
            while True:
                work = errand.send(ask(work))
        except StopIteration as done:
            return cast(T, done.value)
        except DownpourError as error:
            # The caller's line is what matters, not ours.
            raise error.with_traceback(None) from error.__cause__
        finally:
            guard.leave()
