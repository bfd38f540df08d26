"""What peers may make a shard do in one turn of its event loop.

An announcement of a hundred bytes costs a decision and an answer, and three thousand of them come
with one read. Whoever has spent a turn's budget goes on in the next turn, behind those that wait
already: so a turn is short whatever peers send, and what the shard does for itself (its heartbeats)
never queues behind them.
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
        """Which turn it is, of those in which anything happens."""
        self._left = limits.turn_events_max
        self._fragment_size = limits.fragment_size
        self._waiting: deque[Callable[[], object]] = deque()
        self._next: asyncio.Handle | None = None

    def take(self, received: int = 0) -> bool:
        """Spend one event, and more for many received bytes; False when this turn has no more."""
        if self._left <= 0:
            return False
        self._left -= 1 + received // self._fragment_size
        if self._next is None:
            self._come_again()
        return True

    def later(self, go_on: Callable[[], object]) -> None:
        """Call in a turn to come, in the order of those who wait."""
        self._waiting.append(go_on)
        self._come_again()

    async def another(self) -> None:
        reached = asyncio.get_running_loop().create_future()
        self.later(lambda: None if reached.done() else reached.set_result(None))
        await reached

    def _come_again(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        self.number += 1
        self._left = self.limits.turn_events_max
        for _ in range(len(self._waiting)):
            if self._left <= 0:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._come_again()


@final
class Share:
    """One connection's part of each turn."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self._most = turns, turns.limits.stream_events_max
        self._turn, self._taken = -1, 0

    def take(self, received: int = 0) -> bool:
        """Spend one event, and more for many received bytes; False: in another turn."""
        turns = self.turns
        if self._turn != turns.number:
            self._turn, self._taken = turns.number, 0
        if self._taken >= self._most or not turns.take(received):
            return False
        self._taken += 1
        return True
