"""The simulated loop's callbacks and timers: the innermost objects, made a million times a run.

A callback belongs to the process whose context it was made in. It is held back while that process
is paused, and for ever when it is dead.
"""

from __future__ import annotations

import contextvars
import heapq
from asyncio import AbstractEventLoop, events
from collections.abc import Callable
from typing import Any, final

from pydownpour.sim.machines.process import ProcessState, SimProcess

_RUNNING = ProcessState.RUNNING
CANCELLED_KEPT = 200
"""Cancelled timers kept in the heap before they are swept out, if they are half of it."""


class Callback(events.Handle):
    """``events.Handle`` without what a simulation never uses (debug tracebacks)."""

    __slots__ = ("_process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: AbstractEventLoop,
        context: contextvars.Context,
        process: SimProcess | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._process = process

    def _run(self) -> None:
        process = self._process
        if process is not None and process.state is not _RUNNING:
            process.held.append(self._run)
            return
        if self._cancelled:  # it may have been while it was held back
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": f"exception in {self._callback!r}", "exception": error, "handle": self}
            )


@final
class Timer(Callback):
    """A callback that is due at one virtual time."""

    __slots__ = ("_timers", "_when")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: AbstractEventLoop,
        context: contextvars.Context,
        process: SimProcess | None,
        timers: Timers,
    ) -> None:
        Callback.__init__(self, callback, args, loop, context, process)
        self._when = when
        self._timers: Timers | None = timers

    def when(self) -> float:
        """The world's time at which it runs."""
        return self._when

    def cancel(self) -> None:
        """Never run it; the heap is told, so that it can be swept."""
        if not self._cancelled and self._timers is not None:
            self._timers.cancelled += 1
        super().cancel()


@final
class Timers:
    """Timers by time; equal times in the order they were made."""

    __slots__ = ("_heap", "_order", "cancelled")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0
        self.cancelled = 0
        """How many in the heap were cancelled."""

    def push(self, timer: Timer) -> None:
        self._order += 1
        heapq.heappush(self._heap, (timer._when, self._order, timer))
        if self.cancelled > CANCELLED_KEPT and self.cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2]._cancelled]
            heapq.heapify(self._heap)
            self.cancelled = 0

    def next_time(self) -> float | None:
        """When the first timer that is not cancelled runs; None if there is none."""
        heap = self._heap
        while heap:
            if not heap[0][2]._cancelled:
                return heap[0][0]
            heapq.heappop(heap)[2]._timers = None
            self.cancelled -= 1
        return None

    def pop_until(self, now: float) -> list[Timer]:
        """All that are due, in order."""
        due: list[Timer] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            timer._timers = None
            if timer._cancelled:
                self.cancelled -= 1
            else:
                due.append(timer)
        return due

    def clear(self) -> None:
        self._heap.clear()
