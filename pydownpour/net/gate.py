"""Who may hold a connection to a server: a decision, told to whoever opens and closes them.

A connection is a *stranger* until it has shown that it is a peer's: a request with the right token.
Strangers never fill more than half of a server: when there are as many, the oldest of the address
that has most of them goes. An honest peer asks at once and is known by then; what waits in silence
is what goes. When all places are taken, a known peer's goes that is between two requests, the one
that rests longest first: its owner opens another when it has something to say. A peer that is in
the middle of something keeps its place.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, TypeVar, final

from pydownpour.limits import DEFAULT, Limits

C = TypeVar("C", bound=Hashable)


@final
class Gate(Generic[C]):
    """The connections of one server.

    Args:
        capacity: How many there may be.
        limits: ``connections_max``, and how many strangers.
    """

    def __init__(self, capacity: int, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self.capacity = max(2, min(capacity, limits.connections_max))
        self._strangers: dict[C, str] = {}
        self._by_address: dict[str, dict[C, None]] = {}
        self._busy: dict[C, None] = {}
        self._resting: dict[C, None] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._busy) + len(self._resting)

    @property
    def strangers(self) -> int:
        """How many have proven nothing."""
        return len(self._strangers)

    @property
    def strangers_max(self) -> int:
        """How many may have proven nothing: half of the places are for known peers."""
        return min(self._limits.strangers_max, self.capacity // 2)

    def enter(self, connection: C, host: str) -> C | None:
        """A new connection from an address.

        Returns:
            The connection to close for it; itself when there is no place; None when there was one.
        """
        address = neighbourhood(host)
        mine = self._by_address.get(address, {})
        if len(mine) >= min(self._limits.strangers_per_address_max, self.strangers_max):
            goes = next(iter(mine))
        elif len(self._strangers) >= self.strangers_max:
            goes = self._least_wanted()
        elif len(self) >= self.capacity:
            if not (self._resting or self._strangers):
                return connection
            goes = next(iter(self._resting)) if self._resting else self._least_wanted()
        else:
            self._add(connection, address)
            return None
        self.leave(goes)
        self._add(connection, address)
        return goes

    def prove(self, connection: C) -> None:
        """Its request was a peer's, and is being served."""
        if connection in self._strangers:
            self._forget(connection)
        elif connection in self._resting:
            del self._resting[connection]
        elif connection not in self._busy:
            return  # it has left
        self._busy[connection] = None

    def rest(self, connection: C) -> None:
        """A known peer's request was answered."""
        if connection in self._busy:
            del self._busy[connection]
            self._resting[connection] = None

    def leave(self, connection: C) -> None:
        """It is closed; once is enough."""
        if connection in self._strangers:
            self._forget(connection)
        self._busy.pop(connection, None)
        self._resting.pop(connection, None)

    def _least_wanted(self) -> C:
        most = max(self._by_address.values(), key=len)
        return next(iter(most))

    def _add(self, connection: C, address: str) -> None:
        self._strangers[connection] = address
        self._by_address.setdefault(address, {})[connection] = None

    def _forget(self, connection: C) -> None:
        address = self._strangers.pop(connection)
        mine = self._by_address[address]
        del mine[connection]
        if not mine:
            del self._by_address[address]


def neighbourhood(host: str) -> str:
    """What counts as one address: an IPv4 address, or the 64 bits of IPv6 that one host has."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def capacity(descriptors_max: int, descriptors_open: int, reserved: int) -> int:
    """Connections that leave the rest of a process the descriptors it needs."""
    free = descriptors_max - descriptors_open
    return max(free - reserved, free // 2, 2)
