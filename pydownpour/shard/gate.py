"""When an answer may go out: not before what it acknowledges is as safe as the job asks.

A shard's journal takes records in the order of their LSNs and somewhere else makes them durable:
written, synced, copied. What comes back is one number, up to which everything is. An answer that
acknowledges records waits here until that number has passed theirs; at the level ``memory`` none
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from pydownpour import _core
from pydownpour.errors import ConfigError
from pydownpour.wire.messages import LEVELS, Level

EVERY_LSN: Final = 2**64 - 1
"""The largest number that the core has for an LSN: everything is durable."""


@final
class AckGate:
    """Holds back what is not durable yet.

    Args:
        level: What durable means here. ``memory``: everything is at once.
        journal: Where the shard's records go before they are visible; None at level ``memory``.

    Attributes:
        durable_lsn: Everything up to this LSN is as safe as the level says.
        waiting: Who is to be called when it has moved, and how. Each takes itself out.
        on_base: Called where a shard goes on from the state of another process, with its LSN: the
            journal begins with that state, and says when it is durable, as of everything.
    """

    def __init__(self, level: Level = "memory", journal: _core.Journal | None = None) -> None:
        self.level, self.journal = level, journal
        self.rank = LEVELS.index(level)
        """The level's number, as acknowledgements say it."""
        self.durable_lsn = EVERY_LSN if level == "memory" else 0
        self.waiting: dict[object, Callable[[], object]] = {}
        self.on_base: Callable[[int], object] = lambda lsn: None

    def check(self, asked: Level) -> None:
        """Whether acknowledgements here are worth what a job asks for.

        Raises:
            ConfigError: less.
        """
        if self.rank < LEVELS.index(asked):
            raise ConfigError(
                f"the job asks for the level {asked} of durability, and this shard has "
                f"{self.level}: nothing that it acknowledges would be safe enough; give it a "
                "journal of that level, or ask for less"
            )

    def passed(self, lsn: int) -> None:
        """Everything up to ``lsn`` is durable now; an older number says nothing new."""
        if lsn > self.durable_lsn:
            self.durable_lsn = lsn
            for release in list(self.waiting.values()):
                release()

    def words(self, lsn: int) -> str:
        """What an answer waits for."""
        return f"the shard's journal: LSN {lsn} is not {self.level} yet, {self.durable_lsn} is"

    async def reached(self, lsn: int) -> None:
        """Wait until everything up to ``lsn`` is durable."""
        if lsn <= self.durable_lsn:
            return
        moved = asyncio.Event()
        self.waiting[moved] = moved.set
        try:
            while lsn > self.durable_lsn:
                moved.clear()
                await moved.wait()
        finally:
            del self.waiting[moved]
