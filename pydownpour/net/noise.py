"""What strangers make a server say: at most one line an address and minute, whatever they send.

A request of thirty bytes that costs a line of a log is a way to fill a disk. So whatever a peer did
wrong is said once, and what comes in the same minute is counted and said with the next line.
"""

from __future__ import annotations

import logging
from typing import final

from pydownpour.limits import DEFAULT, Limits

OTHERS = "others"
"""Addresses beyond those that are watched one by one."""


@final
class Noise:
    """Decides which lines are written. Pure: told the time."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._quiet_until: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    @property
    def line_len_max(self) -> int:
        """Characters of a line; the rest is cut off."""
        return self._limits.noise_line_len_max

    def count(self, address: str, now: float) -> int | None:
        """Something went wrong with an address.

        Returns:
            None: say nothing. Else how many were not said since the last line about it.
        """
        if address not in self._quiet_until:
            address = self._room_for(address, now)
        if now < self._quiet_until.get(address, now):
            self._suppressed[address] = self._suppressed.get(address, 0) + 1
            return None
        self._quiet_until[address] = now + self._limits.noise_s
        return self._suppressed.pop(address, 0)

    def _room_for(self, address: str, now: float) -> str:
        known = self._quiet_until
        if len(known) < self._limits.noise_addresses_max:
            return address
        for old in [old for old, until in known.items() if until <= now]:
            del known[old]
            self._suppressed.pop(old, None)
        return address if len(known) < self._limits.noise_addresses_max else OTHERS


def say(log: logging.Logger, noise: Noise, address: str, now: float, words: str) -> None:
    """Write the line, if it is time for one."""
    more = noise.count(address, now)
    if more is not None:
        log.warning(
            "%s%s",
            one_line(words, noise.line_len_max),
            f" ({more} more like it were not said)" if more else "",
        )


def one_line(words: str, len_max: int) -> str:
    """Words of others, safe for a log: no control characters, no more than a line."""
    clipped = words[:len_max]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in clipped)
