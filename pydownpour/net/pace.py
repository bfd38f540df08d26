"""Whether a connection gets anywhere, by the bytes that moved.

A time limit on a whole body is a limit on how slow a link may be, and on a link of 10 kB/s the
honest would be cut off with the dead. So what is limited is the time in which too little moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

LOOKS: Final = 4
"""How often in a window a connection is looked at: it is given up that exactly."""


@final
class Pace:
    """Patience with one connection. Told how far it has come, it says when to give up; pure.

    Args:
        window_s: Seconds in which
        size_min: so many bytes have to move at least.
    """

    def __init__(self, window_s: float, size_min: int = 1) -> None:
        self.window_s, self.size_min = window_s, size_min
        self._mark: int | None = None
        self._since = 0.0

    def is_over(self, now: float, moved: int | None) -> bool:
        """Whether to give up. ``moved`` counts bytes; None: nothing is due just now."""
        if moved is None or self._mark is None or moved >= self._mark + self.size_min:
            self._mark, self._since = moved, now
            return False
        # Less than before: what was written meanwhile is still to go.
        self._mark = min(self._mark, moved)
        return now - self._since >= self.window_s


@final
class Watch:
    """A pace that is kept: looks at a connection until it is stopped or has given up.

    Args:
        pace: What is demanded.
        moved: Bytes moved so far, or None while nothing is due.
        give_up: Called once if it does not keep the pace.
    """

    def __init__(
        self, pace: Pace, moved: Callable[[], int | None], give_up: Callable[[], None]
    ) -> None:
        self._pace, self._moved, self._give_up = pace, moved, give_up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._pace.is_over(self._loop.time(), self._moved()):
            self._give_up()
        else:
            self._timer = self._loop.call_later(self._pace.window_s / LOOKS, self._look)
