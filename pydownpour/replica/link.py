"""One replica's link to one shard: in order, until each record has its answer.

A record is a fragment of a push; records are sent in the order of both. One is settled when the
shard says applied, duplicate or refused. A broken connection settles nothing: the link connects
again and sends every open record again as what it was, and the shard tells the duplicates from the
new.

    queue -> announce a run of records -> write them batch by batch -> settle -> next

A shard that has no room just now turns records down; they are sent again a little later.

There is no table of states for it: whether a connection is open, was taken in and is idle, whether
a fetch is wanted and was sent, and how long the shard has held us off are facts that change each by
itself, and each has one writer or two. States would be their product, and say less.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.errors import (
    DownpourError,
    JobFailed,
    LimitExceeded,
    PeerLost,
    RemoteProtocolError,
    UpgradeRefused,
    WrongEpoch,
)
from pydownpour.fields import clip
from pydownpour.layout import DTYPE_SIZES, Flat, fragments_of
from pydownpour.limits import Limits
from pydownpour.net.client import Client
from pydownpour.net.pace import Pace, Watch
from pydownpour.net.retry import Backoff
from pydownpour.replica.pieces import Pieces
from pydownpour.replica.pushes import Portion, Push
from pydownpour.replica.transport import (
    Asked,
    Landing,
    PostTransport,
    Run,
    StreamTransport,
    Transport,
)
from pydownpour.replica.waited import TurnedDown
from pydownpour.wire import frames, messages
from pydownpour.wire.frames import NO_GATE, NO_GROUP, Age, Code, FetchNotice, GroupMark, Kind, View
from pydownpour.wire.messages import LEVELS, Level, ShardEntry

log = logging.getLogger(__name__)

BROKE_LEN_MAX: Final = 160
"""Characters of a broken connection's own words in a message about waiting."""
BY_RULE: Final = (Code.ROUND, Code.NOT_YET)
"""Codes of records that only come at the wrong moment: nothing is short of anything."""


@dataclasses.dataclass(slots=True)
class _Fetching:
    """The fetch in progress.

    Attributes:
        notice: What its answer waits for, and the steps that we had finished when it was asked for.
        behind: The last push that goes before it; later ones wait until it is done. None: pushes
            are on their way meanwhile.
        first: The fragment its next attempt begins with: those before it have landed.
        stop: The fragment behind the last one that is wanted; 0: all are.
        floor: The age of what has landed, once an attempt was cut off.
        begun_at: The age that the answer to its last attempt began with, at least.
    """

    notice: FetchNotice = NO_GATE
    behind: int | None = None
    first: int = 0
    stop: int = 0
    floor: Age | None = None
    begun_at: Age = Age()  # noqa: RUF009  a tuple of numbers


