"""What the user's function gets: parameters to read, gradients to give, work to do.

:class:`Replica` is for ``async def``, :class:`BlockingReplica` for a plain ``def`` in a thread.
Both only carry a call into the :class:`~pydownpour.replica.trainer.Trainer` and wait for its steps,
each in its own way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, TypeVar, cast, final

from pydownpour.errors import DownpourError
from pydownpour.replica.parameters import Parameters
from pydownpour.replica.trainer import Steps, Trainer
from pydownpour.replica.work import Unit
from pydownpour.wire.messages import ReplicaStats

T = TypeVar("T")


class _Face:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

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
        fetch lands, or a step of your own where the policy has replicas train by themselves
        (``step()``); assigning another array raises. ``dict(replica.parameters)`` is a plain dict.
        """
        return self._trainer.copy.parameters

    @property
    def steps(self) -> int:
        """Steps finished: the replica's clock."""
        return self._trainer.steps

    def statistics(self) -> ReplicaStats:
        """All counts of this replica, now."""
        return self._trainer.session.statistics()


@final
class Replica(_Face):
    """A model replica, as an ``async def`` training function sees it: one call at a time.

    Raises:
        MisuseError: a call was not awaited (said at the next one, with the line of the first), two
            threads or tasks are inside one replica at once, or a forked child calls.
    """

    def step(
        self,
        gradients: Mapping[str, Any] | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Give one minibatch's gradient; push and fetch go on in the background.

        Where the policy has replicas train by themselves (``dp.ModelAveraging``, ``dp.DiLoCo``),
        the replica's copy takes a step of the job's optimizer with it, and what is pushed after
        some steps is how far the copy went. A loop with an optimizer of its own writes its step
        into ``parameters`` and calls ``step()`` without gradients.

        Args:
            gradients: For each parameter's name an array of its shape: any float dtype, any
                strides; lists too, which cost a conversion each. None is no gradient for that
                parameter and counts as zeros. Integers, masked arrays and nested dicts are refused.
                None in place of all: the step is in the parameters already.
            loss: The minibatch's loss, for the progress display and the report.
            samples: Samples in the minibatch; by default the length of the batch last taken from
                the unit.

        Raises:
            ConfigError: none were given, and the policy pushes gradients; or some were, and the job
                has no optimizer for them.
            GradientMismatch: a name is missing or added, or a shape differs.
            UnsupportedArray: a gradient that is no array of floating-point numbers.
            NonFiniteGradient: too many steps in a row held NaN or Inf (one alone is dropped,
                counted and logged).
            GradientsRefused: too many pushes in a row were not applied: too large for the wire's
                dtype or the job's ``max_norm``, an optimizer's result that is not finite, a policy
                that takes none.
            Fenced, JobFailed: the session ended.
            ClosedError: the job is over; a job's own function need not catch it.
        """
        return self._trainer.guard.call("step", self._stepping, gradients, loss, samples)

    async def _stepping(
        self, gradients: Mapping[str, Any] | None, loss: float | None, samples: int | None
    ) -> None:
        await self._run("step", self._trainer.step(gradients, loss, samples))
        await asyncio.sleep(0)  # the user's loop has other tasks

    def fetch(self) -> Coroutine[Any, Any, None]:
        """Fetch now and wait: afterwards the parameters are the shards'."""
        return self._trainer.guard.call("fetch", lambda: self._run("fetch", self._trainer.fetch()))

    def flush(self) -> Coroutine[Any, Any, None]:
        """Push what is accrued; wait until it is answered and finished units are reported."""
        return self._trainer.guard.call("flush", lambda: self._run("flush", self._trainer.flush()))

    async def work(self) -> AsyncIterator[Unit]:
        """Leased units until the job's work is done; see the job's ``Work``."""
        while (unit := await self._run("work", self._trainer.next_unit())) is not None:
            yield unit

    async def _run(self, call: str, steps: Steps[T]) -> T:
        guard, start = self._trainer.guard, self._trainer.portal.start
        guard.enter(call)
        try:
            work = next(steps)
            while True:
                work = steps.send(await start(work))
        except StopIteration as done:
            return cast(T, done.value)
        except DownpourError as error:
            # The caller's line is what matters, not ours.
            raise error.with_traceback(None) from error.__cause__
        finally:
            guard.leave()


@final
class BlockingReplica(_Face):
    """The same for a plain ``def``, which runs in a thread: every call blocks instead."""

    def step(
        self,
        gradients: Mapping[str, Any] | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> None:
        """As :meth:`Replica.step`."""
        self._run("step", self._trainer.step(gradients, loss, samples))

    def fetch(self) -> None:
        """As :meth:`Replica.fetch`."""
        self._run("fetch", self._trainer.fetch())

    def flush(self) -> None:
        """As :meth:`Replica.flush`."""
        self._run("flush", self._trainer.flush())

    def work(self) -> Iterator[Unit]:
        """As :meth:`Replica.work`."""
        while (unit := self._run("work", self._trainer.next_unit())) is not None:
            yield unit

    def _run(self, call: str, steps: Steps[T]) -> T:
        guard = self._trainer.guard
        guard.enter(call)
        try:
            ask = self._trainer.portal.call
            work = next(steps)
            while True:
                work = steps.send(ask(work))
        except StopIteration as done:
            return cast(T, done.value)
        except DownpourError as error:
            # The caller's line is what matters, not ours.
            raise error.with_traceback(None) from error.__cause__
        finally:
            guard.leave()
