"""What happened in a run, in order, and a hash of it.

Two runs are the same run if their hashes are equal. An event is its virtual time, what happened,
who was concerned, and a number; nothing that differs between machines or interpreters goes in.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Final, TypeAlias, final

_EVENT: Final = struct.Struct("<dIIQ")
HASH_DIGITS: Final = 16

Event: TypeAlias = tuple[float, str, str, int]
"""Virtual seconds, what, who, and a number: a message's bytes, a process's or fault's number."""


def line(now: float, kind: str, who: str, number: int) -> str:
    """An event for people; the columns of all events align."""
    return f"{now:12.6f}  {kind:<10}  {who:<28}  {number}"


@final
class Trace:
    """The running hash of a simulation's events.

    Args:
        on_line: Called with one aligned line per event; None keeps only the hash.
        keep: Remember events, to show the first that differs between two runs.
    """

    def __init__(self, on_line: Callable[[str], None] | None = None, *, keep: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=HASH_DIGITS // 2)
        self._on_line = on_line
        self._names: dict[str, int] = {}
        self.events = 0
        self.messages = 0
        self._closed = False
        self.kept: list[Event] | None = [] if keep else None

    def message(self, now: float, path: str, path_id: int, size: int) -> None:
        """Bytes arrived: the most frequent event, so the cheapest."""
        if self._closed:
            return
        self.messages += 1
        self.events += 1
        self._hash.update(_EVENT.pack(now, 0, path_id, size))
        if self.kept is not None:
            self.kept.append((now, "message", path, size))
        if self._on_line is not None:
            self._on_line(line(now, "message", path, size))

    def note(self, now: float, kind: str, who: str, number: int = 0) -> None:
        """Anything else: a connection, a fault, a crash, a restart."""
        if self._closed:
            return
        self.events += 1
        for word in (kind, who):
            self._hash.update(word.encode())
            self._hash.update(b"\0")
        self._hash.update(_EVENT.pack(now, 1, 0, number))
        if self.kept is not None:
            self.kept.append((now, kind, who, number))
        if self._on_line is not None:
            self._on_line(line(now, kind, who, number))

    def close(self) -> None:
        """The run is over: what comes now is tidying up."""
        self._closed = True

    def path_id(self, path: str) -> int:
        """A small number for a pair of names, in the order of first use."""
        return self._names.setdefault(path, len(self._names) + 1)

    @property
    def hash(self) -> str:
        """Hex digits of all events so far."""
        return self._hash.hexdigest()
