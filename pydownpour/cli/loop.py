"""Run one coroutine on the best event loop there is, and end it on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from pydownpour import limits
from pydownpour.cli.failures import Interrupted
from pydownpour.engines.base import EXIT_INTERRUPTED

T = TypeVar("T")

_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops where it is installed, else None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(work: Callable[[], Coroutine[Any, Any, T]], *, hard: bool) -> T:
    """Run ``work()`` to its end.

    A first Ctrl-C, SIGTERM or SIGHUP cancels it, a further one cancels it again.

    Args:
        work: Makes the coroutine.
        hard: End the process after ``limits.SHUTDOWN_S`` even if a thread of the user's holds on.
            False for an engine, which has processes to reap and keeps its own time.

    Raises:
        Interrupted: a signal ended it.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        caught: list[int] = []

        async def main() -> T:
            with _signals(asyncio.current_task(), caught, hard=hard):
                return await work()

        try:
            return runner.run(main())
        except (asyncio.CancelledError, KeyboardInterrupt):
            if caught:
                raise Interrupted(f"stopped by {signal.Signals(caught[0]).name}") from None
            raise


@contextlib.contextmanager
def _signals(task: asyncio.Task[Any] | None, caught: list[int], *, hard: bool) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    assert task is not None

    def on_signal(number: int) -> None:
        if hard and not caught:
            _end_later()
        caught.append(number)
        task.cancel()

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                loop.add_signal_handler(number, on_signal, number)
                stack.callback(loop.remove_signal_handler, number)
        yield


def _end_later() -> None:
    timer = threading.Timer(limits.SHUTDOWN_S, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
