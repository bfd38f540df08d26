"""A replica's place in a group. Pure."""

from __future__ import annotations

from pydownpour.policy import Reduction
from pydownpour.policy.reductions import TOPOLOGIES, Place
from pydownpour.wire.messages import Group


def index_of(group: Group, replica: int, incarnation: int) -> int | None:
    """A replica's number in a group's order; None: it is not in it."""
    for index, member in enumerate(group.members):
        if (member.id, member.incarnation) == (replica, incarnation):
            return index
    return None


def place_in(group: Group, index: int, reduction: Reduction, fragments: int) -> Place:
    """The place of one member of a group, among whom so many fragments are added up."""
    listening = sum(bool(member.url) for member in group.members)
    return TOPOLOGIES[reduction.how](index, len(group.members), listening, fragments)
