"""A ring: every member has the sum of a share of the fragments, pushes it and fetches it.

The members that listen are a ring in their order; each calls the one before it. There are as many
shares of the fragments as members in the ring, and share c is member c's in the end. Its sum begins
behind its owner and goes once around, and its new parameters go back the way the sum came::

    sums of share 1:         0 --> 3 --> 2 --> 1      1 pushes the sum and fetches the parameters
    parameters of share 1:   0 <-- 3 <-- 2 <-- 1      of four members, each three hops

So member i makes and sends sums of the shares i + 1, i + 2, ..., and its own last; the gradients of
share c are added in the order c - 1, c - 2, ..., c. All members send all the time, and no link has
more to do than another. With W bytes of parameters and p members that all listen, of which each
owns W / p::

    a member      sends W - W/p of sums and W - W/p of parameters, and gets as much
    and           pushes W/p to the shards and fetches W/p
    among all     2 (p - 1) W
    each of them  sends (2 - 1/p) W and gets (2 - 1/p) W, the shards' part included

A ring in which each member keeps parameters and optimizer of its own sends 2 (p - 1)/p W a member
(the all-reduce of later practice); here the shards have both, so that what goes around the second
time are parameters, and W/p each way is the price of it. That each owner pushes its own share, and
not one member the whole sum, saves a third way around: a sum that one member shall push has to be
brought there, and everybody waits for that member's link. The shards do not mind: a record is one
fragment's, whoever pushes it, and a push may leave fragments out.

Before anybody pushes, owners say to all others whether their sums are finite, and what their
squares add up to: so a round is pushed whole or not at all, under the norm of the whole sum.

Who only calls others cannot be in the ring, for somebody has to call it. It is a leaf of a member
that is, spread over these: it sends the sums of all shares, W, and gets all parameters, W. One that
listens alone is a ring of one, and all others are its leaves.

Source: the reduction that FireCaffe (Iandola et al., CVPR 2016) sets beside its tree's cost is a
server's; the ring is Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009. Deviations: as above, and sums are sent on fragment by fragment.
"""

from __future__ import annotations

from pydownpour.policy.reductions.base import Place, Share


def place(index: int, count: int, listening: int, fragments: int) -> Place:
    """As many shares as members that listen, as equal as whole fragments can be."""
    ring = max(listening, 1)
    assert ring <= count
    if index >= ring:
        above = (index - ring) % ring
        return Place(
            index,
            tuple(
                Share(one.number, one.fragments, above, ())
                for one in place(above, count, listening, fragments).shares
            ),
        )
    leaves = tuple(range(ring + index, count, ring))
    before, behind = (index - 1) % ring, (index + 1) % ring
    shares = []
    for hop in range(1, ring + 1):
        number = (index + hop) % ring
        part = range(fragments * number // ring, fragments * (number + 1) // ring)
        is_begun, is_own = hop == 1, hop == ring
        children = leaves if is_begun else (behind, *leaves)
        shares.append(Share(number, part, None if is_own else before, children))
    return Place(index, tuple(shares))
