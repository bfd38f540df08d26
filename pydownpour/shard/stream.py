"""One replica's connection to a shard.

Bytes land in the core's scratch, fragment by fragment, and are checked, applied and published
while they are in cache. Python runs once per network read and once per push; it answers what the
core reports. A fetch is sent from the published stripes themselves, a batch at a time, as fast as
the peer takes it, between acknowledgements.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from typing import Any, final

from pydownpour import _core
from pydownpour.errors import (
    DownpourError,
    LimitExceeded,
    PeerLost,
    RemoteProtocolError,
    WrongEpoch,
)
from pydownpour.net.pace import Pace, Watch
from pydownpour.policy import Accumulate, Apply, NotYet, PushInfo, Wait
from pydownpour.shard.state import Admitted, PushTally, Shard, Stream
from pydownpour.shard.turns import Share
from pydownpour.wire import frames
from pydownpour.wire.frames import Code, FetchNotice, Kind

log = logging.getLogger(__name__)

FETCHES_QUEUED_MAX = 8
"""Unanswered fetches of one replica; a replica of ours has one."""


@final
class PushHandler:
    """What a shard answers to one replica's pushes: events of the core in, answer bytes out.

    The same over a stream and over POST.
    """

    def __init__(self, shard: Shard, replica: int, incarnation: int) -> None:
        self.shard, self.replica, self.incarnation = shard, replica, incarnation
        self._inlet: _core.ShardInlet | None = None
        self.share = Share(shard.turns)
        self.tally = PushTally()
        self.lsn = 0
        """The latest that an answer named."""
        self.postponed: PushInfo | None = None
        """The first push that the policy has turned down and nobody has asked for again."""

    @property
    def inlet(self) -> _core.ShardInlet:
        """Where bytes go; its memory is reserved when the first one comes.

        Raises:
            LimitExceeded: there is none left to reserve.
        """
        if self._inlet is None:
            self._inlet = self.shard.inlet()
        return self._inlet

    @property
    def is_resting(self) -> bool:
        """No memory is reserved for it."""
        return self._inlet is None

    def rest(self) -> None:
        """Reserve none, unless a push is under way or a byte of a frame has come."""
        if self._inlet is not None and self._inlet.is_idle():
            self.close()

    def settled(self) -> _core.Settled | None:
        """What was settled since the last report, and maybe nothing; None if no push is applied."""
        return None if self._inlet is None else self._inlet.settled()

    def close(self) -> None:
        """Give back the memory reserved for it."""
        if self._inlet is not None:
            self._inlet = None
            self.shard.release_inlet()

    def answer(self, event: _core.Frame | _core.Settled | _core.Refusal) -> bytes | None:
        """The frame that answers an event about a push, or None if there is nothing to say.

        Raises:
            RemoteProtocolError: a frame that is not a replica's to send.
        """
        if isinstance(event, _core.Settled):
            self.shard.count_settled(event, self.tally, self.incarnation)
            if event.count:
                self.lsn = max(self.lsn, event.lsn)
            return frames.ack(
                event,
                replica=self.replica,
                incarnation=self.incarnation,
                level=self.shard.gate.rank,
                view=self.shard.rounds.shown,
            )
        if isinstance(event, _core.Refusal):
            self._refused(frames.Code(event.code), 1)
            return frames.refuse(
                push=event.push,
                fragment=event.fragment,
                count=1,
                code=frames.Code(event.code),
                words=self.shard.refusal_words(event, self.replica),
            )
        if event.kind == Kind.PUSH:
            return self._push(event)
        raise RemoteProtocolError(f"a replica may not send frame kind {event.kind}")

    def _push(self, frame: _core.Frame) -> bytes | None:
        if (frame.replica, frame.incarnation) != (self.replica, self.incarnation):
            raise RemoteProtocolError(
                f"push of replica {frame.replica}.{frame.incarnation} on the connection of "
                f"replica {self.replica}.{self.incarnation}"
            )
        if not (self.tally.continues or self.tally.is_postponed):
            self.tally = PushTally()
        self.tally.continues = bool(frame.flags & frames.PUSH_CONTINUES)
        self.tally.is_postponed = False
        answer = self.shard.admit(frame)
        if isinstance(answer, Admitted):
            self.tally.info, self.tally.policy = answer.push, self.shard.rounds.policy.version
            self.tally.is_done = answer.is_done
            self._accept(answer)
            return None
        self.inlet.skip()
        self._refused(answer.code, frame.count)
        self.postponed = self.postponed or answer.push
        return frames.refuse(
            push=frame.seq,
            fragment=frame.fragment,
            count=frame.count,
            code=answer.code,
            words=answer.words,
        )

    def _accept(self, admitted: Admitted) -> None:
        decision, scale = admitted.decision, admitted.decision.scale
        added = decision if isinstance(decision, Accumulate) else None
        self.inlet.accept(
            scale=scale.factor,
            staleness_power=scale.staleness_power,
            staleness_max=decision.staleness_max if isinstance(decision, Apply) else None,
            round=added.round if added is not None else None,
            weight=added.weight if added is not None else 1.0,
            samples=admitted.push.samples,
        )

    def check_group(self) -> None:
        """Between two records: whether the push under way may still be applied.

        Whoever has said of a newer group sees what is applied by then, and nothing comes after.
        Records that were applied before have their answer, as the first time: without it they
        would be sent again for ever.

        Raises:
            PeerLost: it is a sum of an older one; what is left of it is to be announced again.
        """
        push = self.tally.info
        if push is None or self.tally.is_done:
            return
        if self.shard.rounds.is_void(push) and self.settled() is not None:
            raise PeerLost(f"group {push.round} of replicas was replaced while it pushed")

    def may_come_now(self) -> bool:
        """Whether to ask for what was turned down; then it is forgotten here."""
        push = self.postponed
        if push is None or isinstance(self.shard.rounds.decide(push), NotYet):
            return False
        self.postponed = None
        return True

    def _refused(self, code: frames.Code, records: int) -> None:
        if code in frames.OPEN:
            self.tally.is_postponed = True
        elif code is Code.SUPERSEDED:
            self.shard.count_superseded(records, self.tally)
        else:
            self.shard.count_refused(self.replica, records, self.tally)


@final
class ShardStream(Stream):
    """The shard's end of one upgraded connection."""

    def __init__(self, shard: Shard, replica: int, incarnation: int) -> None:
        super().__init__(shard.limits)
        self._shard = shard
        self._handler = PushHandler(shard, replica, incarnation)
        self._fetches: deque[_Asked] = deque()
        self._sending: _Fetch | None = None
        self._scheduled: asyncio.Handle | None = None
        self._reading = True
        self._unfed: int | None = None
        """Bytes in the inlet's window that wait for another turn, with what came before them."""
        self._full: LimitExceeded | None = None
        """There was no memory for what came."""
        self._heard, self._is_asked = 0, False
        self._silence: asyncio.TimerHandle | None = None
        self._owed = 0
        """Bytes of answers that wait behind a full buffer."""
        self._loop = asyncio.get_running_loop()
        self._report: asyncio.TimerHandle | None = None
        self._wait: asyncio.TimerHandle | None = None
        """Runs while an answer waits for others: when it says for whom."""
        self._has_arrived = self._has_answered = False
        """Since the last report."""
        self._held: deque[tuple[int, bytes]] = deque()
        """Answers that the gate holds, each with the LSN it waits for, and all behind them."""
        self._hold: asyncio.TimerHandle | None = None
        """Runs while there are some: when it says what they wait for."""
        self._watch: Watch | None = None
        self.high_water = min(self.limits.reader_high_water, self.limits.write_high_water)

    def opened(self) -> None:
        """Become the replica's one stream; an older one is half dead and goes."""
        replica = self._handler.replica
        older = self._shard.streams.get(replica)
        self._shard.streams[replica] = self
        if older is not None:
            older.abort()
        pace = Pace(self.limits.reader_window_s, self.limits.reader_size_min)
        self._watch = Watch(pace, self._taken, self._give_up)
        self._silence = self._loop.call_later(self.limits.stream_silence_s, self._listen)

    def _taken(self) -> int | None:
        """Bytes the peer has taken; None if there are none for it to take."""
        unsent = self.unsent
        return self.bytes_sent - unsent if unsent else None

    def _give_up(self) -> None:
        self._end(
            f"took fewer than {self.limits.reader_size_min} bytes of its answers in "
            f"{self.limits.reader_window_s:g} s (reader_size_min, reader_window_s)"
        )

    def _end(self, why: str) -> None:
        words = f"replica {self._handler.replica} {why}"
        log.info("%s; its connection is closed", words)
        self.drop(PeerLost(words))

    def get_buffer(self, sizehint: int) -> Any:
        """The core's scratch, from where the last bytes ended."""
        try:
            inlet = self._handler.inlet
        except LimitExceeded as error:
            self._full = error
            return bytearray(1)  # never empty; what lands there is thrown away
        start, stop = inlet.window()
        return memoryview(inlet)[start:stop]

    def received(self, n: int) -> None:
        """Let the core apply what has arrived, and answer."""
        if self._full is not None:
            raise self._full
        self._has_arrived = True
        if self._report is None:
            self._report = self._loop.call_later(self.limits.ack_every_s, self._report_settled)
        self._advance(n)

    def _advance(self, n: int) -> None:
        """As far as this turn of the loop has room for it."""
        self._shard.check_serving()
        self._handler.check_group()
        inlet, share = self._handler.inlet, self._handler.share
        self._unfed = None
        while len(self._held) <= self.limits.answers_held_max and share.take(n):
            event = inlet.advance(n)
            if event is None:
                self._read_or_wait()
                return
            n = 0
            if isinstance(event, _core.Frame) and event.kind != Kind.PUSH:
                self._control(event)
            else:
                self._answer(event)
        self._unfed = n
        self._read_or_wait()
        if len(self._held) <= self.limits.answers_held_max:
            share.turns.later(self._catch_up)

    def _catch_up(self) -> None:
        if self.is_open and self._unfed is not None:
            self.guarded(self._advance, self._unfed)

    def _read_or_wait(self) -> None:
        """Nothing more is read while there is something to catch up with, or answers are unread."""
        wanted = self._unfed is None and self._owed <= self.limits.answers_size_max
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self.resume_reading()
            else:
                self.pause_reading()

    @property
    def is_resting(self) -> bool:
        """No memory is reserved for it."""
        return self._handler.is_resting

    def rest(self) -> None:
        """Give memory back, if nothing is under way: whoever sends next reserves it anew."""
        if self._unfed is None:
            self._handler.rest()

    def _listen(self) -> None:
        """Look for life: silence is asked about, and no answer is the end."""
        silent, self._heard = self.bytes_received == self._heard, self.bytes_received
        if silent and self._is_asked and self.unsent == 0:
            silent_s = 2 * self.limits.stream_silence_s
            self._end(f"sent nothing for {silent_s:g} s and answered no PING (stream_silence_s)")
            return
        if not silent:
            self._is_asked = False
        elif not self._is_asked:
            self._is_asked = True
            self.write(frames.simple(Kind.PING, seq=1))
        if silent:
            self.rest()
        self._silence = self._loop.call_later(self.limits.stream_silence_s, self._listen)

    def _report_settled(self) -> None:
        """Acknowledge what was settled meanwhile, and maybe nothing but that bytes arrive."""
        self._report = None
        if not self._has_arrived:
            return
        settled = self._handler.settled()
        if settled is not None and (settled.count or not self._has_answered):
            self._answer(settled)
        self._has_arrived = self._has_answered = False
        self._report = self._loop.call_later(self.limits.ack_every_s, self._report_settled)

    def _answer(self, event: _core.Frame | _core.Settled | _core.Refusal) -> None:
        answer = self._handler.answer(event)
        if answer is not None:
            self._has_answered = True
            if self._held or self._handler.lsn > self._shard.gate.durable_lsn:
                self._hold_back(answer)
            else:
                self._reply(answer)
        if self._handler.postponed is not None:
            self._wait_for_others(self._for_whom())

    def _reply(self, frame: bytes) -> None:
        """Write a small frame; those that a peer does not read add up."""
        self.write(frame)
        if not self.is_writable:
            self._owed += len(frame)

    # -- answers that wait for the journal -------------------------------------------------------

    def _hold_back(self, answer: bytes) -> None:
        """Answers keep their order: whatever comes behind one that is held is held, too."""
        self._held.append((self._handler.lsn, answer))
        self._shard.gate.waiting[self] = self._release
        if self._hold is None:
            self._hold = self._loop.call_later(self.limits.ack_every_s, self._say_what_holds)

    def _release(self) -> None:
        gate, held = self._shard.gate, self._held
        while held and held[0][0] <= gate.durable_lsn:
            self._reply(held.popleft()[1])
        if not held:
            self._hold_no_more()
        if self._unfed is not None and len(held) <= self.limits.answers_held_max:
            self._handler.share.turns.later(self._catch_up)

    def _hold_no_more(self) -> None:
        self._shard.gate.waiting.pop(self, None)
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _say_what_holds(self) -> None:
        """Bytes that say so also show the replica that somebody is there."""
        self._hold = None
        if self._held and self.is_open:
            words = self._shard.gate.words(self._held[0][0])
            self._reply(frames.view(self._shard.rounds.shown, words=words))
            self._hold = self._loop.call_later(self.limits.ack_every_s, self._say_what_holds)

    def _control(self, frame: _core.Frame) -> None:
        if frame.kind == Kind.FETCH:
            if len(self._fetches) >= FETCHES_QUEUED_MAX:
                raise RemoteProtocolError(f"more than {FETCHES_QUEUED_MAX} fetches at once")
            notice, handler = frames.fetch_notice(frame), self._handler
            self._shard.heard_group(notice.group)
            self._fetches.append(
                _Asked(
                    handler.replica, frame.seq, frame.version, frame.fragment, frame.count, notice
                )
            )
            self._shard.told(handler.replica, handler.incarnation, notice.clock)
            self._send_more()
        elif frame.kind == Kind.PING:
            self._reply(frames.simple(Kind.PONG, seq=frame.seq))
        elif frame.kind == Kind.BYE:
            self.close()
        elif frame.kind != Kind.PONG:
            raise RemoteProtocolError(f"a replica may not send frame kind {frame.kind}")

    def failed(self, error: DownpourError) -> None:
        """Tell the peer why its stream ends."""
        code = 0
        if isinstance(error, LimitExceeded):
            code = Code.FULL
        elif isinstance(error, WrongEpoch):
            code = Code.WRONG_EPOCH
        self.write(frames.error(code=code, words=str(error)))
        self.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._owed = 0
        self._read_or_wait()
        self._send_more()

    def _send_more(self) -> None:
        """Write one batch of the current fetch, and come back for the next if there is room."""
        if self._scheduled is not None or not self.is_writable or not self.is_open:
            return
        if self._sending is None:
            if not self._fetches:
                return
            wait = self._fetches[0].waits_for(self._shard)
            if wait is not None:
                self._wait_for_others(wait)
                return
            self._sending = self._fetches.popleft().answer(self._shard)
        self.write_many(self._sending.next_buffers() or [])
        if self._sending.is_over:
            self._sending = None
            self._shard.fetches += 1
        if self._sending is not None or self._fetches:
            # Through the loop, so that pushes of others are not kept waiting.
            self._scheduled = self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._scheduled = None
        self._send_more()

    # -- answers that wait for others ------------------------------------------------------------

    def _wait_for_others(self, wait: Wait | NotYet | None) -> None:
        """Be woken when anything has moved, and say for whom it waits now and then."""
        self._shard.rounds.waiting[self] = self._woken
        if wait is not None:
            self._shard.rounds.held(self, self._handler.replica, wait)
        if self._wait is None:
            self._wait = self._loop.call_later(self.limits.ack_every_s, self._say_for_whom)

    def _woken(self) -> None:
        if self.is_open:
            self.guarded(self._look_again, 0)

    def _look_again(self, _: int) -> None:
        if self._handler.may_come_now():
            self._reply(frames.view(self._shard.rounds.shown, send_again=True))
        self._send_more()
        wait = self._for_whom()
        if wait is None:
            self._wait_no_more()
        else:
            self._shard.rounds.held(self, self._handler.replica, wait)

    def _wait_no_more(self) -> None:
        if self._shard.rounds.waiting.pop(self, None) is not None:
            self._shard.rounds.let_go(self, self._handler.replica)
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _for_whom(self) -> Wait | NotYet | None:
        """For whom the first of its answers waits; None if none does."""
        if self._sending is None and self._fetches:
            wait = self._fetches[0].waits_for(self._shard)
            if wait is not None:
                return wait
        push = self._handler.postponed
        decision = self._shard.rounds.decide(push) if push is not None else None
        return decision if isinstance(decision, NotYet) else None

    def _say_for_whom(self) -> None:
        self._wait = None
        wait = self._for_whom()
        if wait is not None and self.is_open:
            self._reply(frames.view(self._shard.rounds.shown, words=wait.whom))
            self._wait_for_others(wait)

    def lost(self, error: BaseException | None) -> None:
        """Hand the counts to the shard."""
        self._wait_no_more()
        self._hold_no_more()
        self._held.clear()
        for timer in (self._scheduled, self._report, self._silence):
            if timer is not None:
                timer.cancel()
        if self._watch is not None:
            self._watch.stop()
        self._fetches.clear()
        self._sending = None
        self._handler.close()
        shard = self._shard
        shard.bytes_received += self.bytes_received
        shard.bytes_sent += self.bytes_sent
        if shard.streams.get(self._handler.replica) is self:
            del shard.streams[self._handler.replica]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A FETCH: what is wanted, and what its answer waits for."""

    replica: int
    request: int
    since: int
    first: int
    count: int
    notice: FetchNotice

    def waits_for(self, shard: Shard) -> Wait | None:
        """For whom; None if for nobody."""
        notice = self.notice
        return shard.rounds.waits_for(
            notice.rounds, notice.least_clock, policy=notice.policy, replica=self.replica
        )

    def answer(self, shard: Shard) -> _Fetch:
        return _Fetch(shard, self.request, self.since, self.first, self.count)


@final
class _Fetch:
    """The answer to one FETCH, batch by batch.

    Each fragment is sent as it is when its turn comes: the freshest there is, and a slow reader
    keeps one fragment, never a whole copy.
    """

    def __init__(self, shard: Shard, request: int, since: int, first: int, count: int) -> None:
        self._store, self._limits = shard.store, shard.limits
        self._request, self._since = request, since
        self._lsn = shard.store.lsn
        self._view = shard.rounds.shown
        self._cursor = first
        self._stop = shard.store.first_fragment + shard.store.fragments
        if count:
            self._stop = min(self._stop, first + count)
        self._frames = 0
        self.is_over = False
        """The last buffers were given out."""
        self._size = self._limits.fragment_size
        self._clock = asyncio.get_running_loop().time
        self._asked_at = self._clock()

    def next_buffers(self) -> list[Any] | None:
        """The next buffers to write, or None when the answer is complete."""
        if self.is_over:
            return None
        buffers: list[Any] = []
        if self._cursor < self._stop:
            buffers, self._cursor, count = self._store.parameter_frames(
                self._since, self._cursor, self._batch_size(), self._stop
            )
            if self._frames == 0 and self._cursor < self._stop:
                # It takes a while: if it is cut off, its reader knows from when it was.
                begins = frames.fetched(
                    request=self._request, lsn=self._lsn, view=self._view, begins=True
                )
                buffers.insert(0, begins)
            self._frames += count
        if self._cursor >= self._stop:
            self.is_over = True
            buffers.append(
                frames.fetched(
                    request=self._request, lsn=self._lsn, view=self._view, count=self._frames
                )
            )
        return buffers

    def _batch_size(self) -> int:
        """Twice as much each time, but one fragment where the last batch took long."""
        size, now = self._size, self._clock()
        is_slow = now - self._asked_at > self._limits.reader_batch_s
        self._asked_at = now
        least, most = self._limits.fragment_size, self._limits.write_batch_size
        self._size = min(least if is_slow else 2 * size, most)
        return least if is_slow else size


def fetch_batches(shard: Shard, request: int, since: int, first: int = 0, count: int = 0) -> _Fetch:
    """The answer to a fetch, over GET."""
    return _Fetch(shard, request, since, first, count)
