"""Start, crash, pause and restart simulated processes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from pydownpour.sim.machines.host import Host
from pydownpour.sim.machines.process import ProcessState, SimProcess
from pydownpour.sim.network.network import Network

UNWIND_S: Final = 600.0
"""Virtual seconds leftover frames may take to end."""


@final
class Processes:
    """All processes of a world, dead ones included (their frames must not be collected early)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.started = 0
        """Processes ever."""
        self.live: dict[str, SimProcess] = {}
        """By name; of two with one name the younger."""
        self.alive: dict[SimProcess, None] = {}
        """All that are not dead, also those a younger one took the name of."""
        self.graveyard: list[SimProcess] = []
        self._killed: dict[SimProcess, None] = {}

    def start(
        self,
        name: str,
        host: Host,
        main: Callable[[], Coroutine[Any, Any, object]],
        on_exit: Callable[[SimProcess, BaseException | None], None],
    ) -> SimProcess:
        """Run a coroutine as a process; ``on_exit`` hears how it ended, if it was not killed."""
        self.started += 1
        loop, trace = self._network.loop, self._network.trace
        self._network.power_up(host)
        process = SimProcess(name, self.started, host)
        self.live[name] = process
        self.alive[process] = None
        trace.note(loop.now, "start", name, self.started)
        task = loop.create_task(_run(main, process), context=process.context.copy())
        process.main = task

        def ended(task: asyncio.Task[Any]) -> None:
            if process in self._killed:
                return
            error = None if task.cancelled() else task.exception()
            trace.note(loop.now, "exit", name, 0 if error is None else 1)
            self._bury(process, silently=False)
            on_exit(process, error)

        task.add_done_callback(ended, context=_no_process())
        return process

    def kill(self, process: SimProcess, *, silently: bool = False) -> None:
        """As SIGKILL; ``silently``: as a power cut, its peers are not told."""
        if process.state is ProcessState.DEAD:
            return
        self._network.trace.note(
            self._network.loop.now, "power cut" if silently else "kill", process.name
        )
        if silently:
            self._network.power_cut(process.host)
        for gone in [a for a in self.alive if a.host is process.host] if silently else [process]:
            self._killed[gone] = None
            self._bury(gone, silently=silently)

    def terminate(self, process: SimProcess) -> None:
        """As SIGTERM to a process that catches it: its main coroutine is cancelled."""
        if process.state is not ProcessState.DEAD and process.main is not None:
            self._network.trace.note(self._network.loop.now, "terminate", process.name)
            process.main.cancel()

    def pause(self, process: SimProcess) -> None:
        if process.state is ProcessState.RUNNING:
            process.state = ProcessState.PAUSED
            self._network.trace.note(self._network.loop.now, "pause", process.name)

    def resume(self, process: SimProcess) -> None:
        """As SIGCONT: everything that was held back runs, in order.

        Each in a turn of the loop of its own, as a selector reports one event of a socket at a
        time: what one starts (a task, say) has begun before the next comes.
        """
        if process.state is not ProcessState.PAUSED:
            return
        process.state = ProcessState.RUNNING
        self._network.trace.note(self._network.loop.now, "resume", process.name)
        self._network.loop.call_soon(self._release, process, context=_no_process())

    def _release(self, process: SimProcess) -> None:
        if process.state is ProcessState.RUNNING and process.held:
            process.held.popleft()()
            self._network.loop.call_soon(self._release, process, context=_no_process())

    def _bury(self, process: SimProcess, *, silently: bool) -> None:
        process.state = ProcessState.DEAD
        if self.live.get(process.name) is process:
            del self.live[process.name]
        self.alive.pop(process, None)
        self._network.end_process(process, silently=silently)
        self.graveyard.append(process)

    async def unwind(self) -> None:
        """After the run: let every frame that is left end as if cancelled, out of the trace.

        Crashed processes were only stopped; their coroutines still hold ``finally`` blocks, which
        must not run whenever the garbage collector comes by.
        """
        network = self._network
        network.is_closed = True
        processes = [*self.graveyard, *self.alive]
        for process in processes:
            process.state = ProcessState.RUNNING
            network.loop.call_soon(self._release, process, context=_no_process())
        while any(process.held and process.state is ProcessState.RUNNING for process in processes):
            await asyncio.sleep(0)
        # First as a cancelled process would end, so that what it opened is closed in order.
        for process in processes:
            if process.main is not None and not process.main.cancelling():
                process.main.cancel()
        await _all_ended(processes)
        for process in processes:
            for task in list(process.tasks):
                task.cancel()
        await _all_ended(processes)
        self.graveyard.clear()
        self.live.clear()
        self.alive.clear()


async def _run(main: Callable[[], Coroutine[Any, Any, object]], process: SimProcess) -> None:
    """As ``asyncio.run``: what a process still does when its main coroutine ends is cancelled."""
    try:
        await main()
    finally:
        rest = [task for task in process.tasks if task is not process.main]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _all_ended(processes: list[SimProcess]) -> None:
    """Wait for all tasks of some processes, also those they start meanwhile."""
    deadline = asyncio.get_running_loop().time() + UNWIND_S
    while tasks := [task for process in processes for task in process.tasks]:
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        await asyncio.wait(tasks, timeout=left_s)


def _no_process() -> contextvars.Context:
    return contextvars.Context()
