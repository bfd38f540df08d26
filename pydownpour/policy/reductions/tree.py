"""A binary tree: one member has the sum of all, pushes it and fetches.

The members that listen are a binary tree in their order, each below the one with half its number::

    0 ---- 1 ---- 3        0 pushes the sum of all to the shards and fetches;
    |      +----- 4        1 adds its own gradient and the sums of 3 and 4, sends the sum to 0,
    +----- 2 ---- 5        and gives to 3 and 4 the parameters that 0 gave to it

Who only calls others is below one of them: where the tree has a place for it, or else spread over
those that listen. With W bytes of parameters and p members that all listen::

    a member that is not the first    sends W up and gets W down
    for each child                    gets W, and gives W; at most two
    the first                         pushes W to the shards and fetches W
    among all members                 2 (p - 1) W
    the busiest of them               gets 2 W and sends 2 W, and W each way above

Source: Iandola, Moskewicz, Ashraf, Keutzer, "FireCaffe", CVPR 2016, section 5. Deviations: the
parameters and the optimizer stay with the shards; and a sum is sent on fragment by fragment, so
that the levels of the tree work side by side.
"""

from __future__ import annotations

from pydownpour.policy.reductions.base import Place, Share


def parents(count: int, listening: int) -> list[int | None]:
    """Above whom each of ``count`` members is; the first ``listening`` of them listen."""
    assert count == 0 or count == 1 or 1 <= listening <= count
    above: list[int | None] = [None] * min(count, 1)
    for index in range(1, count):
        half = (index - 1) // 2
        above.append(half if half < listening else half % listening)
    return above


def place(index: int, count: int, listening: int, fragments: int) -> Place:
    """All fragments go the same way."""
    above = parents(count, listening)
    children = tuple(child for child, parent in enumerate(above) if parent == index)
    return Place(index, (Share(0, range(fragments), above[index], children),))
