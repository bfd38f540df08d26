"""A machine of a world: its address, its link, its power and its disk."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from pydownpour.errors import ConfigError

if TYPE_CHECKING:
    from pydownpour.sim.disk.disk import SimDisk


@final
@dataclasses.dataclass(frozen=True)
class LinkModel:
    """How a host's network behaves.

    Attributes:
        latency_s: Mean one-way latency between two hosts.
        jitter: Each message's latency is drawn from latency_s * (1 +- jitter), uniformly.
        bytes_per_s: Of the host's own link, out of it; and into it, unless the next says more.
        down_bytes_per_s: Into the host; 0 for as much as out of it.
        slices_max: A message may arrive in up to so many pieces, as TCP is free to do.
    """

    latency_s: float = 0.0005
    jitter: float = 0.5
    bytes_per_s: float = 1e9
    down_bytes_per_s: float = 0.0
    slices_max: int = 1

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and 0 <= self.jitter <= 1):
            raise ConfigError(f"{self}: latency_s must not be negative, and jitter from 0 to 1")
        if not (self.bytes_per_s > 0 and self.down_bytes_per_s >= 0 and self.slices_max >= 1):
            raise ConfigError(f"{self}: bytes_per_s must be positive, and slices_max at least 1")

    @property
    def down(self) -> float:
        """Bytes a second into the host."""
        return self.down_bytes_per_s or self.bytes_per_s


@final
class Host:
    """A machine: an address, a link, and the processes on it."""

    def __init__(self, name: str, address: str, link: LinkModel) -> None:
        self.name, self.address, self.link = name, address, link
        self.up_free_at = 0.0
        self.down_free_at = 0.0
        self.clock_offset_s = 0.0
        self.clogged_until = 0.0
        """Nothing leaves or reaches it before."""
        self.slow = 1.0
        """Its processes compute this much slower."""
        self.passes_upgrade = True
        """False: a proxy before it takes the Upgrade header out of its requests."""
        self.is_up = True
        """False after a power cut, until a process starts on it again."""
        self.disk: SimDisk | None = None
