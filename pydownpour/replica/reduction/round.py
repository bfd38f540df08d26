"""One round at one member: what has come, what can be added, what is whole. Pure.

A sum goes on fragment by fragment: one can be added when the member's own gradient is here and
each child's sum of it has come. Children send their shares one after the other, and the fragments
of each in order, so how many says which.
"""

from __future__ import annotations

from typing import final

from pydownpour.policy.reductions import Place, Share


@final
class Round:
    """What a member knows of the round it is in.

    Args:
        number: Of the group's rounds, from 1.
        place: The member's.
    """

    def __init__(self, number: int, place: Place) -> None:
        self.number, self._place = number, place
        self._landed = dict.fromkeys(place.children, 0)
        self._before: dict[tuple[int, int], int] = {}
        """(child, share) -> the fragments that this child sends before the share's."""
        for child in place.children:
            count = 0
            for share in place.from_child(child):
                self._before[child, share.number] = count
                count += len(share.fragments)
        self._whole: dict[tuple[int, int], tuple[int, int]] = {}
        self._has_own = False
        self._added = {share.number: 0 for share in place.shares}

    def give(self) -> None:
        """The member's own gradient is here."""
        self._has_own = True

    def landed(self, child: int, count: int) -> None:
        """So many fragments of a child's sums have come."""
        assert self._landed[child] <= count
        self._landed[child] = count

    def whole(self, child: int, share: int, gradients: int, samples: int) -> None:
        """A child's sum of a share is whole, and it is the sum of so much."""
        self._whole[child, share] = gradients, samples

    def ready(self, share: Share) -> range:
        """The fragments of a share that can be added now."""
        if not self._has_own:
            return range(0)
        count = len(share.fragments)
        for child in share.children:
            count = min(count, self._landed[child] - self._before[child, share.number])
        return share.fragments[self._added[share.number] : max(count, 0)]

    def add(self, share: Share, fragments: range) -> None:
        """Their sums are made."""
        added = self._added[share.number]
        assert not fragments or fragments.start == share.fragments.start + added
        self._added[share.number] = added + len(fragments)

    def is_summed(self, share: Share) -> bool:
        """The sum of a share is made, of the member's own gradient and of all below it."""
        is_added = self._added[share.number] == len(share.fragments)
        return self._has_own and is_added and not self._missing(share)

    def totals(self, share: Share, gradients: int, samples: int) -> tuple[int, int]:
        """(gradients, samples) in that sum; the member's own are given."""
        for child in share.children:
            more = self._whole[child, share.number]
            gradients, samples = gradients + more[0], samples + more[1]
        return gradients, samples

    def _missing(self, share: Share) -> list[int]:
        return [child for child in share.children if (child, share.number) not in self._whole]

    @property
    def missing(self) -> list[int]:
        """Children of whose sums some are not whole, ascending."""
        return sorted({child for share in self._place.shares for child in self._missing(share)})
