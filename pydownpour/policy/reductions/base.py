"""What a way to reduce among replicas says: each member's place, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias, final


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Some of the fragments, and their way through one member.

    Attributes:
        number: Of the share, the same at each member.
        fragments: Those of it.
        parent: Whom the member sends its sum of them to. None: the sum of all members is made
            here; this one pushes it to the shards and fetches.
        children: Whose sums of them it gets: in this order they are added to its own gradient.
    """

    number: int
    fragments: range
    parent: int | None
    children: tuple[int, ...]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A member's place in its group.

    Attributes:
        index: Its own, in the group's order.
        shares: Each fragment is in one of them. In this order their sums are made and sent;
            parameters are given down in the reverse order. So what one member sends to another
            comes in the order in which that one goes through its own.
    """

    index: int
    shares: tuple[Share, ...]

    @property
    def parents(self) -> tuple[int, ...]:
        """Whom it calls, ascending."""
        return tuple(sorted({one.parent for one in self.shares if one.parent is not None}))

    @property
    def children(self) -> tuple[int, ...]:
        """Who calls it, ascending."""
        return tuple(sorted({child for one in self.shares for child in one.children}))

    @property
    def own(self) -> tuple[Share, ...]:
        """Those of which the sum of all members is made here."""
        return tuple(one for one in self.shares if one.parent is None)

    @property
    def is_shared(self) -> bool:
        """Several members push a share each: before that they agree whether any does."""
        return len(self.shares) > 1

    def from_child(self, child: int) -> tuple[Share, ...]:
        """Those whose sums a child sends, in its order."""
        return tuple(one for one in self.shares if child in one.children)

    def from_parent(self, parent: int) -> tuple[Share, ...]:
        """Those whose parameters a parent gives, in its order."""
        return tuple(one for one in reversed(self.shares) if one.parent == parent)


Topology: TypeAlias = Callable[[int, int, int, int], Place]
"""(index, members, listening, fragments) -> the member's place. The first ``listening`` members of
a group can be called by others: at least one of two or more. No other can be a parent."""
