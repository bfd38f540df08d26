"""Nobody waits in silence: who waits for a peer says for whom, and why."""

from __future__ import annotations

import asyncio
import logging
from typing import final

from pydownpour.limits import DEFAULT, Limits

log = logging.getLogger(__name__)


@final
class Waiting:
    """Says for whom a role waits as long as it does; an async context manager.

    Args:
        whom: In words.
        limits: ``wait_told_s`` and ``wait_told_max_s``.
    """

    def __init__(self, whom: str, limits: Limits = DEFAULT) -> None:
        self._whom, self._limits = whom, limits
        self._why = "no answer yet"
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Waiting:
        self._telling = asyncio.create_task(self._tell(), name=f"waiting for {self._whom}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._telling is not None
        self._telling.cancel()
        await asyncio.gather(self._telling, return_exceptions=True)

    def note(self, why: object) -> None:
        """The newest reason, which the next line says."""
        self._why = str(why)

    async def _tell(self) -> None:
        loop, turn = asyncio.get_running_loop(), Turn(self._limits)
        since = loop.time()
        while True:
            await asyncio.sleep(turn.next_at(since) - loop.time())
            if turn.is_mine(since, loop.time()):
                waited_s = loop.time() - since
                log.warning("waiting for %s for %.0f s now: %s", self._whom, waited_s, self._why)


@final
class Turn:
    """When a wait is worth a word: after ``wait_told_s``, and then ever less often.

    Pure: told the time, and since when the wait lasts. Another ``since`` is another wait.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._since: float | None = None
        self._next_at = 0.0

    def next_at(self, since: float) -> float:
        """When the next word is due."""
        if since != self._since:
            self._since, self._next_at = since, since + self._limits.wait_told_s
        return self._next_at

    def is_mine(self, since: float, now: float) -> bool:
        """Whether to say something now."""
        if now < self.next_at(since):
            return False
        self._next_at = now + min(now - since, self._limits.wait_told_max_s)
        return True


@final
class Stalls:
    """Notices that this process itself stood still (Ctrl-Z, a lid that was closed). Pure.

    Whoever waits with a limit looks at the clock at least every ``step_s``; what a look comes later
    than that is time in which nobody could have been heard, and nobody is blamed for it.

    Args:
        now: When the wait begins.
        step_s: Between two looks at most, if the process runs.
        stall_s: Shorter gaps are none.
    """

    def __init__(self, now: float, step_s: float, stall_s: float = DEFAULT.stall_s) -> None:
        self._at, self._step_s, self._stall_s = now, step_s, stall_s

    def look(self, now: float) -> float:
        """Seconds of standing still since the last look; 0 if it was none to speak of."""
        gap = now - self._at - self._step_s
        self._at = now
        return gap if gap > self._stall_s else 0.0
