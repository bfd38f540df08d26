"""The simulated loop's callbacks and timers: the innermost objects, made a million times a run.

A callback belongs to the process whose context it was made in. It is held back while that process
is paused, and for ever when it is dead.
"""

from __future__ import annotations

import contextvars
import heapq
import math
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

    _when: float
    _timers: Timers | None
    """Those that it is one of, until it is due."""

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

    def push(self, when: float, timer: Timer) -> None:
        """Let a new one be due at a time."""
        timer._when, timer._timers = when, self
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, timer))
        if self.cancelled > CANCELLED_KEPT and self.cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2]._cancelled]
            heapq.heapify(self._heap)
            self.cancelled = 0

    def pop_next(self, now: float) -> list[Timer]:
        """All of the next moment that is not before ``now``, in order; empty if there is none."""
        due: list[Timer] = []
        heap, until = self._heap, math.inf
        while heap and heap[0][0] <= until:
            when, _, timer = heapq.heappop(heap)
            timer._timers = None
            if timer._cancelled:
                self.cancelled -= 1
                continue
            if not due:
                until = when if when > now else now
            due.append(timer)
        return due

    def clear(self) -> None:
        self._heap.clear()
