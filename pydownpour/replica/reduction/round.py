"""One round at one member: what has come, what can be added, what is whole. Pure.

A sum goes on fragment by fragment: one can be added when the member's own gradient is here and each
child's sum of it has come. Children send fragments in order, so how many says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final


@final
class Round:
    """What a member knows of the round it is in.

    Args:
        number: Of the group's rounds, from 1.
        fragments: Of the layout.
        children: Places of those whose sums it gets.
    """

    def __init__(self, number: int, fragments: int, children: Sequence[int]) -> None:
        self.number, self.fragments = number, fragments
        self._landed = dict.fromkeys(children, 0)
        self._whole: dict[int, tuple[int, int]] = {}
        self._has_own = False
        self.added = 0
        """Fragments whose sum is made: those before this one."""

    def give(self) -> None:
        """The member's own gradient is here."""
        self._has_own = True

    def landed(self, child: int, count: int) -> None:
        """So many fragments of a child's sum have come."""
        assert self._landed[child] <= count <= self.fragments
        self._landed[child] = count

    def whole(self, child: int, gradients: int, samples: int) -> None:
        """A child's sum is whole, and it is the sum of so much."""
        assert self._landed[child] == self.fragments
        self._whole[child] = gradients, samples

    def ready(self) -> range:
        """The fragments that can be added now."""
        if not self._has_own:
            return range(0)
        return range(self.added, min(self._landed.values(), default=self.fragments))

    def add(self, fragments: range) -> None:
        """Their sums are made."""
        assert fragments.start == self.added
        self.added = max(self.added, fragments.stop)

    @property
    def is_summed(self) -> bool:
        """The sum of its whole subtree is made."""
        return self.added == self.fragments and len(self._whole) == len(self._landed)

    def totals(self, gradients: int, samples: int) -> tuple[int, int]:
        """(gradients, samples) of the subtree; the member's own are given."""
        for of_child in self._whole.values():
            gradients, samples = gradients + of_child[0], samples + of_child[1]
        return gradients, samples

    @property
    def missing(self) -> list[int]:
        """Places of children whose sums are not whole."""
        return [child for child in self._landed if child not in self._whole]
