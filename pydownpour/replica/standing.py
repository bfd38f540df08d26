"""How a replica stands in its job, and where its tasks wait for that, or anything, to change.

taking part -> over (the job evaluates or is done)   no step counts any more
            -> failed (fenced, job failed, ...)      raised to whoever waits, now or later
            -> left                                  it said goodbye
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol, final

from pydownpour.errors import ClosedError
from pydownpour.wire import messages
from pydownpour.wire.messages import HeartbeatAnswer


class Waiter(Protocol):
    """Done when what it waits for holds, or nothing more will come; a future is one."""

    def done(self) -> bool:
        """Nobody waits with it any longer."""

    def set_result(self, result: None, /) -> None:
        """The wait is over."""


@final
class Elsewhere:
    """A waiter for a task of another thread's loop: one call over there, and no lock.

    Args:
        reached: What the task awaits, of the loop that runs where this is made.
    """

    __slots__ = ("_loop", "_reached")

    def __init__(self, reached: asyncio.Future[None]) -> None:
        self._loop, self._reached = reached.get_loop(), reached

    def done(self) -> bool:
        """The task has given it up."""
        return self._reached.done()

    def set_result(self, result: None, /) -> None:
        """Wake the task, if its loop still runs."""
        try:
            self._loop.call_soon_threadsafe(_end, self._reached)
        except RuntimeError:  # it is closed
            pass


@final
class Blocked:
    """A waiter that blocks its thread: one lock, handed over."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Lock()
        _ = self._closed.acquire()

    def done(self) -> bool:
        """It was told."""
        return not self._closed.locked()

    def set_result(self, result: None, /) -> None:
        """Let the thread go on."""
        self._closed.release()

    def wait(self) -> None:
        """Until that; of the thread."""
        _ = self._closed.acquire()


@final
class Until:
    """Something to wait for, from either thread: awaited on the session's loop, or watched there.

    Args:
        standing: Whose changes may bring it.
        holds: Whether it is so, asked on the session's loop.
    """

    __slots__ = ("_holds", "_standing")

    def __init__(self, standing: Standing, holds: Callable[[], bool]) -> None:
        self._standing, self._holds = standing, holds

    def watch(self, waiter: Waiter) -> None:
        """Let a waiter be done when it holds; whoever waited then calls ``check``."""
        self._standing.watch(waiter, self._holds)

    def check(self) -> None:
        """The wait is over: raise what ended it, if it was not that it holds."""
        standing = self._standing
        if not self._holds():
            standing.check()
            standing.check_not_done()
        elif standing.failure is not None:
            raise standing.failure

    def __await__(self) -> Generator[Any, Any, None]:
        return self._standing.wait(self._holds).__await__()

    def close(self) -> None: ...


@final
class Standing:
    """Told what happened; everything of a session waits here.

    Written on the session's loop; the user's thread reads single attributes and calls ``check``.

    Args:
        job: Its name, for words.

    Attributes:
        failure: What ended the session, or None.
        has_left: It said goodbye, or is about to.
        job_state, job_reason: As the coordinator last said.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self.failure: BaseException | None = None
        self.has_left = False
        self.job_state: messages.JobStateName = "running"
        self.job_reason = ""
        self._waiting: dict[Waiter, Callable[[], bool]] = {}

    # -- what happens ----------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """The session cannot go on; the first reason is kept."""
        self.failure = self.failure or error
        self.changed()

    def heard(self, answer: HeartbeatAnswer) -> None:
        """The coordinator said how the job stands."""
        if not answer.fenced:
            self.job_state, self.job_reason = answer.state, answer.reason
            self.changed()

    def leave(self) -> None:
        """Nobody waits any longer."""
        self.has_left = True
        self.changed()

    def changed(self) -> None:
        """Wake those who wait for what now holds, and all if nothing more will come."""
        ended = self.is_ended
        for waiter in [w for w, holds in self._waiting.items() if ended or holds()]:
            del self._waiting[waiter]
            _end(waiter)

    # -- how it stands ---------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """There is nothing more to wait for."""
        return self.failure is not None or self.has_left or self.job_state == "done"

    @property
    def job_is_over(self) -> bool:
        """As far as the coordinator has told: no step counts any more."""
        return self.job_state in ("evaluating", "done")

    def check(self) -> None:
        """Raise what ended the session, if something did."""
        if self.failure is not None:
            raise self.failure
        if self.has_left:
            raise ClosedError("this replica has left the job")

    def check_training(self) -> None:
        """Raise if there is no sense in another step."""
        self.check()
        if self.job_is_over:
            raise self._over()

    def check_not_done(self) -> None:
        """Raise if the job is done: then its coordinator has ended, too."""
        if self.job_state == "done":
            raise self._over()

    def _over(self) -> ClosedError:
        return ClosedError(f"job {self._job} is over: {self.job_reason or self.job_state}")

    # -- waiting ---------------------------------------------------------------------------------

    def watch(self, waiter: Waiter, holds: Callable[[], bool]) -> None:
        """Let a waiter be done when something holds, or when nothing more will come."""
        if self.is_ended or holds():
            _end(waiter)
        else:
            self._waiting[waiter] = holds

    async def wait(self, until: Callable[[], bool]) -> None:
        """Wait for a condition; each ``changed`` looks at it again.

        Raises:
            What ended the session, or ClosedError, if that came first.
        """
        while not until():
            self.check()
            self.check_not_done()
            await self._woken(until)
        if self.failure is not None:
            raise self.failure

    async def sleep(self, seconds: float) -> None:
        """Sleep; wakes early when the session ends, and returns."""
        try:
            async with asyncio.timeout(seconds):
                while not self.is_ended:
                    await self._woken(lambda: False)
        except TimeoutError:
            return

    async def _woken(self, until: Callable[[], bool]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = until
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)


def _end(waiter: Waiter) -> None:
    """Of its loop's thread, if it is of a loop: nobody else can end it between the two."""
    if not waiter.done():
        waiter.set_result(None)
