"""Join a job, run its training function to the end, leave: what a replica's process does."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pydownpour.errors import ClosedError, DownpourError
from pydownpour.layout import Layout
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.policy.phases import Declared, phases_of
from pydownpour.replica.failure import EndedItself, note_unit
from pydownpour.replica.membership import Membership
from pydownpour.replica.reduction.listening import NOWHERE, Listening
from pydownpour.replica.replica import BlockingReplica, Replica
from pydownpour.replica.trainer import Trainer

log = logging.getLogger(__name__)


class TrainingJob(Protocol):
    """What a replica needs of a job."""

    @property
    def layout(self) -> Layout:
        """Names, shapes and dtypes of the parameters."""

    @property
    def train(self) -> Callable[[Any], Any]:
        """The user's function, ``async def`` or ``def``."""

    @property
    def policy(self) -> Declared:
        """Its class, if it is none of ours."""


async def run_replica(
    job: TrainingJob,
    *,
    coordinator: str,
    access: Access,
    name: str = "",
    owner: str = "",
    rng: random.Random | None = None,
    own_thread: bool = True,
    listening: Listening = NOWHERE,
    limits: Limits = DEFAULT,
) -> None:
    """Join, run the job's function to its end, settle what it pushed, leave.

    Args:
        job: Its layout and its function.
        coordinator: The coordinator's URL.
        access: Token and TLS.
        name: For people; default host and process.
        owner: Random, and the same for all lives of this replica: with it a restart takes the
            place of the life before (same id, next incarnation), and nobody else can. "": it has
            no other life.
        rng: Randomness for back-off and the join's nonce, which nobody else may guess.
        own_thread: Put the session on a thread of its own. False shares the running loop (the
            simulator does), and then the function must be ``async def``.
        listening: Where it listens for other replicas, if it reduces with them.
        limits: What it waits for and keeps at most.

    Raises:
        Whatever the function raised, after leaving the job; JobFailed, Fenced, ConfigError. Not
        that the job was over: then there is nothing left to do.
    """
    membership = Membership(
        coordinator,
        job.layout,
        access,
        policies=phases_of(job.policy).classes(),
        name=name,
        owner=owner,
        rng=rng,
        own_thread=own_thread,
        listening=listening,
        limits=limits,
    )
    try:
        async with membership as trainer:
            await _to_its_end(job.train, trainer)
    except ClosedError as error:
        if membership.is_open:
            raise
        log.info("%s; nothing left to do", error)  # the others finished before we came


async def _to_its_end(train: Callable[[Any], Any], trainer: Trainer) -> None:
    """Run the user's function; that the job is over is a good end, too."""
    try:
        await _train(train, trainer)
    except ClosedError as error:
        if not trainer.standing.job_is_over:
            raise
        log.info("%s; leaving", error)
        await _farewell(trainer)
    except Exception as error:
        note_unit(error, trainer.unit)
        raise


async def _train(train: Callable[[Any], Any], trainer: Trainer) -> None:
    """Run the user's function to its end, then settle what it pushed and finished."""
    if inspect.iscoroutinefunction(train):
        face = Replica(trainer)
        task = asyncio.current_task()
        with _no_other_end(lambda: task is not None and task.cancelling() > 0):
            await train(face)
        await face.flush()
    else:
        blocking = BlockingReplica(trainer)

        def run() -> None:
            with _no_other_end(lambda: False):
                train(blocking)
            blocking.flush()

        await asyncio.get_running_loop().run_in_executor(None, run)


async def _farewell(trainer: Trainer) -> None:
    """The job is over, but we have gradients that no push carries: there may still be time."""
    try:
        for work in trainer.flush():
            await trainer.portal.start(work)
    except DownpourError as error:
        log.info("%s; what was accrued is not in the parameters", error)


@contextlib.contextmanager
def _no_other_end(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """A user's function returns or raises an Exception; anything else would end our loop, too.

    Args:
        is_stopped: Whether a cancellation is ours.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_stopped():
            raise
        words = "the replica function was cancelled by its own code (asyncio.CancelledError)"
        raise EndedItself(words).with_traceback(error.__traceback__) from None
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        words = f"the replica function raised {error!r}; it ends by returning"
        raise EndedItself(words).with_traceback(error.__traceback__) from None
