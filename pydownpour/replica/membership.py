"""A replica's place in a job, from joining to leaving.

user's side                     session's loop
open    --- portal ---------->  one task owns everything: client, session, links
          <-- is open --------  joined, connected, first parameters here
trainer: step, fetch, ...
leave   --- goodbye --------->  stops what runs, says goodbye, closes; the task ends
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from pydownpour.errors import JobFailed
from pydownpour.layout import Layout
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.policy import Policy
from pydownpour.replica.coordination import Coordination, Goodbye
from pydownpour.replica.failure import in_words, unit_failure
from pydownpour.replica.portal import LoopThread, Portal, SameLoop
from pydownpour.replica.reduction.listening import NOWHERE, Listening
from pydownpour.replica.session import Session
from pydownpour.replica.trainer import Trainer


@final
class Membership:
    """Gives a :class:`Trainer`, at the end says goodbye; an async context manager.

    The goodbye says what was raised meanwhile, and at which unit.

    Args:
        url: The coordinator's.
        layout: What will be trained; None takes the job's.
        policies: The classes of the job's policies that are none of ours.
        access, name, owner, rng, own_thread, listening, limits: As of
            :func:`pydownpour.replica.run.run_replica`.

    Attributes:
        is_open: The job had taken us in, with parameters, at some time.
    """

    def __init__(
        self,
        url: str,
        layout: Layout | None,
        access: Access,
        *,
        policies: Sequence[type[Policy]] = (),
        name: str = "",
        owner: str = "",
        rng: random.Random | None = None,
        own_thread: bool = True,
        listening: Listening = NOWHERE,
        limits: Limits = DEFAULT,
    ) -> None:
        self._listening = listening
        self._url, self._layout, self._access, self._limits = url, layout, access, limits
        self._policies = policies
        self._name, self._owner = name, owner
        self._rng = rng or random.SystemRandom()
        self._own_thread = own_thread
        self._portal: Portal = LoopThread(_loop_factory()) if own_thread else SameLoop()
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()
        self._life: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._trainer: Trainer | None = None
        self.is_open = False

    @property
    def is_forked(self) -> bool:
        """In a child that was forked meanwhile; its parent is the member, and says goodbye."""
        return os.getpid() != self._pid

    # -- on the user's side ----------------------------------------------------------------------

    async def __aenter__(self) -> Trainer:
        return await self.open()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await self.leave(error)

    async def open(self) -> Trainer:
        """Join; returns when there are parameters to train."""
        self._start()
        try:
            await self._portal.start(self._open())
            return self._train()
        except BaseException as error:
            await self.leave(error)
            raise

    async def leave(self, error: BaseException | None) -> None:
        """Say goodbye; ``error`` is why, if it is no good end."""
        if self.is_forked:
            return
        with self._stack:
            leaving = asyncio.ensure_future(self._portal.start(self._close(error)))
            cancel: asyncio.CancelledError | None = None
            # A caller in a hurry waits for the goodbye, too, which has its own limit of time: the
            # connections are closed behind it.
            while not leaving.done():
                try:
                    await asyncio.shield(leaving)
                except asyncio.CancelledError as again:
                    cancel = again
            if cancel is not None:
                _ = leaving.cancelled() or leaving.exception()
                raise cancel

    def open_blocking(self) -> Trainer:
        """As :meth:`open`, for a thread that has no event loop."""
        self._start()
        try:
            self._portal.call(self._open())
            return self._train()
        except BaseException as error:
            self.leave_blocking(error)
            raise

    def leave_blocking(self, error: BaseException | None) -> None:
        if self.is_forked:
            return
        with self._stack:
            self._portal.call(self._close(error))

    def _start(self) -> None:
        if isinstance(self._portal, LoopThread):
            self._stack.enter_context(self._portal)

    def _train(self) -> Trainer:
        assert self._session is not None
        clock = time.monotonic if self._own_thread else asyncio.get_running_loop().time
        self._trainer = Trainer(self._session, self._portal, clock, self._policies)
        self.is_open = True
        return self._trainer

    # -- on the session's loop -------------------------------------------------------------------

    async def _open(self) -> None:
        """Returns when there are parameters to train; raises what kept us out."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._goodbye: asyncio.Future[Goodbye] = loop.create_future()
        self._life = loop.create_task(self._take_part(opened), name="taking part")
        either: list[asyncio.Future[None]] = [opened, self._life]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            self._life.result()

    async def _take_part(self, opened: asyncio.Future[None]) -> None:
        async with Client(self._url, access=self._access, limits=self._limits) as client:
            coordination = await Coordination.join(
                client, self._layout, name=self._name, owner=self._owner, rng=self._rng
            )
            session = self._session = Session(
                coordination, self._access, self._rng, self._policies, self._listening
            )
            async with session.taking_part(self._goodbye.result):
                opened.set_result(None)
                await asyncio.wait([self._goodbye])

    async def _close(self, error: BaseException | None) -> None:
        """Leave, if we are in; give up joining, if we are not (Ctrl-C leaves it asking)."""
        life, session = self._life, self._session
        if life is None:
            return
        if self.is_open:
            self._goodbye.set_result(self._words(error))
        else:
            _ = life.cancel()
        await asyncio.wait([life])
        if error is None:
            life.result()
            assert session is not None
            if session.standing.job_state == "failed":
                raise JobFailed(session.standing.job_reason)

    def _words(self, error: BaseException | None) -> Goodbye:
        if error is None:
            return Goodbye()
        trainer = self._trainer
        units = tuple(trainer.leases.unanswered) if trainer is not None else ()
        if not isinstance(error, Exception):
            stopped = "stopped" if isinstance(error, asyncio.CancelledError) else ""
            return Goodbye(stopped, units=units)
        failure = unit_failure(error, trainer.unit if trainer is not None else None)
        return Goodbye(in_words(error)[:500], failed=True, failure=failure, units=units)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
