"""The places of a job's shards: which process owns which elements, and whether it is there.

A shard that dies before the job runs is replaced by the next that says hello. Afterwards it may
hold updates nobody else has: it is waited for while there is hope (``silence`` decides), and until
shards are durable its death ends the job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, final

from pydownpour.coordinator.silence import Silence
from pydownpour.errors import ConfigError, Fenced, NotReady, RemoteProtocolError
from pydownpour.layout import Partition, ShardEntry
from pydownpour.limits import DEFAULT, Limits
from pydownpour.states import State, Table
from pydownpour.wire.messages import PlaceState, ShardHello, ShardMap, ShardStats

PLACE: Final[Table[PlaceState]] = Table(
    "a shard's place",
    "missing",
    {
        "missing": {"loading": "a process offers itself and gets the place"},
        "loading": {
            "ready": "its heartbeat says that it has its parameters",
            "missing": "it did not load in time, or was not heard, and nobody can have pushed",
            "dead": "the same when no other can take its place: the job is over",
        },
        "ready": {
            "silent": "it is not heard, and may hold updates that nobody else has",
            "missing": "it is not heard, and the job does not run yet: nobody can have pushed",
            "dead": "its process has ended, says who started it, and its host confirms it",
        },
        "silent": {
            "ready": "it is heard again",
            "dead": "waiting for it has no more sense (see silence)",
        },
        "dead": {},
    },
)
"""What a place may become."""

NO_STATS: Final = ShardStats()


@final
@dataclasses.dataclass(slots=True)
class Successor:
    """A process that gets everything a shard has, to take its place over then."""

    incarnation: int
    url: str
    host: str
    pid: int
    nonce: str
    version: str
    seen_at: float

    def describe(self) -> str:
        """``host-b, pid 13, http://...``."""
        return ", ".join(
            word for word in (self.host, f"pid {self.pid}" if self.pid else "", self.url) if word
        )


