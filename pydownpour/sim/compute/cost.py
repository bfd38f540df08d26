"""What computing costs in virtual time.

*Live*: the user's function runs and computes real gradients; each step is then charged to the
virtual clock. *Timing-only*: nobody computes; steps push a gradient of zeros and cost the same.
Timing-only runs show timing, staleness and faults at any scale; live runs also show whether it
learns.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, final

from pydownpour import config

if TYPE_CHECKING:
    from pydownpour.replica.replica import Replica
    from pydownpour.replica.work import Unit
    from pydownpour.sim.machines.host import Host


@final
@dataclasses.dataclass(frozen=True)
class ComputeModel:
    """Seconds a step takes: (base_s + per_sample_s * samples) * host's slowness * jitter.

    The default is a small network's step on a graphics card: short enough for staleness to matter,
    long enough for a job of some hundred steps to live through a storm of faults.

    Attributes:
        base_s: Per step, whatever its size.
        per_sample_s: Per sample of the minibatch.
        jitter: Standard deviation of a factor drawn per step, normal around 1, at least 0.2.
    """

    base_s: float = 0.05
    per_sample_s: float = 0.0001
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _ = config.real(
                f"compute: {field.name}",
                getattr(self, field.name),
                config.not_negative,
                "it must not be negative",
            )

    def seconds(self, samples: int, slow: float, rng: random.Random) -> float:
        """Virtual seconds of a step over so many samples; ``slow`` is its host's factor."""
        factor = max(0.2, rng.gauss(1.0, self.jitter)) if self.jitter else 1.0
        return (self.base_s + self.per_sample_s * samples) * slow * factor


def charged_samples(unit: Unit | None, samples: int | None) -> int:
    """How many samples a step is charged for: as many as were said, or the last batch's."""
    if samples is not None:
        return samples
    return unit.batch_len if unit is not None else 1


@final
class ChargedReplica:
    """A replica whose steps take virtual time: what the user's function gets in a simulation."""

    def __init__(
        self, replica: Replica, model: ComputeModel, host: Host, rng: random.Random
    ) -> None:
        self._replica, self._model, self._host, self._rng = replica, model, host, rng
        self._unit: Unit | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    async def work(self) -> AsyncIterator[Unit]:
        """As :meth:`Replica.work`."""
        async for unit in self._replica.work():
            self._unit = unit
            yield unit

    def step(
        self,
        gradients: Mapping[str, Any] | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
    ) -> Coroutine[Any, Any, None]:
        """As :meth:`Replica.step`, after the time the gradient took."""
        guard = self._replica._trainer.guard
        return guard.call("step", self._stepping, gradients, loss, samples)

    async def _stepping(
        self, gradients: Mapping[str, Any] | None, loss: float | None, samples: int | None
    ) -> None:
        count = charged_samples(self._unit, samples)
        await asyncio.sleep(self._model.seconds(count, self._host.slow, self._rng))
        await self._replica.step(gradients, loss=loss, samples=samples)
