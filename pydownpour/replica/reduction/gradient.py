"""A member's own gradient, until every fragment has it, or it is given up. Pure.

A group may end in the middle of a round: its first member died when it had pushed the sum of some
fragments. Then the same gradients are added up in the next group, and no fragment may have one of
them twice. What makes that certain is one order of things at each shard:

    1. In a new group each member asks all shards for what is new, and says in which group it is.
    2. From then on a shard takes nothing of older groups, not even the rest of what has begun.
    3. The member sees what was applied by then, and only then gives its gradient.

So no sum of the new group can be pushed before all of its members have looked, and what they saw is
the same for all of them. A fragment that has changed since the gradient's base was changed by a sum
of a group from its first one to this one; was the member in all of them, that sum held the
gradient. So it gives zeros there, and the gradient itself elsewhere. Was it left out in between,
nobody can say whether the sum was one of those without it, and the gradient is given up: its unit
is lent again by another lease, as that of a replica that died. The old lease ends, for what was
applied by it may be there.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from pydownpour.replica.pushes import Push

Verdict: TypeAlias = Literal["give", "done", "lost"]


@final
class Gradient:
    """One gradient of this member.

    Args:
        push: It, as it is kept.

    Attributes:
        first: The first group that it was given to; 0: none.
        missing: By fragment: it has not this gradient yet.
    """

    def __init__(self, push: Push) -> None:
        self.push = push
        self.first = 0
        self.missing: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._base: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def joins(self, number: int, since: int, versions: NDArray[np.uint64]) -> Verdict:
        """It is to be given to a group's next round.

        Args:
            number: Of the group.
            since: The member has been in each group since that one; 0: it is not in this one.
            versions: Of all fragments, as the shards have them while no sum of this group is on
                its way.

        Returns:
            "give" what is ``missing``; "done" if every fragment has it; "lost" if nobody can say.
        """
        if self.first and not 0 < since <= self.first:
            return "lost"
        if not self.first:
            self.first, self._base = number, versions.copy()
        self.missing = versions == self._base
        return "give" if self.missing.any() else "done"
