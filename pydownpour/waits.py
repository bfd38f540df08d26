"""Who waited for whom, and how long: counted where answers are held, constant in size for ever.

A replica *waits* at a shard while the shard holds an answer of its, the parameters of a fetch or
the word that a push which was turned down may come now; however many of these it wants, it is one
wait. It waits *on* the replicas that the rule names (``Wait.on``, ``NotYet.on``), on each of them
for as long as it is named. One that is held for something else, or for more than
``limits.WAITED_FOR_NAMED_MAX`` at once, waits on nobody by name: those seconds are *unnamed*.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Generic, TypeAlias, TypeVar, final

import msgspec

from pydownpour.fields import Count, Seconds, Word, clip
from pydownpour.limits import (
    COUNT_MAX,
    DEFAULT,
    SECONDS_MAX,
    WAIT_WORDS_LEN_MAX,
    WAITED_FOR_NAMED_MAX,
    WAITS_ENDED_TOLD_MAX,
    WAITS_OPEN_TOLD_MAX,
    WAITS_TOLD_MAX,
    Limits,
)

K = TypeVar("K", int, tuple[int, int])

Ids: TypeAlias = Annotated[list[Word], msgspec.Meta(max_length=WAITED_FOR_NAMED_MAX)]
Pair: TypeAlias = tuple[Word, Word, Seconds]
"""Who waited, on whom, how long."""
Pairs: TypeAlias = Annotated[list[Pair], msgspec.Meta(max_length=WAITS_TOLD_MAX)]
Sums: TypeAlias = Annotated[list[tuple[Word, Seconds]], msgspec.Meta(max_length=WAITS_TOLD_MAX)]


@final
class WaitEntry(msgspec.Struct, frozen=True):
    """One wait.

    Attributes:
        number: Of the waits at this shard, in the order in which they began, from 1.
        replica: Who waits.
        on: The replicas it waits for now, or waited for at last; none if it is for too many.
        seconds: How long it has lasted.
        words: For whom or what.
    """

    number: Count
    replica: Word
    on: Ids
    seconds: Seconds
    words: Annotated[str, msgspec.Meta(max_length=WAIT_WORDS_LEN_MAX)]


@final
class WaitsEntry(msgspec.Struct, frozen=True):
    """All waits at one shard, as they travel; those that last are in the sums.

    Attributes:
        count: How many there were.
        seconds: Of all of them.
        unnamed_s: Of these, on nobody by name.
        pairs: Who waited on whom, the longest first; and of all other pairs the sum.
        waiters, waited_for: By who waited, and by who was waited for, as ``pairs``.
        open_count: Waits that last; ``open`` are the longest of them.
        ended: The newest that lasted ``wait_notable_s`` and have ended, oldest first.
    """

    count: Count = 0
    seconds: Seconds = 0.0
    unnamed_s: Seconds = 0.0
    pairs: Pairs = []
    pairs_more_s: Seconds = 0.0
    waiters: Sums = []
    waiters_more_s: Seconds = 0.0
    waited_for: Sums = []
    waited_for_more_s: Seconds = 0.0
    open_count: Count = 0
    open: Annotated[list[WaitEntry], msgspec.Meta(max_length=WAITS_OPEN_TOLD_MAX)] = []
    ended: Annotated[list[WaitEntry], msgspec.Meta(max_length=WAITS_ENDED_TOLD_MAX)] = []

    def outline(self) -> WaitsEntry:
        """Without its tables: the totals, and the longest that lasts."""
        return WaitsEntry(
            count=self.count, seconds=self.seconds, unnamed_s=self.unnamed_s,
            open_count=self.open_count, open=self.open[:1],
        )  # fmt: skip


@dataclasses.dataclass(slots=True)
class _Open:
    """A wait that lasts.

    Attributes:
        owner: The connection whose answer is held.
        told_at: Up to when it is in the sums.
    """

    owner: object
    number: int
    since: float
    on: tuple[int, ...]
    words: str
    told_at: float

    def entry(self, replica: int, now: float) -> WaitEntry:
        named = self.on if len(self.on) <= WAITED_FOR_NAMED_MAX else ()
        words = clip(self.words, WAIT_WORDS_LEN_MAX)
        return WaitEntry(self.number, replica, list(named), _seconds(now - self.since), words)


@final
class Waits:
    """The waits at one shard, told as they begin, change and end; it is given the time.

    Args:
        limits: How many are kept by name, and which are notable.

    Attributes:
        open: Replicas that wait now, and the connection of each.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._open: dict[int, _Open] = {}
        self._count = self._before = 0
        self._seconds = self._unnamed_s = 0.0
        self._pairs = _Sums[tuple[int, int]](limits.wait_pairs_kept_max)
        self._waiters = _Sums[int](limits.wait_pairs_kept_max)
        self._waited_for = _Sums[int](limits.wait_pairs_kept_max)
        self._ended: deque[WaitEntry] = deque(maxlen=WAITS_ENDED_TOLD_MAX)

    @property
    def open(self) -> Mapping[int, object]:
        """Who waits now, and on whose behalf: the connection that was given."""
        return {replica: one.owner for replica, one in self._open.items()}

    def on(self, replica: int) -> tuple[int, ...]:
        """On whom it waits now."""
        return self._open[replica].on

    def goes_on_from(self, count: int) -> None:
        """So many waits have numbers of the process whose place this one takes."""
        self._before = count

    def held(
        self, owner: object, replica: int, on: tuple[int, ...], words: str, now: float
    ) -> None:
        """A replica's answer is held, or still is. Another connection of it goes on with its wait.

        Args:
            owner: The connection.
            replica: Whose it is.
            on: On whom it waits.
            words: For whom or what.
            now: The time.
        """
        one = self._open.get(replica)
        if one is None:
            self._count += 1
            self._open[replica] = _Open(owner, self._before + self._count, now, on, words, now)
            return
        if one.on != on:
            self._book(replica, one, now)
        one.owner, one.on, one.words = owner, on, words

    def let_go(self, owner: object, replica: int, now: float) -> None:
        """It has its answer, or its connection has ended; nothing if another one waits for it."""
        one = self._open.get(replica)
        if one is None or one.owner is not owner:
            return
        del self._open[replica]
        self._book(replica, one, now)
        if now - one.since >= self._limits.wait_notable_s:
            self._ended.append(one.entry(replica, now))

    def seconds_of(self, replica: int) -> float:
        """How long a replica has waited here, up to when it was last counted: one that is kept."""
        return self._waiters.of.get(replica, 0.0)

    def _book(self, replica: int, one: _Open, now: float) -> None:
        """What has lasted since it was last booked."""
        seconds, one.told_at = now - one.told_at, now
        if seconds <= 0:
            return
        self._seconds += seconds
        self._waiters.add(replica, seconds)
        if not 1 <= len(one.on) <= WAITED_FOR_NAMED_MAX:
            self._unnamed_s += seconds
            return
        for other in one.on:
            self._pairs.add((replica, other), seconds)
            self._waited_for.add(other, seconds)

    def entry(self, clock: Callable[[], float]) -> WaitsEntry:
        """All of it, now."""
        if not self._count:
            return WaitsEntry()
        now = clock() if self._open else 0.0
        for replica, one in self._open.items():
            self._book(replica, one, now)
        longest = heapq.nsmallest(
            WAITS_OPEN_TOLD_MAX, self._open.items(), key=lambda item: (item[1].since, item[0])
        )
        pairs, pairs_more_s = self._pairs.most()
        waiters, waiters_more_s = self._waiters.most()
        waited_for, waited_for_more_s = self._waited_for.most()
        return WaitsEntry(
            count=min(self._count, COUNT_MAX),
            seconds=_seconds(self._seconds),
            unnamed_s=_seconds(self._unnamed_s),
            pairs=[(*pair, seconds) for pair, seconds in pairs],
            pairs_more_s=pairs_more_s,
            waiters=waiters,
            waiters_more_s=waiters_more_s,
            waited_for=waited_for,
            waited_for_more_s=waited_for_more_s,
            open_count=len(self._open),
            open=[one.entry(replica, now) for replica, one in longest],
            ended=list(self._ended),
        )


