"""Fault plans as data."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pydownpour.sim.world import World


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """What goes wrong in a run."""

    name: str = "calm"

    async def play(self, world: World) -> None:
        """Inject everything, then heal."""
        await asyncio.sleep(0)
