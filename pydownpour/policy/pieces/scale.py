"""What a gradient is multiplied by before it is applied or added.

A scale is a description that the core evaluates for each fragment, because only there its staleness
is known. A weight is what one push counts for in a round: a number, from its announcement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, TypeAlias, final


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """What each fragment's gradient is multiplied by: ``factor / max(1, staleness) ** power``."""

    factor: float = 1.0
    staleness_power: float = 0.0


AS_IT_IS: Final = Scale()
"""Times 1, however stale."""


def divided_by(n: float) -> Scale:
    """Times 1 / n, however stale; with plain SGD, the learning rate divided by n."""
    return Scale(factor=1.0 / n)


def by_staleness(power: float = 1.0) -> Scale:
    """Divided by a power of the gradient's own staleness; one of staleness 0 or 1 is as it is."""
    return Scale(staleness_power=power)


Weighing: TypeAlias = Callable[[int], float]
"""The weight of a push, from how many samples its gradient is of; positive and finite."""


def each_the_same(samples: int) -> float:
    """Every push counts for one."""
    return 1.0


def by_samples(samples: int) -> float:
    """A push counts for its samples; one that says it has none counts for one."""
    return float(max(samples, 1))