@final
class _Sums(Generic[K]):
    """Seconds by key, of the largest; of the others the sum.

    Args:
        kept_max: How many are kept; where there are more, the smaller half of them is added up.

    Attributes:
        of: Those that are kept.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self.of: dict[K, float] = {}
        self._more = 0.0

    def add(self, key: K, seconds: float) -> None:
        """So much more for one key."""
        self.of[key] = self.of.get(key, 0.0) + seconds
        if len(self.of) > self._kept_max:
            self.of, self._more = _largest(self.of.items(), self._kept_max // 2, self._more)

    def most(self) -> tuple[list[tuple[K, float]], float]:
        """The largest, and the sum of all others."""
        largest, more = _largest(self.of.items(), WAITS_TOLD_MAX, self._more)
        return [(key, _seconds(seconds)) for key, seconds in largest.items()], _seconds(more)


def _largest(
    items: Iterable[tuple[K, float]], count: int, more: float
) -> tuple[dict[K, float], float]:
    """The largest, in that order, and the sum of all others and ``more``."""
    ordered = sorted(items, key=lambda item: (-item[1], item[0]))
    return dict(ordered[:count]), more + sum(seconds for _, seconds in ordered[count:])


def _seconds(value: float) -> float:
    return min(round(value, 3), SECONDS_MAX)


def total(before: WaitsEntry, own: WaitsEntry) -> WaitsEntry:
    """What two processes of one place have counted, one after the other; what lasts is ``own``."""
    pairs, pairs_more_s = _added(_by_pair(before), _by_pair(own))
    waiters, waiters_more_s = _added(before.waiters, own.waiters)
    waited_for, waited_for_more_s = _added(before.waited_for, own.waited_for)
    return WaitsEntry(
        count=min(before.count + own.count, COUNT_MAX),
        seconds=_seconds(before.seconds + own.seconds),
        unnamed_s=_seconds(before.unnamed_s + own.unnamed_s),
        pairs=[(*pair, seconds) for pair, seconds in pairs],
        pairs_more_s=_seconds(before.pairs_more_s + own.pairs_more_s + pairs_more_s),
        waiters=waiters,
        waiters_more_s=_seconds(before.waiters_more_s + own.waiters_more_s + waiters_more_s),
        waited_for=waited_for,
        waited_for_more_s=_seconds(
            before.waited_for_more_s + own.waited_for_more_s + waited_for_more_s
        ),
        open_count=own.open_count,
        open=own.open,
        ended=[*before.ended, *own.ended][-WAITS_ENDED_TOLD_MAX:],
    )


def _added(
    one: Iterable[tuple[K, float]], other: Iterable[tuple[K, float]]
) -> tuple[list[tuple[K, float]], float]:
    sums: dict[K, float] = {}
    for table in (one, other):
        for key, seconds in table:
            sums[key] = sums.get(key, 0.0) + seconds
    largest, more = _largest(sums.items(), WAITS_TOLD_MAX, 0.0)
    return [(key, _seconds(seconds)) for key, seconds in largest.items()], more


def across(entries: Iterable[WaitsEntry]) -> WaitsEntry:
    """What all shards of a job have counted: of each pair and each replica the longest.

    A replica waits at several shards at once, for one step: the sum would be more than it waited.
    """
    listed = list(entries)
    pairs = _longest(_by_pair(entry) for entry in listed)
    waiters = _longest(entry.waiters for entry in listed)
    return WaitsEntry(
        count=max((entry.count for entry in listed), default=0),
        seconds=max((entry.seconds for entry in listed), default=0.0),
        unnamed_s=max((entry.unnamed_s for entry in listed), default=0.0),
        pairs=[(*pair, seconds) for pair, seconds in pairs],
        pairs_more_s=max((entry.pairs_more_s for entry in listed), default=0.0),
        waiters=waiters,
        waiters_more_s=max((entry.waiters_more_s for entry in listed), default=0.0),
        waited_for=_longest(entry.waited_for for entry in listed),
        waited_for_more_s=max((entry.waited_for_more_s for entry in listed), default=0.0),
    )


def _longest(tables: Iterable[Iterable[tuple[K, float]]]) -> list[tuple[K, float]]:
    most: dict[K, float] = {}
    for table in tables:
        for key, seconds in table:
            most[key] = max(most.get(key, 0.0), seconds)
    return list(_largest(most.items(), WAITS_TOLD_MAX, 0.0)[0].items())


def _by_pair(entry: WaitsEntry) -> list[tuple[tuple[int, int], float]]:
    return [((waiter, on), seconds) for waiter, on, seconds in entry.pairs]
