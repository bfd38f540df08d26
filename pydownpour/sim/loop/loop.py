"""An asyncio event loop with virtual time.

Time stands still while callbacks run and jumps to the next timer when none is left. There are no
threads, no real sockets and no selector; ``run_in_executor`` runs the function at once. Ready
callbacks run in the order they were scheduled and equal timers in the order they were made, so a
run depends on nothing but its inputs.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import os
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, final

from pydownpour.errors import BudgetSpent, ConfigError, SimulationStuck
from pydownpour.sim.loop.handles import Callback, Timer, Timers
from pydownpour.sim.machines.process import PROCESS, ProcessState, current

T = TypeVar("T")


class Sockets(Protocol):
    """What the loop asks of the network: asyncio's own calls, without their options."""

    def getaddrinfo(self, host: Any, port: Any) -> list[Any]:
        """Addresses of a host name, or of an address itself."""

    def listen(self, factory: Callable[[], Any], where: Any) -> asyncio.AbstractServer:
        """Listen on the running process's host, at a port (0: any free one) or a path."""

    async def connect(self, sock: Any, ip: str, port: int) -> None:
        """Connect a socket to an address."""

    def client_transport(self, sock: Any, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """(transport, protocol) of a connected socket."""

    async def dial(self, name: str, port: int, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """(transport, protocol) of a new connection, by name or address."""

    async def dial_path(self, path: str, factory: Callable[[], Any]) -> tuple[Any, Any]:
        """The same to a path of the running process's own host."""


UNWIND_EVENTS_MAX = 10_000_000
"""Callbacks that leftover frames may take after a run, however short its own budget was."""


@final
class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring.

    Args:
        events_max: Callbacks the run may take.
        virtual_s_max: Virtual seconds it may last.

    Raises (out of ``run_until_complete``):
        SimulationStuck: everybody waits for somebody.
        BudgetSpent: a budget ran out.
        KeyboardInterrupt: ``is_interrupted`` was set.
    """

    network: Sockets

    def __init__(self, *, events_max: int, virtual_s_max: float) -> None:
        super().__init__()
        self.now = 0.0
        """The world's time, in virtual seconds."""
        self._events_max, self._virtual_s_max = events_max, virtual_s_max
        self.events = 0
        self._timers = Timers()
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._on_error)
        self.on_instant: Callable[[], None] | None = None
        """Called when all that happens at one moment has happened, before time goes on."""
        self.is_interrupted = self._unwinds = False
        """It is to end with KeyboardInterrupt when this turn is over."""
        self._charged_s = 0.0
        self.errors: list[str] = []
        """What live processes let escape; a check looks at it."""

    # -- time --------------------------------------------------------------------------------------

    def time(self) -> float:
        """The running process's monotonic clock: the world's time plus its own offset."""
        process = current()
        return self.now if process is None else self.now + process.clock_offset_s

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, let time pass to the next timer."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._pass_time()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self.events > self._events_max:  # here, where no code of a process is in the middle
            raise BudgetSpent(f"not done after {self._events_max} events (--events)")
        if self.is_interrupted and not self._unwinds:
            raise KeyboardInterrupt

    def _pass_time(self) -> None:
        if self.on_instant is not None:
            self.on_instant()
            if self._ready:  # type: ignore[attr-defined]
                return
        due = self._timers.pop_next(self.now)
        if not due:
            raise SimulationStuck(f"at {self.now:.6f} s nothing is scheduled and nobody is ready")
        when = due[0]._when
        if when > self.now:
            self.now = when
            if when > self._virtual_s_max:
                raise BudgetSpent(
                    f"not done after {self._virtual_s_max:g} virtual seconds (--virtual-s)"
                )
        self.events += len(due)
        self._ready.extend(due)  # type: ignore[attr-defined]

    def lift_budgets(self) -> None:
        """The run is over; unwinding may take what it takes."""
        self._events_max, self._virtual_s_max = self._events_max + UNWIND_EVENTS_MAX, float("inf")
        self._unwinds = True

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody must be woken."""

    # -- callbacks ---------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.Handle:
        """As asyncio's own, which asks more before it does the same."""
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
        handle = Callback(callback, args, self, context, context.get(PROCESS))
        self._ready.append(handle)  # type: ignore[attr-defined]
        self.events += 1
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        """Schedule by the clock of the process that asks."""
        process = current()
        if process is not None and process.clock_offset_s:
            asked, offset = when, process.clock_offset_s
            when = asked - offset
            while when + offset < asked:  # rounded: its clock would show that it is too early
                when = math.nextafter(when, math.inf)
        return self.at(when, callback, *args, context=context)

    def at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        """Schedule by the world's time."""
        if context is None:
            context = contextvars.copy_context()
        timer = Timer(callback, args, self, context, context.get(PROCESS))
        self._timers.push(when, timer)
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        """Tasks belong to the process that starts them."""
        task = super().create_task(coro, **options)
        context = options.get("context")
        process = current() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None), context=_WORLD)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run it now: the core never calls back, so nobody can tell.

        What it charges (see :meth:`charge`) is how much later its answer comes.
        """
        future: asyncio.Future[T] = self.create_future()
        self._charged_s = 0.0
        try:
            answer: Callable[[], None] = functools.partial(future.set_result, func(*args))
        except Exception as error:
            answer = functools.partial(future.set_exception, error)
        if self._charged_s:
            self.call_later(self._charged_s, lambda: None if future.done() else answer())
        else:
            answer()
        return future

    def charge(self, seconds: float) -> None:
        """A blocking call that runs in the executor takes so many virtual seconds more."""
        self._charged_s += seconds

    async def shutdown_default_executor(self, timeout: float | None = None) -> None: ...

    # -- sockets: the network's --------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Names of hosts and addresses alike lead to the simulated network."""
        return self.network.getaddrinfo(host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect over the simulated network; the real socket is only a name for it."""
        await self.network.connect(sock, str(address[0]), int(address[1]))

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Connect to a host of the world, or wrap a connected socket."""
        self._refuse_tls(options)
        if sock is not None:
            return self.network.client_transport(sock, protocol_factory)
        return await self.network.dial(str(host), int(port), protocol_factory)

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        **options: Any,
    ) -> Any:
        """Listen on the running process's host."""
        self._refuse_tls(options)
        return self.network.listen(protocol_factory, port)

    async def create_unix_connection(
        self, protocol_factory: Callable[[], Any], path: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """Connect to a process of the same host."""
        self._refuse_tls(options)
        return await self.network.dial_path(os.fspath(path), protocol_factory)

    async def create_unix_server(
        self, protocol_factory: Callable[[], Any], path: Any = None, **options: Any
    ) -> Any:
        """Listen at a path of the running process's host."""
        self._refuse_tls(options)
        return self.network.listen(protocol_factory, os.fspath(path))

    @staticmethod
    def _refuse_tls(options: dict[str, Any]) -> None:
        if options.get("ssl"):
            raise ConfigError("simulated networks are plain; leave TLS out")

    # -- errors ------------------------------------------------------------------------------------

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = current()
        if process is not None and process.state is ProcessState.DEAD:
            return  # the garbage of a crashed process
        error = context.get("exception")
        if error is None:
            return  # a warning about something left open, at a moment the collector chose
        self.errors.append(f"{context.get('message')}: {error!r}")


_WORLD = contextvars.Context()
"""A context of no process."""
