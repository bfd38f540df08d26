"""What a bad network does to the bytes of one direction."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Final, TypeAlias, final

from pydownpour.errors import ConfigError

Extent: TypeAlias = tuple[int, int]
"""From and to, both included; each connection draws its own number of bytes."""

PIECES_MAX: Final = 10_000
"""One chunk is never cut into more pieces than that."""


@final
@dataclasses.dataclass(frozen=True)
class Faults:
    """Faults of one direction of every connection. The default does nothing.

    Attributes:
        latency_s: Seconds a byte takes; it delays, it does not slow down.
        jitter: Each chunk's latency is drawn from latency_s * (1 +- jitter); order is kept.
        bytes_per_s: The rate.
        slice_max: Chunks are cut into pieces of 1 to so many bytes, sent one by one; 0: not cut.
        reset_after: Both ends see a reset after so many bytes of this direction.
        silent_after: After so many bytes nothing of either direction arrives any more, and nobody
            is told: the connection is half-open.
        corrupt_every: One bit flips about every so many bytes; 0: never.
        spare: The first bytes of a connection, which are never corrupted. HTTP headers carry no
            checksum of their own.

    Raises:
        ConfigError: a bound is broken; the message names it.
    """

    latency_s: float = 0.0
    jitter: float = 0.0
    bytes_per_s: float = math.inf
    slice_max: int = 0
    reset_after: Extent | None = None
    silent_after: Extent | None = None
    corrupt_every: int = 0
    spare: int = 0

    def __post_init__(self) -> None:
        bounds = {
            "latency_s": 0 <= self.latency_s < math.inf,
            "jitter": 0 <= self.jitter <= 1,
            "bytes_per_s": self.bytes_per_s > 0,
            "slice_max": self.slice_max >= 0,
            "reset_after": _is_extent(self.reset_after),
            "silent_after": _is_extent(self.silent_after),
            "corrupt_every": self.corrupt_every >= 0,
            "spare": self.spare >= 0,
        }
        for name, holds in bounds.items():
            if not holds:
                raise ConfigError(f"Faults({name}={getattr(self, name)!r}) is out of bounds")


def _is_extent(extent: Extent | None) -> bool:
    return extent is None or 0 <= extent[0] <= extent[1]


@final
class Damage:
    """Faults at work in one direction of one connection.

    Attributes:
        corrupted: Bits flipped so far.
    """

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.faults, self._rng = faults, rng
        self.corrupted = 0
        self._passed = 0
        self._reset_at = _drawn(faults.reset_after, rng)
        self._silent_at = _drawn(faults.silent_after, rng)
        self._flip_at = self._next_flip(faults.spare) if faults.corrupt_every else math.inf
        self._free_at = 0.0
        self._due = 0.0

    def apply(self, data: bytes) -> tuple[bytes, str]:
        """What of a chunk gets through, and what happens behind it: "", "reset" or "silent"."""
        room = min(self._reset_at, self._silent_at) - self._passed
        fate = ""
        if len(data) >= room:
            fate = "reset" if self._reset_at <= self._silent_at else "silent"
            data = data[: int(room)]
        data = self._corrupt(data)
        self._passed += len(data)
        return data, fate

    def due(self, now: float, size: int) -> float:
        """When a chunk that came now has arrived."""
        faults = self.faults
        self._free_at = max(self._free_at, now) + size / faults.bytes_per_s
        latency_s = faults.latency_s * self._rng.uniform(1 - faults.jitter, 1 + faults.jitter)
        self._due = max(self._due, self._free_at + latency_s)
        return self._due

    def pieces(self, data: bytes) -> list[bytes]:
        """A chunk as it is sent: whole, or cut."""
        size_max = max(self.faults.slice_max, -(-len(data) // PIECES_MAX))
        if not self.faults.slice_max or len(data) <= 1:
            return [data]
        found, start = [], 0
        while start < len(data):
            stop = start + self._rng.randint(1, size_max)
            found.append(data[start:stop])
            start = stop
        return found

    def _corrupt(self, data: bytes) -> bytes:
        end = self._passed + len(data)
        if self._flip_at >= end:
            return data
        changed = bytearray(data)
        while self._flip_at < end:
            changed[int(self._flip_at) - self._passed] ^= 1 << self._rng.randrange(8)
            self.corrupted += 1
            self._flip_at = self._next_flip(self._flip_at)
        return bytes(changed)

    def _next_flip(self, after: float) -> float:
        return after + 1 + int(self._rng.expovariate(1 / self.faults.corrupt_every))


def _drawn(extent: Extent | None, rng: random.Random) -> float:
    return math.inf if extent is None else rng.randint(*extent)