@final
class Link:
    """One shard, as a replica's session sees it. ``run`` is its life, in a task of the session.

    Attributes:
        entry: The shard.
        fragments: Those of the layout that it owns.
        values: This shard's elements of the session's staging buffer: fetches land here.
        versions: The fragment versions of ``values``, in the session's of the whole layout.
        fetched: As ``known``, of the fragments that the last fetch was for.
        group: Of the replicas that reduce among themselves: each fetch says in which we are.
        on_answered: Called with a push when the shard has answered for some of it.
        on_fetched: Called when a fetch has landed.
        on_policy: Called with the version of the job's policy when the shard obeys a newer one.
    """

    group: GroupMark = NO_GROUP
    fetched: Age = Age()

    def __init__(
        self,
        entry: ShardEntry,
        client_of: Callable[[ShardEntry], Client],
        *,
        replica: int,
        incarnation: int,
        headers: dict[str, str],
        fragment_len: int,
        wire_dtype: str,
        codec: _core.Codec | None = None,
        durability: Level = "memory",
        staging: Flat,
        versions: NDArray[np.uint64],
        rng: random.Random,
    ) -> None:
        self.entry, self.client = entry, client_of(entry)
        self._client_of, self._headers = client_of, headers
        self.replica, self.incarnation = replica, incarnation
        self.fragment_len, self.item_size = fragment_len, DTYPE_SIZES[wire_dtype]
        self._level_min = LEVELS.index(durability)
        self.values = staging[entry.start : entry.start + entry.len]
        self.fragments = fragments_of(entry.start, entry.len, fragment_len)
        self.versions = versions[self.fragments.start : self.fragments.stop]
        self.known = Age()
        """What the shard had applied, and closed, by then is in ``values``."""
        self.view = View()
        """What the shard has said of the cluster."""
        self.queue: deque[Portion] = deque()
        """Portions with open records, oldest first."""
        self.fetch_wanted: int | None = None
        """Number of the fetch in progress."""
        self.fetch_sent = False
        self._fetching = _Fetching()
        self._to_tell = self._told = 0
        """Steps finished that no push of ours tells the shard, and what we told it of such."""
        self._heard = Age()
        """The shard has applied, and closed, so much at least."""
        self.reconnects = self.duplicates = self.bytes_sent = self.bytes_received = 0
        self.fallback = self.connected = self._is_troubled = False
        """The shard has refused to upgrade; has taken us in; failed us since its last answer."""
        self._wake = asyncio.Event()
        self._newest = self._answered = 0
        """The newest push that was queued; and that this shard has answered wholly."""
        self._fetches = 0
        self.on_answered: Callable[[Push], object] = lambda push: None
        self.on_fetched: Callable[[], object] = lambda: None
        self.on_policy: Callable[[int], object] = lambda version: None
        longest = min(fragment_len, entry.len)
        size = longest * self.item_size if codec is None else codec.size_max(longest)
        self.pieces = Pieces(limits.HEADER_SIZE + size, self.limits)
        """What a POST carries; outlives connections."""
        self._held = ""
        """What the shard said when it had no room for us, until it has."""
        self._held_until = 0.0
        self._holds = Backoff(rng, self.limits)
        self.turned_down = TurnedDown()
        """For how long pushes were."""
        self._failures = 0
        """Connections that broke since something was settled or fetched."""
        self._failing_since = self._alive_at = 0.0
        """Since when; and when the shard was last known to be there."""
        self._backoff = Backoff(rng, self.limits)
        self.connect_patience_s = self.limits.connect_timeout_s
        """For the next stream to open: longer each time, a link may be slow and its queue long."""
        self._transport: Transport | None = None
        self._idle: Transport | None = None
        """The open connection, while there is nothing to send on it."""
        self._broke = ""
        """What the last connection, or try at one, ended with."""

    @property
    def limits(self) -> Limits:
        """Of its connections."""
        return self.client.limits

    # -- what the session asks -----------------------------------------------------------------

    def push(self, push: Push) -> None:
        """Queue this shard's portion of a push; one without records is answered already."""
        portion = Portion(push, self.fragments)
        push.portions.append(portion)
        if portion.open == 0:
            push.open_portions -= 1
            self.tell(push.clock)
            return
        self.queue.append(portion)
        self._newest = push.index
        if self._idle is None or not self._write_at_once(self._idle):
            self._wake.set()

    def fetch(
        self, notice: FetchNotice = NO_GATE, *, apart: bool = False, only: range = range(0)
    ) -> None:
        """Bring ``values`` and ``versions`` up to the shard's state; ``on_fetched`` says when.

        That is its state when what ``notice`` waits for is so; its ``clock`` are the steps that we
        have finished, wherever their pushes are. ``apart``: pushes that we have queued have their
        answers before it is asked for, and later ones wait until it is done. ``only``: of these
        fragments, so that ``known`` stays as it is; empty: of all. At most one is under way.
        """
        self._fetches += 1
        self.fetch_wanted, self.fetch_sent = self._fetches, False
        behind = self._newest if apart else None
        self._fetching = _Fetching(notice, behind, first=only.start, stop=only.stop)
        if self._idle is None or not self._fetch_at_once(self._idle):
            self._wake.set()

    def tell(self, clock: int) -> None:
        """The shard shall know that we have finished so many steps, when our pushes are answered.

        Of a step that a push carries it knows by the push.
        """
        self._to_tell = max(self._to_tell, clock)
        self._wake.set()

    def reroute(self, entry: ShardEntry) -> None:
        """The shard has moved: what is open goes to its new process, under its old identity.

        Raises:
            RemoteProtocolError: another part of the parameters is meant.
        """
        ours = self.entry
        if entry.epoch <= ours.epoch:
            return
        if (entry.index, entry.start, entry.len) != (ours.index, ours.start, ours.len):
            raise RemoteProtocolError(
                f"shard {ours.index} has elements {ours.start} to {ours.start + ours.len - 1}, and "
                f"a newer shard map has it as {entry}; a job's shards are not cut anew"
            )
        log.info("%s has moved to %s", self.describe(), entry.url)
        self.entry = entry
        if self._transport is not None:
            self._transport.abort(
                PeerLost(f"{self.describe()} has moved there from another process", peer=entry.url)
            )
        self._wake.set()

    @property
    def headers(self) -> dict[str, str]:
        """What each request says of us, and of the shard we mean."""
        return {**self._headers, messages.HEADER_EPOCH: str(self.entry.epoch)}

    @property
    def first_open(self) -> int:
        """The first push that may not have all of its answers from this shard.

        Of pushes that had nothing for it the shard never heard: our word about those below ends
        behind the newest one it has answered.
        """
        oldest = self.queue[0].number if self.queue else self._answered + 1
        return min(oldest, self._answered + 1)

    @property
    def open_records(self) -> int:
        """Records without a definite answer."""
        return sum(portion.open for portion in self.queue)

    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) so far, the open connection's included."""
        open_one = self._transport
        if open_one is None:
            return self.bytes_sent, self.bytes_received
        return self.bytes_sent + open_one.bytes_sent, self.bytes_received + open_one.bytes_received

    def describe(self) -> str:
        """Who this is, for messages."""
        return f"shard {self.entry.index} at {self.entry.url}"

    def waiting_for(self) -> str:
        """Who this is and what keeps it, for messages about waiting."""
        if self.connected:
            return self.describe() + (f" ({self._held})" if self._held else "")
        broke = f": {clip(self._broke, BROKE_LEN_MAX)}" if self._broke else ""
        return f"{self.describe()} (not connected{broke})"

    # -- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve, and connect again until cancelled.

        Raises:
            JobFailed: the shard did not answer for ``shard_patience_s``.
            Fenced, AuthError, ConfigError, ...: the shard refuses us for good.
        """
        self._alive_at = asyncio.get_running_loop().time()
        while True:
            try:
                await self._connection()
            except WrongEpoch as error:
                self._ended(error, asyncio.get_running_loop().time())
                if error.entry is not None and error.entry.epoch > self.entry.epoch:
                    self.reroute(error.entry)
                    continue
            except UpgradeRefused as error:
                log.warning("%s; falling back to POST and GET", error)
                self.fallback = True
                continue
            except DownpourError as error:
                if not (error.retryable or isinstance(error, RemoteProtocolError)):
                    raise
                log.info("link to %s: %s", self.describe(), error)
                self._ended(error, asyncio.get_running_loop().time())
            await asyncio.sleep(self._backoff.next_s())

    async def _connection(self) -> None:
        """One connection, from its opening to its end."""
        if self.client.url != self.entry.url:
            moved_from, self.client = self.client, self._client_of(self.entry)
            await moved_from.close()
        transport = self._transport = self._open_transport()
        try:
            async with transport:
                await self._serve(transport)
        finally:
            self._transport = None
            self.bytes_sent += transport.bytes_sent
            self.bytes_received += transport.bytes_received
            landed, behind = transport.landed()
            if self.fetch_sent and self.fetch_wanted is not None and landed:
                self._fetch_cut_off(behind)

    def _ended(self, error: DownpourError, now: float) -> None:
        """A connection broke, or none could be made.

        Raises:
            JobFailed: that has gone on for too long.
        """
        self._broke, self._is_troubled = str(error), True
        self.connect_patience_s = min(2 * self.connect_patience_s, self.limits.request_timeout_s)
        if isinstance(error, (LimitExceeded, WrongEpoch)):
            # Somebody is there, and has no room for us now; or knows that another will be.
            self._alive_at, self._failures = now, 0
        if self.connected:
            self.connected, self._alive_at = False, now
            self.connect_patience_s = self.limits.connect_timeout_s
            self.reconnects += 1
            self._failing_since = self._failing_since if self._failures else now
            self._failures += 1
        failing_s, silent_s = now - self._failing_since, now - self._alive_at
        if self._failures > self.limits.reconnects_max and failing_s > self.limits.join_patience_s:
            raise JobFailed(
                f"{self.describe()}: {self._failures} connections in a row, in {failing_s:.0f} s, "
                f"settled nothing (reconnects_max, join_patience_s); the last one: {error}"
            )
        if silent_s > self.limits.shard_patience_s:
            raise JobFailed(
                f"{self.describe()} has not answered for {self.limits.shard_patience_s:g} s: "
                f"{error}"
            )

    def _got_somewhere(self) -> None:
        """Something was settled or fetched: what went wrong before is forgotten."""
        if not self._is_troubled:
            return
        self._is_troubled, self._failures, self._held = False, 0, ""
        self._backoff.reset()
        self._holds.reset()
        self.turned_down.ended(asyncio.get_running_loop().time())

    def _open_transport(self) -> Transport:
        for portion in self.queue:
            portion.rewind()
        self.fetch_sent = False
        self._to_tell = max(self._to_tell, self._told)  # what was on its way may be lost
        if self._held_until == math.inf:
            self._held_until = 0.0  # who would have asked for it is gone
        first = self.fragments.start
        landing = Landing(self.values, self.versions, self.fragment_len, first)
        if self.fallback:
            return PostTransport(self.client, self.headers, landing, self, pieces=self.pieces)
        return StreamTransport(
            self.client, self.headers, landing, self, patience_s=self.connect_patience_s
        )

    async def _serve(self, transport: Transport) -> None:
        """Send what there is to send; raises when the connection is gone."""
        watch = self._watch(transport)
        try:
            while True:
                transport.check()
                self._wake.clear()
                if self.fetch_wanted is not None and self._may_fetch(transport):
                    self.fetch_sent = True
                    if not await transport.fetch(self._asked(self.fetch_wanted)):
                        self.fetch_sent = False
                    continue
                if self._to_tell and not self.queue:
                    clock, self._to_tell = self._to_tell, 0
                    self._told = max(self._told, clock)
                    await transport.tell(self.fragments.stop, clock)
                    continue
                run = self._next_run(transport.records_max)
                if run is None:
                    self._idle = transport
                    try:
                        await self._wake.wait()
                    finally:
                        self._idle = None
                    continue
                portion, first, count = run
                portion.send(first, count)
                if not await transport.push(self._run(portion, first, count)):
                    portion.take_back(first, count)
        finally:
            watch.stop()

    def _may_fetch(self, transport: Transport) -> bool:
        """Whether the fetch that is wanted may be asked for now.

        Where requests are answered in turn, one that waits for others must not keep from them what
        they may be waiting for: what is to be pushed goes first, however often it is tried.
        """
        if self.fetch_sent:
            return False
        behind = self._fetching.behind
        if behind is not None:
            return not self.queue or self.queue[0].number > behind
        in_turn = self._fetching.notice.waits and not transport.is_pipelined
        return not (in_turn and any(portion.next_run() for portion in self.queue))

    def _settled_notice(self) -> FetchNotice:
        """With our clock as this shard may know it: before the steps of pushes that are open."""
        notice = self._fetching.notice
        if self.group.number:
            notice = notice._replace(group=self.group)
        if self.queue and (settled := self.queue[0].push.clock - 1) < notice.clock:
            return FetchNotice(
                notice.rounds, notice.least_clock, settled, notice.policy, notice.group
            )
        return notice

    def _asked(self, request: int) -> Asked:
        """What the fetch in progress asks for, from now on."""
        now, heard, notice = self._fetching, self._heard, self._settled_notice()
        if self._to_tell <= notice.clock:
            self._told, self._to_tell = max(self._told, self._to_tell), 0
        # A shard that obeys another policy waits for nothing that this one's rule wants. One that
        # has not said what it obeys began with the first, and its next view shows if it went on.
        is_waited_for = notice.policy == max(self.view.policy, 1)
        rounds, least = (notice.rounds, notice.least_clock) if is_waited_for else (0, 0)
        now.begun_at = Age(heard.lsn, max(heard.round, rounds), max(heard.clock, least))
        return Asked(request, self.known.lsn, now.first, now.stop, notice)

    def _fetch_at_once(self, transport: Transport) -> bool:
        """As a push that finds the link idle."""
        if not self._wake.is_set() and self._may_fetch(transport):
            assert self.fetch_wanted is not None
            self.fetch_sent = transport.fetch_at_once(self._asked(self.fetch_wanted))
        return self.fetch_sent

    def _write_at_once(self, transport: Transport) -> bool:
        """A push that finds the link idle is written here, with no task between; if it is short."""
        found = self._next_run(transport.records_max)
        if found is None or self._wake.is_set():
            return False
        portion, first, count = found
        portion.send(first, count)
        run = self._run(portion, first, count)
        if transport.push_at_once(run):
            return not run.continues
        portion.unsend(first, count)
        return False

    def _watch(self, transport: Transport) -> Watch:
        """Give the connection up if answers are due and for too long not a byte has moved."""

        def moved() -> int | None:
            is_busy = bool(self.queue) or self.fetch_wanted is not None
            return transport.moved() if is_busy else None

        def give_up() -> None:
            words = (
                f"{self.describe()} has {self.open_records} records open and for "
                f"{self.limits.ack_timeout_s:g} s no byte has moved (ack_timeout_s); connecting "
                "again"
            )
            transport.abort(PeerLost(words, peer=self.entry.url))

        return Watch(Pace(self.limits.ack_timeout_s), moved, give_up)

    def _next_run(self, records_max: int) -> tuple[Portion, int, int] | None:
        """The next records to announce: (portion, fragment, count), or None."""
        if self._held_until and asyncio.get_running_loop().time() < self._held_until:
            return None
        behind = self._fetching.behind if self.fetch_wanted is not None else None
        for portion in self.queue:
            if behind is not None and portion.number > behind:
                return None
            run = portion.next_run()
            if run is not None:
                fragment, count = run
                return portion, fragment, min(count, records_max)
        return None

    def _run(self, portion: Portion, first: int, count: int) -> Run:
        """The records of fragments first .. first + count - 1 of a push, as they are written."""
        continues = portion.next_run() is not None
        announcement = frames.push(
            replica=self.replica,
            incarnation=self.incarnation,
            push=portion.number,
            fragment=first,
            count=count,
            continues=continues,
            notice=portion.notice(self.first_open, self.entry.index),
        )
        return Run(announcement, portion.frames(first, count), count, continues)

    # -- what the transport reports --------------------------------------------------------------

    def on_open(self) -> None:
        """The shard has taken us in."""
        self.connected = True

    def on_lost(self) -> None:
        """The connection is gone."""
        self._wake.set()

    def on_frame(self, frame: _core.Frame) -> None:
        """One frame from the shard that is not parameters."""
        if frame.kind == Kind.ACK:
            receipt = frames.receipt(frame)
            self._see(receipt.view)
            if receipt.level < self._level_min:
                raise self._unsafe(receipt.level)
            if receipt.applied != frame.count:
                self._question(frame, receipt)
                self.duplicates += frame.count - receipt.applied
            heard = self._heard
            if frame.version > heard.lsn:
                self._heard = Age(frame.version, heard.round, heard.clock)
            self._settle(frame, staleness=receipt.staleness)
        elif frame.kind == Kind.REFUSE:
            self._refused(frame)
        elif frame.kind == Kind.FETCHED:
            if frame.seq == self.fetch_wanted:
                view = View.decode(frame.payload)
                self._see(view)
                age = Age(frame.version, view.round, view.least_clock)
                (self.fetch_begins if frame.flags else self.fetch_done)(age)
        elif frame.kind == Kind.VIEW:
            self._viewed(frame)
        elif frame.kind == Kind.ERROR:
            words = clip(frame.payload.decode("utf-8", "replace"))
            if frame.aux == Code.FULL:
                raise LimitExceeded(words, peer=self.entry.url)
            if frame.aux == Code.WRONG_EPOCH:
                raise WrongEpoch(words, peer=self.entry.url)
            raise PeerLost(f"{self.describe()} ended the stream: {words}", peer=self.entry.url)

    def _see(self, view: View) -> None:
        """What the shard says of the cluster."""
        if view.policy > self.view.policy:
            self.on_policy(view.policy)
        self.view = view

    def _unsafe(self, level: int) -> JobFailed:
        """What the job was promised does not hold: what is acknowledged may be lost."""
        return JobFailed(
            f"{self.describe()} acknowledges a push at the level {LEVELS[level]} of durability, "
            f"and the job asks for {LEVELS[self._level_min]}: start the job anew, with shards that "
            "keep a journal of that level"
        )

    def _question(self, ack: _core.Frame, receipt: frames.Receipt) -> None:
        """A record that was sent once cannot have been applied before: it is applied nowhere."""
        duplicates = ack.count - receipt.applied
        portion = self._portion(ack)
        if duplicates > (portion.in_doubt(ack.fragment, ack.count) if portion else 0):
            raise JobFailed(
                f"{self.describe()} calls {duplicates} of the fragments {ack.fragment} to "
                f"{ack.fragment + ack.count - 1} of push {ack.seq} duplicates, and replica "
                f"{self.replica} incarnation {self.incarnation} sent more of them only once: a "
                "gradient would be acknowledged that was never applied. Somebody else pushes under "
                "this id, or the shard's memory is damaged; start the job anew"
            )

    def _viewed(self, frame: _core.Frame) -> None:
        """Something waits for others, and for whom; or what waited may come now."""
        self._see(View.decode(frame.payload))
        if frame.flags & frames.VIEW_SEND_AGAIN:
            self._held, self._held_until = "", 0.0
            self.turned_down.ended(asyncio.get_running_loop().time())
            self._wake.set()
        else:
            words = frame.payload[frames.VIEW.size :].decode("utf-8", "replace")
            self._held, self._is_troubled = clip(words, limits.LABEL_LEN_MAX), True

    def fetch_begins(self, age: Age) -> None:
        """An answer that takes long begins with parameters of an age."""
        self._fetching.begun_at = max(self._fetching.begun_at, age)

    def _fetch_cut_off(self, first: int) -> None:
        """The fetch in progress was cut off; fragments before ``first`` have landed."""
        self._got_somewhere()
        self._fetching.first = first
        if self._fetching.floor is None:
            self._fetching.floor = self._fetching.begun_at

    def fetch_done(self, age: Age) -> None:
        """The fetch in progress is complete, in an answer that began with parameters of an age.

        If it was cut off before, what landed first is only as new as its first attempt.
        """
        self._got_somewhere()
        self._heard = max(self._heard, age)
        floor = self._fetching.floor
        self.fetched = age if floor is None else floor
        if not self._fetching.stop:
            self.known = max(self.known, self.fetched)
        self.fetch_wanted = None
        if self.queue:
            self._wake.set()  # for pushes that waited for it
        self.on_fetched()

    def _refused(self, frame: _core.Frame) -> None:
        words = clip(frame.payload.decode("utf-8", "replace"))
        if frame.aux in (Code.FENCED, Code.UNKNOWN):
            raise frames.refusal_error(Code(frame.aux), words)
        if frame.aux in frames.NOT_NOW:
            self._hold(frame, words)
            return
        if frame.aux == Code.NOTHING_KEPT:
            portion = self._portion(frame)
            if portion is not None:
                portion.send_whole(frame.fragment, frame.count)
                self._wake.set()
            return
        is_superseded = frame.aux == Code.SUPERSEDED
        if not is_superseded:
            log.warning("%s refused a push: %s", self.describe(), words)
        by_policy = is_superseded or frame.aux == Code.POLICY
        self._settle(frame, refused=words, by_policy=by_policy, superseded=is_superseded)

    def _hold(self, frame: _core.Frame, words: str) -> None:
        """The shard does not take these records now: they are sent again a little later.

        On a stream it says itself when it takes what was NOT_YET.
        """
        code, portion = Code(frame.aux), self._portion(frame)
        self._is_troubled = True
        if portion is not None:
            portion.take_back(frame.fragment, frame.count)
        if code in (Code.FULL, *BY_RULE):
            self.turned_down.begins(asyncio.get_running_loop().time(), by_rule=code in BY_RULE)
        if code is Code.NOT_YET and not self.fallback:
            self._held, self._held_until = words, math.inf
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._held_until:
            return  # said together with others
        if not self._held:
            level = logging.DEBUG if code in BY_RULE else logging.WARNING
            log.log(level, "%s: %s; trying again", self.describe(), words)
        self._held = words
        delay_s = self._holds.next_s()
        self._held_until = loop.time() + delay_s
        loop.call_later(delay_s, self._hold_no_more, self._held_until)

    def _hold_no_more(self, until: float) -> None:
        """A timer may be early by the clock's resolution, and nothing else would wake us later."""
        if self._held_until == until:
            self._held_until = 0.0
        self._wake.set()

    def _portion(self, answer: _core.Frame) -> Portion | None:
        """What the push that an answer is about has open here."""
        number = answer.seq
        for portion in self.queue:
            if portion.number == number:
                return portion
        return None

    def _settle(
        self,
        answer: _core.Frame,
        *,
        staleness: int = 0,
        refused: str = "",
        by_policy: bool = False,
        superseded: bool = False,
    ) -> None:
        if answer.count:
            self._got_somewhere()
        portion = self._portion(answer)
        unused: list[int] = []
        if portion is not None and (refused or portion.push.again is not None):
            unused = portion.open_in(answer.fragment, answer.count)
            if not refused:
                unused = [one for one in unused if portion.is_again(one)]
                portion.push.repeated += len(unused)
        if portion is not None and (fresh := portion.settle(answer.fragment, answer.count)):
            push = portion.push
            push.staleness = max(push.staleness, staleness)
            push.unused_fragments += unused
            if refused:
                push.refused += fresh
                push.superseded += fresh if superseded else 0
                push.blamed += 0 if by_policy else fresh
                push.reason = push.reason or refused
                push.by_policy = by_policy
            if portion.open == 0:
                if push.refused or portion is not self.queue[0]:
                    self._to_tell = max(self._to_tell, push.clock)
                self.queue.remove(portion)
                self._answered = max(self._answered, portion.number)
                push.open_portions -= 1
            self.on_answered(push)
        is_to_fetch = self.fetch_wanted is not None and not self.fetch_sent
        if self.queue or self._to_tell or is_to_fetch:
            self._wake.set()
