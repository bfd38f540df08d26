"""The shard map: which process owns which elements, and whether it is there.

States of a slot::

    missing --hello--> loading --heartbeat, ready--> ready <--not heard, job runs--> silent
       ^                  |                            |                               |
       '--not in time-----'----not heard, job waits----'                given up: dead <'

A shard that dies before the job runs is replaced by the next that says hello. Afterwards it may
hold updates nobody else has: it is waited for while there is hope (``silence`` decides), and until
shards are durable its death ends the job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias, final

from pydownpour import limits
from pydownpour.coordinator.silence import Silence
from pydownpour.errors import ConfigError, Fenced, NotReady, RemoteProtocolError
from pydownpour.layout import Partition, ShardEntry
from pydownpour.wire.messages import ShardHello, ShardStats

State: TypeAlias = Literal["missing", "loading", "ready", "silent", "dead"]

NO_STATS: Final = ShardStats()


@final
@dataclasses.dataclass(slots=True)
class Slot:
    """One place in the shard map."""

    index: int
    start: int
    len: int
    state: State = "missing"
    url: str = ""
    host: str = ""
    pid: int = 0
    nonce: str = ""
    incarnation: int = 0
    """How many processes have had this place."""
    version: str = ""
    seen_at: float = 0.0
    stats: ShardStats = NO_STATS
    told_end: bool = False
    """It has heard that the job is over."""
    silence: Silence | None = None
    """While it is silent."""
    ended: str = ""
    """How its process has ended, as somebody says."""

    @property
    def has_parameters(self) -> bool:
        """It has its part of the parameters, as far as is known."""
        return self.state in ("ready", "silent")

    def describe(self) -> str:
        """``shard 1 (host-a, pid 12, http://...)``."""
        where = ", ".join(
            word for word in (self.host, f"pid {self.pid}" if self.pid else "", self.url) if word
        )
        return f"shard {self.index}" + (f" ({where})" if where else "")


@final
class Slots:
    """The places of a job's shards, by index."""

    def __init__(self, partition: Partition) -> None:
        self._slots = [
            Slot(index, start, length)
            for index, (start, length) in enumerate(
                zip(partition.starts, partition.lens, strict=True)
            )
        ]
        self._silent: dict[int, Slot] = {}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, hello: ShardHello, now: float, *, running: bool) -> tuple[Slot, bool]:
        """The slot that a shard which offers itself would get, and whether it has it already.

        Raises:
            ConfigError: an index outside the job, or all places are taken for good.
            NotReady: the job does not run yet, so the wanted place becomes free if its shard turns
                out to be dead.
        """
        for slot in self._slots:
            is_there = slot.state == "loading" or slot.has_parameters
            if hello.nonce and slot.nonce == hello.nonce and is_there:
                return slot, True
        if hello.index is not None and not 0 <= hello.index < len(self._slots):
            raise ConfigError(
                f"shard index {hello.index} is outside this job of {len(self._slots)} shards "
                f"(0 to {len(self._slots) - 1})"
            )
        wanted = self._slots if hello.index is None else [self._slots[hello.index]]
        free = next((slot for slot in wanted if slot.state == "missing"), None)
        if free is None:
            self._refuse(wanted, now, running=running)
        assert free is not None
        return free, False

    def place(self, hello: ShardHello, now: float, *, running: bool) -> tuple[Slot, bool]:
        """Give a shard that offers itself its slot; returns and raises as :meth:`find`."""
        slot, repeated = self.find(hello, now, running=running)
        slot.seen_at = now
        if not repeated:
            slot.state = "loading"
            slot.incarnation += 1
            slot.url, slot.host, slot.pid = hello.url, hello.host, hello.pid
            slot.nonce, slot.version, slot.ended = hello.nonce, hello.version, ""
            slot.stats = ShardStats(index=slot.index)
        return slot, repeated

    def _refuse(self, wanted: list[Slot], now: float, *, running: bool) -> None:
        quiet = min(wanted, key=lambda slot: slot.seen_at)
        taken = (
            f"{quiet.describe()} has that place"
            if len(wanted) == 1
            else f"this job's {len(wanted)} shards are all there"
        )
        if not running:
            who = "it" if len(wanted) == 1 else quiet.describe()
            raise NotReady(
                f"{taken}; {who} was last heard {now - quiet.seen_at:.1f} s ago, and its place "
                "becomes free if it is dead"
            )
        if quiet.silence is not None:
            raise ConfigError(
                f"{taken}; {quiet.describe()} is {quiet.silence.describe(now)}: nobody can take "
                "its place"
            )
        raise ConfigError(f"{taken}; start its coordinator with more shards")

    def heard(self, index: int, stats: ShardStats | None, now: float) -> tuple[Slot, bool]:
        """A heartbeat. Returns the slot and whether the shard has just become ready.

        Raises:
            RemoteProtocolError: no such index.
            Fenced: the place is no longer its own.
        """
        slot = self.get(index)
        if slot.state != "loading" and not slot.has_parameters:
            raise Fenced(f"shard {index} was called dead and lost its place; start it anew")
        slot.seen_at = now
        if slot.silence is not None:
            slot.state, slot.silence = "ready", None
            del self._silent[index]
        if stats is not None:
            slot.stats = stats
        if slot.state == "loading" and stats is not None and stats.ready:
            slot.state = "ready"
            return slot, True
        return slot, False

    def get(self, index: int) -> Slot:
        """The slot of an index.

        Raises:
            RemoteProtocolError: no such index.
        """
        if not 0 <= index < len(self._slots):
            raise RemoteProtocolError(f"no shard {index} in a job of {len(self._slots)}")
        return self._slots[index]

    def overdue(self, now: float) -> list[Slot]:
        """Shards that said hello and have not loaded in time: they send no heartbeats yet."""
        return [
            slot
            for slot in self._slots
            if slot.state == "loading" and now - slot.seen_at >= limits.JOIN_PATIENCE_S
        ]

    def lost(self, index: int, *, holds_updates: bool) -> Slot:
        """A shard is dead. Its place is free again only while nobody can have pushed to it."""
        slot = self._slots[index]
        slot.state, slot.silence = "dead" if holds_updates else "missing", None
        self._silent.pop(index, None)
        return slot

    def missed(self, index: int) -> Slot:
        """A shard that holds updates is not heard: from now on it is waited for."""
        slot = self._slots[index]
        if slot.state == "ready":
            slot.state, slot.silence = "silent", Silence(since=slot.seen_at, sign_at=slot.seen_at)
            self._silent[index] = slot
        return slot

    @property
    def silent(self) -> list[tuple[Slot, Silence]]:
        """Those that are waited for."""
        silent = self._silent.values()
        return [(slot, slot.silence) for slot in silent if slot.silence is not None]

    @property
    def complete(self) -> bool:
        """Every shard has its parameters: one that is silent may be heard by others."""
        return all(slot.has_parameters for slot in self._slots)

    @property
    def entries(self) -> list[ShardEntry]:
        """The map replicas get."""
        return [
            ShardEntry(index=slot.index, url=slot.url, start=slot.start, len=slot.len)
            for slot in self._slots
        ]

    def waiting_for(self) -> str:
        """Which shards are not ready, in words."""
        words = []
        for state, verb in (("missing", "to start"), ("loading", "to load parameters")):
            indices = [str(slot.index) for slot in self._slots if slot.state == state]
            if indices:
                noun = "shard" if len(indices) == 1 else "shards"
                words.append(f"{noun} {', '.join(indices)} {verb}")
        return " and ".join(words)
