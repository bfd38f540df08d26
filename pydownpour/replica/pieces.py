"""How many records one POST carries."""

from __future__ import annotations

from typing import Final, final

from pydownpour.limits import DEFAULT, Limits

RECORDS_MAX: Final = 128
"""Records announced at once, over either transport: 32 MiB of float32."""


@final
class Pieces:
    """As many records as move in about ``piece_s``; pure.

    What a body that broke on its way achieved is not known, and all of it is sent again. So bodies
    begin with one record, grow while they are quick, and shrink on a slow link or a bad one. What a
    proxy refuses for its size is never tried again.

    Args:
        record_size: Bytes of the longest record's frame.
        limits: ``piece_s``, ``post_piece_size_max``.

    Attributes:
        count: Records in the next body, at most.
    """

    def __init__(self, record_size: int, limits: Limits = DEFAULT) -> None:
        self.record_size, self._limits = record_size, limits
        self._count_max = max(1, min(RECORDS_MAX, self._limits.post_piece_size_max // record_size))
        self.count = 1

    def sent(self, records: int, seconds: float) -> None:
        """A body of so many records was answered in so many seconds."""
        fitting = int(records * self._limits.piece_s / max(seconds, 1e-6))
        # The short end of a push, quick as it is, says nothing about long bodies.
        if records >= self.count or seconds > self._limits.piece_s:
            self.count = self._bounded(min(fitting, 2 * records))

    def broke(self) -> None:
        """A connection broke under a body, or nothing of it moved for too long."""
        self.count = self._bounded(self.count // 4)

    def refused(self, records: int) -> bool:
        """Something refused a body of so many records for its size. False: it was a single one."""
        if records <= 1:
            return False
        self._count_max = records // 2
        self.count = self._bounded(self._count_max)
        return True

    def _bounded(self, count: int) -> int:
        return max(1, min(count, self._count_max))
