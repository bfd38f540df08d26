"""Start, crash, pause and restart simulated processes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from pydownpour.sim.actor import Actor, Life
from pydownpour.sim.hosts import Host
from pydownpour.sim.network import Network

UNWIND_S: Final = 600.0
"""Virtual seconds leftover frames may take to end."""


@final
class Processes:
    """All processes of a world, dead ones included (their frames must not be collected early)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.started = 0
        """Processes ever."""
        self.live: dict[str, Actor] = {}
        """By name; of two with one name the younger."""
        self.alive: dict[Actor, None] = {}
        """All that are not dead, also those a younger one took the name of."""
        self.graveyard: list[Actor] = []
        self._killed: dict[Actor, None] = {}

    def start(
        self,
        name: str,
        host: Host,
        main: Callable[[], Coroutine[Any, Any, object]],
        on_exit: Callable[[Actor, BaseException | None], None],
    ) -> Actor:
        """Run a coroutine as a process; ``on_exit`` hears how it ended, if it was not killed."""
        self.started += 1
        loop, trace = self._network.loop, self._network.trace
        self._network.power_up(host)
        actor = Actor(name, self.started, host)
        self.live[name] = actor
        self.alive[actor] = None
        trace.note(loop.now, "start", name, self.started)
        task = loop.create_task(_run(main, actor), context=actor.context.copy())
        actor.main = task

        def ended(task: asyncio.Task[Any]) -> None:
            if actor in self._killed:
                return
            error = None if task.cancelled() else task.exception()
            trace.note(loop.now, "exit", name, 0 if error is None else 1)
            self._bury(actor, silently=False)
            on_exit(actor, error)

        task.add_done_callback(ended, context=_no_process())
        return actor

    def kill(self, actor: Actor, *, silently: bool = False) -> None:
        """As SIGKILL; ``silently``: as a power cut, its peers are not told."""
        if actor.life is Life.DEAD:
            return
        self._network.trace.note(
            self._network.loop.now, "power cut" if silently else "kill", actor.name
        )
        if silently:
            self._network.power_cut(actor.host)
        for gone in [a for a in self.alive if a.host is actor.host] if silently else [actor]:
            self._killed[gone] = None
            self._bury(gone, silently=silently)

    def terminate(self, actor: Actor) -> None:
        """As SIGTERM to a process that catches it: its main coroutine is cancelled."""
        if actor.life is not Life.DEAD and actor.main is not None:
            self._network.trace.note(self._network.loop.now, "terminate", actor.name)
            actor.main.cancel()

    def pause(self, actor: Actor) -> None:
        """As SIGSTOP."""
        if actor.life is Life.RUNNING:
            actor.life = Life.PAUSED
            self._network.trace.note(self._network.loop.now, "pause", actor.name)

    def resume(self, actor: Actor) -> None:
        """As SIGCONT: everything that was held back runs, in order.

        Each in a turn of the loop of its own, as a selector reports one event of a socket at a
        time: what one starts (a task, say) has begun before the next comes.
        """
        if actor.life is not Life.PAUSED:
            return
        actor.life = Life.RUNNING
        self._network.trace.note(self._network.loop.now, "resume", actor.name)
        self._network.loop.call_soon(self._release, actor, context=_no_process())

    def _release(self, actor: Actor) -> None:
        if actor.life is Life.RUNNING and actor.held:
            actor.held.popleft()()
            self._network.loop.call_soon(self._release, actor, context=_no_process())

    def _bury(self, actor: Actor, *, silently: bool) -> None:
        actor.life = Life.DEAD
        if self.live.get(actor.name) is actor:
            del self.live[actor.name]
        self.alive.pop(actor, None)
        self._network.end_actor(actor, silently=silently)
        self.graveyard.append(actor)

    async def unwind(self) -> None:
        """After the run: let every frame that is left end as if cancelled, out of the trace.

        Crashed processes were only stopped; their coroutines still hold ``finally`` blocks, which
        must not run whenever the garbage collector comes by.
        """
        network = self._network
        network.is_closed = True
        actors = [*self.graveyard, *self.alive]
        for actor in actors:
            actor.life = Life.RUNNING
            network.loop.call_soon(self._release, actor, context=_no_process())
        while any(actor.held and actor.life is Life.RUNNING for actor in actors):
            await asyncio.sleep(0)
        # First as a cancelled process would end, so that what it opened is closed in order.
        for actor in actors:
            if actor.main is not None and not actor.main.cancelling():
                actor.main.cancel()
        await _all_ended(actors)
        for actor in actors:
            for task in list(actor.tasks):
                task.cancel()
        await _all_ended(actors)
        self.graveyard.clear()
        self.live.clear()
        self.alive.clear()


async def _run(main: Callable[[], Coroutine[Any, Any, object]], actor: Actor) -> None:
    """As ``asyncio.run``: what a process still does when its main coroutine ends is cancelled."""
    try:
        await main()
    finally:
        rest = [task for task in actor.tasks if task is not actor.main]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _all_ended(actors: list[Actor]) -> None:
    """Wait for all tasks of some processes, also those they start meanwhile."""
    deadline = asyncio.get_running_loop().time() + UNWIND_S
    while tasks := [task for actor in actors for task in actor.tasks]:
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        await asyncio.wait(tasks, timeout=left_s)


def _no_process() -> contextvars.Context:
    return contextvars.Context()
