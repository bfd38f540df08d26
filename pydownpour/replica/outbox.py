"""Pushes that have no definite answer yet, and what became of those that have.

A push is given to every shard's link when it is posted, and kept until each of them has an answer
for all its records. Its bytes are the outbox's as long as it is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, final

from pydownpour.histogram import Histogram
from pydownpour.replica.pushes import Push
from pydownpour.replica.standing import Standing, Until


class Way(Protocol):
    """Where pushes go: a link to a shard, or the other replicas that this one reduces with.

    Attributes:
        on_answered: Called with a push of which something is answered for.
    """

    on_answered: Callable[[Push], object]

    def push(self, push: Push) -> None:
        """Take a push; adds its portions to it."""


@final
class Outbox:
    """All of a replica's pushes; on the session's loop.

    Args:
        ways: One to each shard, or one for all of them.
        standing: Told of each answer.

    Attributes:
        open: Pushes without a definite answer from every shard, by index, oldest first.
        settled: Pushes that have one. The user's thread reads it.
        acked, refused: Those that were applied; those of which a shard refused records.
        silent: Pushes that had nothing to say and were not sent.
        records_left_out, payload_bytes: Fragments of which nothing was to be said, and what the
            records of the others carry, without headers and however often they are sent.
        repeated: Those applied, of which a shard took an earlier gradient again.
        refused_in_a_row: Pushes not applied since the last one that was; and why the last was not.
        staleness: Of those that were applied.
        not_applied: Lease -> why a gradient of its unit was not applied, until the unit is
            reported; "" if that is the policy's way and nobody's fault.
        on_push: An observer: called with each push that the links have taken. Checks count on it.
    """

    def __init__(self, ways: Sequence[Way], standing: Standing) -> None:
        self._ways, self._standing = ways, standing
        self.open: dict[int, Push] = {}
        self.settled = 0
        self.acked = self.repeated = self.silent = self.refused = self.refused_in_a_row = 0
        self.records_left_out = self.payload_bytes = 0
        self.last_refusal = ""
        self.staleness = Histogram()
        self.not_applied: dict[int, str] = {}
        self.on_push: Callable[[Push], object] = lambda push: None
        self._refused: list[Push] = []
        self._newest = 0
        """The newest push we were given."""
        for way in ways:
            way.on_answered = self.answered

    def push(self, push: Push) -> None:
        """Send a push to every shard in the background. Its buffer is ours until settled.

        One that cannot be sent is settled at once, in its turn: nobody has applied it. So is one
        that has nothing to say: all of its gradient is in the residual, as a part of every other's
        is, and what is said of it later is applied with a later push.
        """
        self._newest = push.index
        if push.reason:
            self._settled(push)
            return
        push.open_portions = len(self._ways)
        self.open[push.index] = push
        for way in self._ways:
            way.push(push)
        push.is_silent = push.open_portions == 0
        self.records_left_out += len(push.encoded.left_out)
        self.payload_bytes += push.encoded.payload_size
        self.on_push(push)
        if push.is_silent:
            self.answered(push)

    def answered(self, push: Push) -> None:
        """A shard has answered for some of it."""
        if push.open_portions == 0:
            if self.open.pop(push.index, None) is not None:
                self._settled(push)
        else:
            self._standing.changed()

    def _settled(self, push: Push) -> None:
        self.settled += 1
        if push.reason:
            self.refused += push.refused > 0
            self.refused_in_a_row += 1
            self.last_refusal = push.reason
            words = "" if push.by_policy else push.reason
            for lease in push.leases:
                self.not_applied[lease] = self.not_applied.get(lease) or words
        elif push.is_silent:
            self.silent += 1
        else:
            self.acked += 1
            self.repeated += push.repeated > 0
            self.refused_in_a_row = 0
            self.staleness.add(push.staleness)
        push.is_settled = True
        if push.unused_fragments and push.encoded.gradient is not None:
            encoded = push.encoded
            if len(push.unused_fragments) + len(encoded.left_out) == encoded.fragments:
                push.unused_fragments += encoded.left_out  # nothing of its gradient counts
            self._refused.append(push)
        self._standing.changed()

    def take_not_applied(self) -> Iterator[Push]:
        """Pushes whose refused fragments have something to give back; of the user's thread."""
        while self._refused:
            yield self._refused.pop(0)

    def is_settled(self, index: int) -> bool:
        """True when every push up to ``index`` was made and has a definite answer."""
        return index <= self._newest and next(iter(self.open), index + 1) > index

    def all_settled(self, index: int) -> Until:
        """Every push up to ``index`` was made and answered for by every shard."""
        return Until(self._standing, functools.partial(self.is_settled, index))

    def in_flight(self, at_most: int) -> Until:
        """At most so many pushes are open."""
        return Until(self._standing, lambda: len(self.open) <= at_most)
