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
from typing import Any, Final, TypeAlias, final

from pydownpour.sim.machines.process import ProcessState, SimProcess

_RUNNING = ProcessState.RUNNING
SLICES_A_S: Final = 64
"""Slices of a virtual second. A power of two: which slice a time is in is not rounded."""
FAR_S: Final = 2.0**40
"""One slice has all that is due behind that, and what is never due: infinity has no number."""
CANCELLED_KEPT = 200
"""Cancelled timers kept before they are swept out, if they are half of all."""


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
    """Timers by time; equal times in the order they were made.

    Most are time limits that are far away and never come due: each replica has a dozen. Only those
    of the nearest slice of time are kept in order; the others lie in slices until their time comes,
    so what a timer costs does not grow with how many replicas there are.
    """

    __slots__ = ("_count", "_heap", "_later", "_near", "_order", "_slices", "cancelled")

    def __init__(self) -> None:
        self._near = -1
        """The slice that is in the heap, with whatever comes before it."""
        self._heap: list[_Entry] = []
        self._later: dict[int, list[_Entry]] = {}
        """Slices behind it, each in the order they were made."""
        self._slices: list[int] = []
        """Their numbers, as a heap."""
        self._order = self._count = 0
        self.cancelled = 0
        """How many of all were cancelled."""

    def push(self, when: float, timer: Timer) -> None:
        """Let a new one be due at a time."""
        timer._when, timer._timers = when, self
        self._order += 1
        self._count += 1
        number = int((when if when < FAR_S else FAR_S) * SLICES_A_S)
        if number <= self._near:
            heapq.heappush(self._heap, (when, self._order, timer))
        elif (entries := self._later.get(number)) is not None:
            entries.append((when, self._order, timer))
        else:
            self._later[number] = [(when, self._order, timer)]
            heapq.heappush(self._slices, number)
        if self.cancelled > CANCELLED_KEPT and self.cancelled * 2 > self._count:
            self._sweep()

    def _sweep(self) -> None:
        for entries in (self._heap, *self._later.values()):
            entries[:] = [entry for entry in entries if not entry[2]._cancelled]
        heapq.heapify(self._heap)
        self._count -= self.cancelled
        self.cancelled = 0

    def _draw_near(self, until: float) -> bool:
        """Put the next slice that begins by then into the empty heap; False: none does."""
        if not self._slices or self._slices[0] > until * SLICES_A_S:
            return False
        self._near = heapq.heappop(self._slices)
        self._heap.extend(self._later.pop(self._near))
        heapq.heapify(self._heap)
        return True

    def pop_next(self, now: float) -> list[Timer]:
        """All of the next moment that is not before ``now``, in order; empty if there is none."""
        due: list[Timer] = []
        heap, until = self._heap, math.inf
        while heap or self._draw_near(until):
            if not heap:  # of that slice all were swept out
                continue
            if heap[0][0] > until:
                break
            when, _, timer = heapq.heappop(heap)
            timer._timers = None
            self._count -= 1
            if timer._cancelled:
                self.cancelled -= 1
                continue
            if not due:
                until = when if when > now else now
            due.append(timer)
        return due


_Entry: TypeAlias = tuple[float, int, Timer]
