"""How the user's code and the session's event loop reach each other.

The user computes in one thread, the session lives on an event loop in another, so that pushing,
fetching and computing are only weakly synchronised (Dean et al. 2012, appendix). In a simulator
both share one loop and the portal is a plain call.
"""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar, final

from pydownpour.errors import ClosedError
from pydownpour.replica.standing import Blocked, Elsewhere, Until

T = TypeVar("T")


Work: TypeAlias = Coroutine[Any, Any, Any] | Until
"""What can be waited for on the session's loop."""


class Portal(abc.ABC):
    """Runs things on the session's loop."""

    @abc.abstractmethod
    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function there soon; do not wait."""

    @abc.abstractmethod
    def start(self, work: Work) -> Awaitable[Any]:
        """Run it there; await its result here."""

    @abc.abstractmethod
    def call(self, work: Work) -> Any:
        """Run it there; block this thread for its result."""


@final
class SameLoop(Portal):
    """The user's coroutine and the session share one loop."""

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)

    def start(self, work: Work) -> Awaitable[Any]:
        return work

    def call(self, work: Work) -> Any:
        """Impossible: blocking the only loop would wait for ever."""
        work.close()
        raise ClosedError("a plain function needs the session on a thread of its own")


@final
class LoopThread(Portal):
    """An event loop on a thread of its own; a context manager.

    Lifecycle: ``with`` starts the thread; leaving cancels what still runs there and joins it.
    """

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._factory = factory or asyncio.new_event_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="pydownpour-session", daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> LoopThread:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._factory) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stop.wait()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise ClosedError("this replica has left the job")
        return self._loop

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it on the loop's thread."""
        self._running().call_soon_threadsafe(function, *arguments)

    def start(self, work: Work) -> Awaitable[Any]:
        """Run it there, await it here."""
        if isinstance(work, Until):
            return self._held(work)
        return asyncio.wrap_future(self._submit(work))

    def call(self, work: Work) -> Any:
        """Run it there, block here."""
        if isinstance(work, Until):
            reached = Blocked()
            self.post(work.watch, reached)
            reached.wait()
            work.check()
            return None
        return self._submit(work).result()

    async def _held(self, until: Until) -> None:
        """No task of ours, nor a lock, stands between the change and who waits."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.post(until.watch, Elsewhere(reached))
        await reached
        until.check()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise
