"""Ways in which replicas add up gradients among themselves: who sends what to whom. Pure.

    base.py     a member's place in its group, as data
    tree.py     a binary tree: one member has the sum of all, pushes it and fetches
    ring.py     a ring: every member has the sum of a share of the fragments

Each is a function that says a member's place; replicas (``replica/reduction/``) obey it.
"""

from __future__ import annotations

from typing import Final

from pydownpour.policy.reductions import ring, tree
from pydownpour.policy.reductions.base import Place, Share, Topology

TOPOLOGIES: Final[dict[str, Topology]] = {"tree": tree.place, "ring": ring.place}
"""By the name that a policy's ``reduce`` has."""

__all__ = ["TOPOLOGIES", "Place", "Share", "Topology"]
