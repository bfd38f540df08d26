"""Run one coroutine on the best event loop there is, and end it on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from pydownpour.cli.failures import Interrupted
from pydownpour.cli.interrupts import Interrupts
from pydownpour.engines.base import EXIT_INTERRUPTED
from pydownpour.limits import DEFAULT

T = TypeVar("T")

STOPS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals that ask a command to end."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops where it is installed, else None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(
    work: Callable[[], Coroutine[Any, Any, T]],
    *,
    hard: bool,
    remind: Callable[[], None] | None = None,
    pause: Callable[[], None] | None = None,
) -> T:
    """Run ``work()`` to its end.

    The first Ctrl-C, SIGTERM or SIGHUP cancels it, with ``words`` of it as the message, and work
    that has something to put in order may return nevertheless; ``interrupts`` says what further
    ones mean. One that is ignored when we start (``nohup``) stays ignored.

    Args:
        work: Makes the coroutine.
        hard: End the process ``shutdown_s`` after the first signal even if a thread of the
            user's holds on. False where something has to be written first, or processes reaped:
            then only the third signal does that, and cancels again.
        remind: Says at the second signal what is still going on.
        pause: Called on Ctrl-Z; returns when the command goes on.

    Raises:
        Interrupted: a signal ended it.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        caught: list[int] = []

        async def main() -> T:
            with _signals(asyncio.current_task(), caught, hard, remind, pause):
                return await work()

        try:
            return runner.run(main())
        except (asyncio.CancelledError, KeyboardInterrupt):
            if caught:
                raise Interrupted(words(caught[0])) from None
            raise


def words(number: int) -> str:
    """Why something ended, for people."""
    return f"stopped by {signal.Signals(number).name}"


@contextlib.contextmanager
def _signals(
    task: asyncio.Task[Any] | None,
    caught: list[int],
    hard: bool,
    remind: Callable[[], None] | None,
    pause: Callable[[], None] | None,
) -> Iterator[None]:
    assert task is not None
    interrupts = Interrupts()

    def on_stop(number: int) -> None:
        meaning = interrupts.decide(time.monotonic())
        if meaning == "same":
            return
        caught.append(number)
        if meaning == "remind" and remind is not None:
            remind()
        elif meaning == "stop" or meaning == "kill":
            if hard or meaning == "kill":
                _end_later()
            task.cancel(words(number))

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                _handle(stack, number, on_stop, number)
            if pause is not None and hasattr(signal, "SIGTSTP"):
                _handle(stack, signal.SIGTSTP, pause)
        yield


def _handle(
    stack: contextlib.ExitStack, number: int, act: Callable[..., None], *arguments: Any
) -> None:
    """Let the running loop act on a signal, until the stack is left."""
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        return  # nohup, or a shell that starts us in the background: somebody meant it
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, act, *arguments)
    # Not the loop's own way back: it would leave SIGINT to Python's handler and its traceback.
    stack.callback(signal.signal, number, before)
    stack.callback(loop.remove_signal_handler, number)


def pause_here() -> None:
    """Stop this process as Ctrl-Z does; returns when somebody lets it go on."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


def _end_later() -> None:
    timer = threading.Timer(DEFAULT.shutdown_s, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
