"""Every copy of the parameters that a replica holds, with its reason; and how pushes share theirs.

    what          bytes an element  why                                             where
    parameters    4                 what the user reads and local steps move        LocalCopy
    staging       4                 where a fetch lands while the user computes     Fetcher
    push          the wire dtype's  kept until settled, to be sent again; one for   PushMemory
                                    each push that may be in flight
    spare push    the wire dtype's  only if it is small (push_spare_size_max): the  PushMemory
                                    next one on its way while the window is full
    sum           4                 only if gradients wait for a push: what is      Accrual
                                    accrued while the last push is on its way
    residual      4                 only with a codec: what earlier pushes lacked   Encoder
    gradient      4                 only with a codec: what a refusal gives back    EncodedPush
    anchor        4                 only if a landing keeps the copy's own          LocalCopy
                                    progress: what the last fetch brought
                                    or, of deltas, what the next one is counted from
    state         4 a plane         only if the replica trains by itself, and its   LocalOptimizer
                                    optimizer keeps any: momentum 1, Adam 2
    since         4                 only if a landing redoes the copy's own steps:  LocalCopy
                                    those since a fetch was asked for
    group's sum   4                 only if replicas reduce among themselves: what  Member
                                    goes on to another, or is pushed here
    child's sum   4                 the same, one for each child: of at most two    Child
                                    in a tree and one in a ring, if all listen
    pushed sum    4                 the same, at a tree's first or each of a ring   Means
    other dtypes  the array's       only of arrays that are not float32             LocalCopy
    rows' moments 8 for each        only of a weight matrix whose gradient is       NaturalGradient
                  direction and     natural: rank times width, of its inputs and
                  element of a row  of their derivatives; the loop's own

So a replica that pushes after each step holds three times its parameters, one that accrues four
times, and one that trains by itself four times and its optimizer's state. The user's own arrays,
and what they compute with, come on top; nothing keeps a gradient once ``step`` has returned.
"""

from __future__ import annotations

from collections import deque
from typing import final

from pydownpour.limits import DEFAULT, Limits
from pydownpour.replica.encoded import EncodedPush, Encoder
from pydownpour.replica.pushes import Push


@final
class PushMemory:
    """Memory of encoded pushes, used again; of the user's thread.

    Args:
        encoder: Makes it.
        in_flight_max: Pushes that may be in flight.
        limits: How large a push may be for one to spare.
    """

    def __init__(self, encoder: Encoder, in_flight_max: int, limits: Limits = DEFAULT) -> None:
        self._encoder = encoder
        spare = 1 if encoder.size <= limits.push_spare_size_max else 0
        self._count_max = in_flight_max + spare
        self._held: deque[tuple[EncodedPush, Push | None]] = deque()
        """Memory, and the push that is in it; the oldest first."""

    def take(self) -> tuple[EncodedPush, Push | None]:
        """Memory for a push, and the push whose records must be acknowledged before it is written.

        That of a push that was refused is not used again: a connection may still be reading it.
        """
        while self._held:
            room, before = self._held[0]
            if before is not None and not before.is_settled and len(self._held) < self._count_max:
                break
            _ = self._held.popleft()
            if before is None or not before.refused:
                return room, None if before is None or before.is_settled else before
        return self.fresh(), None

    def fresh(self) -> EncodedPush:
        """Memory that no push is in."""
        return self._encoder.room()

    def keep(self, room: EncodedPush, push: Push | None) -> None:
        """It holds a push now, or nothing that is needed."""
        if push is None:
            self._held.appendleft((room, None))
        else:
            self._held.append((room, push))
