"""When a replica pushes and fetches, if nobody keeps it; and who has work before the others."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple, Protocol, final

from pydownpour.policy.base import ClusterView


class Turn(NamedTuple):
    """What it is time for after a step."""

    push: bool
    fetch: bool


class Schedule(Protocol):
    """Says after each step what it is time for."""

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """After step number ``clock`` (the first step is 0)."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Every:
    """Push and fetch each after so many steps (n_push and n_fetch of Dean et al. 2012).

    A push belongs behind step k when ``k % push == 0``, so the first one carries one gradient. A
    fetch belongs before step k when ``k % fetch == 0``, so it is asked for behind the one before.
    """

    push: int = 1
    fetch: int = 1

    def turn(self, clock: int, view: ClusterView) -> Turn:
        """As the class says."""
        return Turn(clock % self.push == 0, (clock + 1) % self.fetch == 0)


EVERY_STEP: Final = Every()
"""Push and fetch after each."""


def warm_start(samples: int, replica: int, members: tuple[int, ...], samples_done: int) -> str:
    """The lowest live replica trains alone until ``samples`` are done; as ``Policy.may_lease``."""
    if samples_done >= samples or not members or replica == members[0]:
        return ""
    return (
        f"warm start: replica {members[0]} trains alone, {samples_done} of {samples} samples done"
    )