@final
@dataclasses.dataclass(slots=True)
class Place:
    """One place in the shard map."""

    index: int
    start: int
    len: int
    url: str = ""
    host: str = ""
    pid: int = 0
    nonce: str = ""
    incarnation: int = 0
    """Which of the processes that were to have this place has it."""
    incarnations: int = 0
    """How many processes have had it."""
    is_to_move: bool = False
    """A process that shows the ticket may take it over."""
    successor: Successor | None = None
    """The process that is taking it over, if one is."""
    epoch: int = 1
    """Of the shard map in which the process came to have it."""
    version: str = ""
    seen_at: float = 0.0
    stats: ShardStats = NO_STATS
    told_end: bool = False
    """It has heard that the job is over."""
    silence: Silence | None = None
    """Since when it is silent, and what speaks for it."""
    ended: str = ""
    """How its process has ended, as somebody says."""
    _state: State[PlaceState] = dataclasses.field(default_factory=lambda: State(PLACE))

    @property
    def state(self) -> PlaceState:
        """What the place is; :meth:`become` changes it."""
        return self._state.now

    def become(self, state: PlaceState) -> bool:
        """Change as :data:`PLACE` allows; False if it is that already.

        Raises:
            InternalError: it cannot become that.
        """
        return self._state.become(state, self.describe())

    @property
    def is_taken(self) -> bool:
        """A process has it, and has not been given up."""
        return self.state == "loading" or self.has_parameters

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
class Places:
    """The places of a job's shards, by index.

    Args:
        partition: Which elements each has.
        limits: How long a shard may load, and be silent.
    """

    def __init__(self, partition: Partition, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._places = [
            Place(index, start, length)
            for index, (start, length) in enumerate(
                zip(partition.starts, partition.lens, strict=True)
            )
        ]
        self._silent: dict[int, Place] = {}
        self._moving: dict[int, Place] = {}
        self._fragments = partition.fragment_count
        self.epoch = 1
        """Of the shard map: the next one has a higher one."""
        self._shard_map: ShardMap | None = None

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, hello: ShardHello, now: float, *, running: bool) -> tuple[Place, bool]:
        """The place that a shard which offers itself would get, and whether it has it already.

        Raises:
            ConfigError: an index outside the job, or all places are taken for good.
            NotReady: the job does not run yet, so the wanted place becomes free if its shard turns
                out to be dead.
        """
        for place in self._places:
            if hello.nonce and place.nonce == hello.nonce and place.is_taken:
                return place, True
        wanted = self._places if hello.index is None else [self._at(hello.index)]
        free = next((place for place in wanted if place.state == "missing"), None)
        if free is None:
            self._refuse(wanted, now, running=running)
        assert free is not None
        return free, False

    def _at(self, index: int) -> Place:
        if not 0 <= index < len(self._places):
            raise ConfigError(
                f"shard index {index} is outside this job of {len(self._places)} shards "
                f"(0 to {len(self._places) - 1})"
            )
        return self._places[index]

    def place(self, hello: ShardHello, now: float, *, running: bool) -> tuple[Place, bool]:
        """Give a shard that offers itself its place; returns and raises as :meth:`find`."""
        place, repeated = self.find(hello, now, running=running)
        place.seen_at = now
        if not repeated:
            place.become("loading")
            place.incarnations += 1
            place.incarnation = place.incarnations
            place.url, place.host, place.pid = hello.url, hello.host, hello.pid
            place.nonce, place.version, place.ended = hello.nonce, hello.version, ""
            place.stats = ShardStats(index=place.index)
            self._changed(place)
        return place, repeated

    def _changed(self, place: Place) -> None:
        """Another process has it: that makes a new map, unless it is the first one there."""
        if place.incarnation > 1:
            self.epoch += 1
        place.epoch = self.epoch
        self._shard_map = None

    # -- taken over ------------------------------------------------------------------------------

    def offer(self, hello: ShardHello, now: float) -> tuple[Place, Successor, bool]:
        """A process offers to take a place over; and whether it is doing so already.

        Raises:
            ConfigError: it does not say which place, or there is no such.
            NotReady: there is nothing to take over yet, or another takes it over.
        """
        place, repeated = self.find_offered(hello)
        if repeated:
            assert place.successor is not None
            return place, place.successor, True
        place.incarnations += 1
        place.is_to_move = False
        self._moving[place.index] = place
        place.successor = Successor(
            incarnation=place.incarnations,
            url=hello.url,
            host=hello.host,
            pid=hello.pid,
            nonce=hello.nonce,
            version=hello.version,
            seen_at=now,
        )
        return place, place.successor, False

    def find_offered(self, hello: ShardHello) -> tuple[Place, bool]:
        """The place that a process would take over, and whether it is doing so already.

        Raises:
            ConfigError, NotReady: as :meth:`offer`.
        """
        if hello.index is None:
            raise ConfigError("a ticket is for one shard: say which, by its index")
        place = self._at(hello.index)
        successor = place.successor
        if successor is not None and hello.nonce and successor.nonce == hello.nonce:
            return place, True
        if not place.has_parameters:
            raise NotReady(f"{place.describe()} is {place.state}: there is nothing to take over")
        if successor is not None:
            raise NotReady(f"{place.describe()} is being taken over by {successor.describe()}")
        return place, False

    def take_over(self, place: Place, stats: ShardStats, now: float) -> None:
        """The successor has everything: the place is its own, in a new map."""
        successor = place.successor
        assert successor is not None
        self._stays(place)
        if place.silence is not None:
            place.become("ready")
            place.silence = None
            del self._silent[place.index]
        place.incarnation = successor.incarnation
        place.url, place.host, place.pid = successor.url, successor.host, successor.pid
        place.nonce, place.version, place.ended = successor.nonce, successor.version, ""
        place.seen_at, place.stats, place.told_end = now, stats, False
        self._changed(place)

    def abandoned(self, now: float) -> list[tuple[Place, Successor]]:
        """Successors that are not heard any more: nobody waits for them, and nobody ever will."""
        gone = [
            (place, successor)
            for place, successor in self.moving
            if now - successor.seen_at >= self._limits.handover_silence_s
        ]
        for place, _ in gone:
            self._stays(place)
        return gone

    def _stays(self, place: Place) -> None:
        """Nobody is taking it over any more."""
        place.successor = None
        self._moving.pop(place.index, None)

    @property
    def moving(self) -> list[tuple[Place, Successor]]:
        """Places that are being taken over."""
        moving = self._moving.values()
        return [(place, place.successor) for place in moving if place.successor is not None]

    def forgive(self, gap: float) -> None:
        """The coordinator stood still for so long: nobody could be heard."""
        for _, silence in self.silent:
            silence.forgive(gap)
        for _, successor in self.moving:
            successor.seen_at += gap

    # -- there, silent, dead ---------------------------------------------------------------------

    def _refuse(self, wanted: list[Place], now: float, *, running: bool) -> None:
        quiet = min(wanted, key=lambda place: place.seen_at)
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

    def heard(self, index: int, stats: ShardStats | None, now: float) -> tuple[Place, bool]:
        """A heartbeat. Returns the place and whether the shard has just become ready.

        Raises:
            RemoteProtocolError: no such index.
            Fenced: the place is no longer its own.
        """
        place = self.get(index)
        if not place.is_taken:
            raise Fenced(f"shard {index} was called dead and lost its place; start it anew")
        place.seen_at = now
        if place.silence is not None:
            place.become("ready")
            place.silence = None
            del self._silent[index]
        if stats is not None:
            place.stats = stats
        if place.state == "loading" and stats is not None and stats.ready:
            place.become("ready")
            return place, True
        return place, False

    def get(self, index: int) -> Place:
        """The place of an index.

        Raises:
            RemoteProtocolError: no such index.
        """
        if not 0 <= index < len(self._places):
            raise RemoteProtocolError(f"no shard {index} in a job of {len(self._places)}")
        return self._places[index]

    def is_taken_from(self, index: int, incarnation: int) -> bool:
        """Another process has the place now than that incarnation's."""
        place = self._places[index]
        return place.is_taken and place.incarnation != incarnation

    def overdue(self, now: float) -> list[Place]:
        """Shards that said hello and have not loaded in time: they send no heartbeats yet."""
        return [
            place
            for place in self._places
            if place.state == "loading" and now - place.seen_at >= self._limits.join_patience_s
        ]

    def lost(self, index: int, *, holds_updates: bool) -> Place:
        """A shard is dead. Its place is free again only while nobody can have pushed to it."""
        place = self._places[index]
        place.become("dead" if holds_updates else "missing")
        place.silence, place.is_to_move = None, False
        self._stays(place)
        self._silent.pop(index, None)
        return place

    def missed(self, index: int) -> Place:
        """A shard that holds updates is not heard: from now on it is waited for."""
        place = self._places[index]
        if place.state == "ready":
            place.become("silent")
            place.silence = Silence(since=place.seen_at, sign_at=place.seen_at, limits=self._limits)
            self._silent[index] = place
        return place

    @property
    def silent(self) -> list[tuple[Place, Silence]]:
        """Those that are waited for."""
        silent = self._silent.values()
        return [(place, place.silence) for place in silent if place.silence is not None]

    @property
    def complete(self) -> bool:
        """Every shard has its parameters: one that is silent may be heard by others."""
        return all(place.has_parameters for place in self._places)

    @property
    def entries(self) -> list[ShardEntry]:
        """Where each shard is, by index."""
        return [
            ShardEntry(
                index=place.index,
                url=place.url,
                start=place.start,
                len=place.len,
                epoch=place.epoch,
            )
            for place in self._places
        ]

    @property
    def shard_map(self) -> ShardMap:
        """The newest, as a value; made anew only when it has changed."""
        if self._shard_map is None:
            self._shard_map = ShardMap(
                epoch=self.epoch, entries=self.entries, fragments=self._fragments
            )
        return self._shard_map

    def waiting_for(self) -> str:
        """Which shards are not ready, in words."""
        words = []
        for state, verb in (("missing", "to start"), ("loading", "to load parameters")):
            indices = [str(place.index) for place in self._places if place.state == state]
            if indices:
                noun = "shard" if len(indices) == 1 else "shards"
                words.append(f"{noun} {', '.join(indices)} {verb}")
        return " and ".join(words)
