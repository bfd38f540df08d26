"""When a replica pushes and fetches, if nobody keeps it; and who has work before the others."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, NamedTuple, Protocol, final

from pydownpour.policy.base import ClusterView


class Turn(NamedTuple):
    """What it is time for after a step."""

    push: bool
    fetch: bool
    again: bool = False


class Schedule(Protocol):
    """Says after each step what it is time for.

    Attributes:
        draws: How many random numbers it wants with each step.
    """

    @property
    def draws(self) -> int: ...

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """After step number ``clock`` (the first step is 0)."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Every:
    """Push and fetch each after so many steps (n_push and n_fetch of Dean et al. 2012).

    A push belongs behind step k when ``k % push == 0``, so the first one carries one gradient. A
    fetch belongs before step k when ``k % fetch == 0``, so it is asked for behind the one before.
    ``fetch=0``: never, unless a gate asks for one.
    """

    push: int = 1
    fetch: int = 1
    draws: ClassVar[int] = 0

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """As the class says."""
        return Turn(clock % self.push == 0, self.fetch > 0 and (clock + 1) % self.fetch == 0)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Push and fetch together, behind each block of so many steps."""

    every: int
    draws: ClassVar[int] = 0

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """As the class says."""
        is_end = (clock + 1) % self.every == 0
        return Turn(push=is_end, fetch=is_end)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Thrift:
    """Push and fetch after each step where it is likely to be worth its bytes.

    A gradient or parameters travel when ``r < 1 / (1 + cost / (deviation + eps))``, r drawn alike
    from [0, 1): the more gradients differ, and the less it costs, the more likely. In place of a
    gradient that does not travel the last one is taken again. Odena 2016, section 2.3.

    Attributes:
        push, fetch: The cost of each, in deviations; what costs 0 always travels.
        eps: Keeps the chance above 0 where gradients do not differ at all, > 0.
        deviation: In place of what the view says; None: that.
    """

    push: float
    fetch: float
    eps: float
    deviation: float | None = None

    @property
    def draws(self) -> int:
        """One for each thing that may not travel."""
        return (self.push > 0) + (self.fetch > 0)

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """As the class says."""
        draws = iter(view.draws)
        told = view.deviation if self.deviation is None else self.deviation

        def travels(cost: float) -> bool:
            return cost == 0 or next(draws) < 1 / (1 + cost / (told + self.eps))

        again = not travels(self.push)
        return Turn(push=True, fetch=travels(self.fetch), again=again)


EVERY_STEP: Final = Every()
"""Push and fetch after each."""
PUSH_EVERY_STEP: Final = Every(fetch=0)
"""Push after each; fetch only where a gate asks for it."""


def warm_start(samples: int, replica: int, members: tuple[int, ...], samples_done: int) -> str:
    """The lowest live replica trains alone until ``samples`` are done; as ``Policy.may_lease``."""
    if samples_done >= samples or not members or replica == members[0]:
        return ""
    return (
        f"warm start: replica {members[0]} trains alone, {samples_done} of {samples} samples done"
    )
