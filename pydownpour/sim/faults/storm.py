"""A fault plan at work in one world.

A job lives through anything that happens to a replica, to the network, and to a shard or the
coordinator that stands still or is cut off: they are waited for. It does not live through the death
of a shard or of the coordinator: the plan ``doom`` does that, and demands that it ends in words.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Final, final

from pydownpour.limits import DEFAULT
from pydownpour.sim.faults.kinds import FAULTS
from pydownpour.sim.faults.plans import Dose, FaultPlan
from pydownpour.sim.faults.scene import Scene
from pydownpour.sim.world.cluster import Cluster

APART_SHARE: Final = 0.3
"""Of a drawn plan's worlds that get a dose drawn apart."""
DOOM_S: Final = 2 * DEFAULT.join_patience_s
"""Everybody gives up on a dead coordinator within one patience, plus a request's time limit."""


@final
class Storm:
    """A plan at work in one world."""

    def __init__(self, plan: FaultPlan, world: Cluster) -> None:
        self.plan, self.world = plan, world
        self.scene = Scene(world)
        self.doses = [(dose, self.scene) for dose in self._taken(plan.doses, self.scene)]
        for number, dose in enumerate(plan.apart):
            apart = Scene(world, f"faults apart {number}")
            if apart.rng.random() < APART_SHARE:
                self.doses += [(one, apart) for one in self._taken((dose,), apart)]
        self._strikes: dict[asyncio.Task[None], None] = {}

    def _taken(self, doses: tuple[Dose, ...], scene: Scene) -> tuple[Dose, ...]:
        return drawn(doses, scene.rng) if self.plan.is_drawn else doses

    async def play(self) -> None:
        """Storm, heal, and fail the world if it is not done in time."""
        plan, world = self.plan, self.world
        doses = [asyncio.create_task(self._dose(*dose)) for dose in self.doses]
        try:
            await asyncio.sleep(plan.storm_s)
        finally:
            ends = await self._stop([*doses, *self._strikes])
        self.scene.heal()
        for end in ends:
            if isinstance(end, Exception):
                raise end
        await (asyncio.sleep(DOOM_S) if plan.is_doom else self._while_it_moves())
        within_s = DOOM_S if plan.is_doom else plan.settle_s
        world.fail(
            f"{'not done' if plan.is_doom else 'no progress'} within {within_s:g} virtual seconds "
            f"{'after the last fault was healed' if self.doses else ''}; "
            f"alive: {', '.join(world.processes.live) or 'nobody'}"
        )

    async def _while_it_moves(self) -> None:
        """As long as every ``settle_s`` brings something: a job may have a lot of work left."""
        before: object = None
        while (now := self.world.progress()) != before:
            before = now
            await asyncio.sleep(self.plan.settle_s)

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def _dose(self, dose: Dose, scene: Scene) -> None:
        while True:
            await asyncio.sleep(scene.rng.expovariate(1 / dose.every_s))
            strike = asyncio.create_task(self._strike(dose, scene))
            self._strikes[strike] = None
            strike.add_done_callback(self._struck)

    def _struck(self, strike: asyncio.Task[None]) -> None:
        if not strike.cancelled() and strike.exception() is None:
            self._strikes.pop(strike)  # one that failed is kept for ``play`` to raise

    async def _strike(self, dose: Dose, scene: Scene) -> None:
        hosts = scene.targets(dose.targets)
        if hosts:
            target, seconds = scene.rng.choice(hosts), scene.rng.uniform(*dose.for_s)
            await FAULTS[dose.fault](scene, target, seconds)


def drawn(doses: tuple[Dose, ...], rng: random.Random) -> tuple[Dose, ...]:
    """About half of the doses, at least one; each up to four times as often, rare and long."""
    some = [dose for dose in doses if rng.random() < 0.5] or [rng.choice(doses)]
    longer = rng.choice((1.0, 1.0, 2.0, 4.0))
    return tuple(
        dataclasses.replace(
            dose,
            every_s=dose.every_s * 4 ** rng.uniform(-1, 1),
            for_s=(dose.for_s[0], dose.for_s[1] * longer),
        )
        for dose in some
    )
