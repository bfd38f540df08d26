"""What peers may make a shard do in one turn of its event loop.

An announcement of a hundred bytes costs a decision and an answer, and three thousand of them come
with one read. Whoever has spent a turn's budget goes on in the next turn, behind those that wait
already: so a turn is short whatever peers send, and what the shard does for itself (its heartbeats)
never queues behind them.

Most turns spend next to nothing, and noticing where each of them ends would cost more than what is
done in it. So a budget is a new one only in the turn after that in which half of it was spent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

from pydownpour.limits import DEFAULT, Limits


@final
class Turns:
    """The budget of one turn, shared by all connections of a shard.

    Args:
        limits: ``turn_events_max``, and a connection's ``stream_events_max``.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.limits = limits
        self.number = 0
        """Which budget this is."""
        self.left = limits.turn_events_max
        """Events that are left of it."""
        self._waiting: deque[Callable[[], object]] = deque()
        self._next: asyncio.Handle | None = None

    def later(self, go_on: Callable[[], object]) -> None:
        """Call in a turn to come, in the order of those who wait."""
        self._waiting.append(go_on)
        self.renew()

    async def another(self) -> None:
        reached = asyncio.get_running_loop().create_future()
        self.later(lambda: None if reached.done() else reached.set_result(None))
        await reached

    def renew(self) -> None:
        """The next turn has a budget of its own."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        self.number += 1
        self.left = self.limits.turn_events_max
        for _ in range(len(self._waiting)):
            if self.left <= 0:
                break
            self._waiting.popleft()()
        if self._waiting:
            self.renew()


@final
class Share:
    """One connection's part of each turn."""

    def __init__(self, turns: Turns) -> None:
        self.turns, limits = turns, turns.limits
        self._most, self._half = limits.stream_events_max, limits.turn_events_max // 2
        self._fragment_size = limits.fragment_size
        self._turn, self._taken = -1, 0

    def take(self, received: int = 0) -> bool:
        """Spend one event, and more for many received bytes; False: in another turn."""
        turns = self.turns
        if self._turn != turns.number:
            self._turn, self._taken = turns.number, 0
        if self._taken >= self._most or turns.left <= 0:
            return False
        turns.left -= 1 + received // self._fragment_size
        self._taken += 1
        if turns.left <= self._half or 2 * self._taken >= self._most:
            turns.renew()
        return True
