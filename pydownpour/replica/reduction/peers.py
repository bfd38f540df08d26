"""The two ends of a connection between members of a group.

The child calls and sends SUMs, each one fragment of what is added up at it and below, and REDUCED
behind each share of them; the parent answers with PARAMETERS and REDUCED. Where several members
push a share each, parents first say what the sums are, by REDUCED with a flag. A connection is one
group's, and ends with it; what it breaks in the middle of is made anew in the next group.

Sums land in memory that belongs to the connection, parameters in the session's staging buffer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.errors import PeerLost, RemoteProtocolError
from pydownpour.layout import Flat, raw
from pydownpour.limits import Limits
from pydownpour.net.pace import Pace, Watch
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire import frames
from pydownpour.wire.frames import Kind


class Owner(Protocol):
    """Whom the end of a connection reports to."""

    def on_progress(self, peer: Peer) -> None:
        """More fragments have landed."""

    def on_lost(self, peer: Peer) -> None:
        """The connection is gone."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What a peer has said of a share that is whole.

    Attributes:
        gradients, samples: In its sum. Of a child.
        words: Why it was not applied, or "". Of a parent.
        lsns: Of each shard, by which all of it is in the parameters. Of a parent.
    """

    gradients: int
    samples: int
    words: str
    lsns: tuple[int, ...]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a sum is that is about to be pushed: its squares, and why it cannot be, or ""."""

    squares: float
    words: str


class Peer(StreamProtocol):
    """One end: elements land in the target, the rest is kept and the owner told.

    Args:
        owner: Told of everything.
        place: Of the other end in the group.
        shares: What comes in a round: the fragments of each share, in order.
        values, words: Where elements land, and the 64 bits that each fragment brings beside them.
        fragment_len: Of the layout.
        sums: The other end is a child.

    Shapes:
        values: (elements of the layout,) float32.
        words: (fragments,) uint64.
    """

    def __init__(
        self,
        owner: Owner,
        place: int,
        shares: Sequence[range],
        *,
        values: Flat,
        words: NDArray[np.uint64],
        fragment_len: int,
        sums: bool,
        limits_: Limits,
    ) -> None:
        super().__init__(limits_)
        self.place, self.values, self.words = place, values, words
        self.payload_sent = self.payload_received = 0
        """Bytes of elements."""
        self._owner, self._sums, self._fragment_len = owner, sums, fragment_len
        self._shares = tuple(shares)
        self._order = [fragment for share in shares for fragment in share]
        self._inlet = _core.ReplicaInlet(
            len=len(values),
            fragment_len=fragment_len,
            control_size_max=limits.CONTROL_SIZE_MAX,
            sums=sums,
        )
        self._inlet.set_target(values, words)
        self._buffers = (memoryview(self._inlet), raw(values))
        # A fragment or two on their way: what is sent is a copy, and what comes is sent on.
        self.high_water = min(4 * fragment_len, limits_.write_high_water)
        self._wholes = 0
        """Shares that are whole, of all rounds."""
        self._said: dict[tuple[int, int], Said] = {}
        """(round, place among the shares) -> what was said of it, in this round and the last."""
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        """The same of what was said before it was pushed."""
        self._judged = 0
        """Shares of which that was said, of all rounds."""
        self._watch: Watch | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def _rounds(self) -> int:
        """Rounds that are whole."""
        return self._wholes // len(self._shares)

    def landed_of(self, round: int) -> int:
        """Fragments of a round that are here: the first so many in their order."""
        if self._rounds >= round:
            return len(self._order)
        before = self._rounds * len(self._order)
        return self._inlet.landed()[0] - before if self._rounds == round - 1 else 0

    def said_of(self, round: int, share: int) -> Said | None:
        """What was said of a share; ``share`` is its place among those that come here."""
        return self._said.get((round, share))

    def verdict_of(self, round: int, share: int) -> Verdict | None:
        """The same, before anybody pushed it."""
        return self._verdicts.get((round, share))

    def opened(self) -> None:
        def moved() -> int:
            return self.bytes_sent - self.unsent + self.bytes_received

        def give_up() -> None:
            self.abort(PeerLost(f"no byte has moved for {self.limits.ack_timeout_s:g} s"))

        self._watch = Watch(Pace(self.limits.ack_timeout_s), moved, give_up)
        if not self._sums:
            self._say_alive()

    def _say_alive(self) -> None:
        """Whoever called says now and then that it is there, and hears so."""
        if self.is_open:
            self.write(frames.simple(Kind.PING, seq=1))
            self._ping = self._loop.call_later(
                min(self.limits.ack_every_s, self.limits.ack_timeout_s / 4), self._say_alive
            )

    def get_buffer(self, sizehint: int) -> Any:
        """The inlet's scratch for headers, the target itself for elements."""
        which, start, stop = self._inlet.window()
        return self._buffers[which][start:stop]

    def received(self, n: int) -> None:
        """Take frames out as they complete."""
        frame = self._inlet.advance(n)
        self._progress()
        while frame is not None:
            if frame.kind == Kind.PING:
                self.write(frames.simple(Kind.PONG, seq=frame.seq))
            elif frame.kind == Kind.REDUCED:
                self._whole(frame)
            elif frame.kind == Kind.ERROR:
                raise PeerLost(frame.payload.decode("utf-8", "replace")[:200])
            elif frame.kind != Kind.PONG:
                raise RemoteProtocolError(f"a member may not send frame kind {frame.kind}")
            frame = self._inlet.advance(0)
            self._progress()

    def _progress(self) -> None:
        landed, behind = self._inlet.landed()
        count = landed - self._rounds * len(self._order)
        if count > 0:
            if count > len(self._order) or behind != self._order[count - 1] + 1:
                raise RemoteProtocolError(
                    f"fragment {behind - 1} came as number {count} of its round"
                )
            self._owner.on_progress(self)

    def _whole(self, frame: _core.Frame) -> None:
        round, share = self._rounds + 1, self._wholes % len(self._shares)
        gradients, samples, words, lsns = frames.reduced_parts(frame)
        if frame.flags & frames.REDUCED_VERDICT:
            self._judge(frame, round, words)
            return
        landed, whole = self.landed_of(round), sum(map(len, self._shares[: share + 1]))
        if (frame.seq, landed) != (round, whole):
            raise RemoteProtocolError(
                f"share {share} of round {frame.seq} is called whole with {landed} of {whole} "
                f"fragments, in round {round}"
            )
        self._said.pop((round - 2, share), None)
        self._said[round, share] = Said(gradients, samples, words, lsns)
        self.payload_received += sum(map(self._size, self._shares[share]))
        self._wholes += 1
        self._owner.on_progress(self)

    def _judge(self, frame: _core.Frame, round: int, words: str) -> None:
        """What a sum is that is about to be pushed."""
        squares = frames.reduced_squares(frame)
        share = self._judged - (round - 1) * len(self._shares)
        is_early = not self._wholes % len(self._shares) and 0 <= share < len(self._shares)
        if self._sums or frame.seq != round or not is_early:
            raise RemoteProtocolError(
                f"what a sum of round {frame.seq} is was said as number {share + 1} of "
                f"{len(self._shares)} in round {round}"
            )
        if not 0 <= squares < math.inf:
            raise RemoteProtocolError(f"a sum whose squares add up to {squares}")
        self._verdicts.pop((round - 2, share), None)
        self._verdicts[round, share] = Verdict(squares, words)
        self._judged += 1
        self._owner.on_progress(self)

    def _size(self, fragment: int) -> int:
        """Bytes of a fragment's elements."""
        start = fragment * self._fragment_len
        return 4 * (min(start + self._fragment_len, len(self.values)) - start)

    def lost(self, error: BaseException | None) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._ping is not None:
            self._ping.cancel()
        self._owner.on_lost(self)

    # -- what goes -------------------------------------------------------------------------------

    async def send(self, kind: Kind, fragment: int, values: Flat, word: int, *, round: int) -> None:
        """One fragment, when there is room for it.

        Raises:
            PeerLost: the connection is gone.
        """
        if not self.is_writable:
            await self.wait_writable()
        self.check()
        self.write(
            _core.encode_frame(
                kind=kind, dtype=1, fragment=fragment, seq=round, version=word,
                payload=raw(values),
            )
        )  # fmt: skip
        self.payload_sent += values.nbytes

    def say_whole(
        self,
        round: int,
        gradients: int = 0,
        samples: int = 0,
        words: str = "",
        lsns: Sequence[int] = (),
    ) -> None:
        """What was sent of a share is all."""
        self.write(
            frames.reduced(
                round=round, gradients=gradients, samples=samples, words=words[:1000], lsns=lsns
            )
        )

    def say_verdict(self, round: int, verdict: Verdict) -> None:
        """What a sum is that is about to be pushed."""
        words, squares = verdict.words[:1000], verdict.squares
        self.write(frames.reduced(round=round, words=words, squares=squares))

    def check(self) -> None:
        """Raise if the connection is gone."""
        if not self.is_open:
            raise PeerLost(f"a connection of a group broke: {self.error or 'closed by the peer'}")


@final
class Child(Peer):
    """A parent's end: the child's sums land in memory of its own."""

    def __init__(
        self,
        owner: Owner,
        place: int,
        shares: Sequence[range],
        *,
        len_: int,
        fragment_len: int,
        limits_: Limits,
    ) -> None:
        fragments = -(-len_ // fragment_len)
        super().__init__(
            owner,
            place,
            shares,
            values=np.empty(len_, np.float32),
            words=np.zeros(fragments, np.uint64),
            fragment_len=fragment_len,
            sums=True,
            limits_=limits_,
        )

    @property
    def weights(self) -> NDArray[np.float64]:
        """By fragment, the sum of the weights of the gradients in it."""
        return self.words.view(np.float64)


@final
class Parent(Peer):
    """A child's end: parameters land where those land that are fetched."""

    def __init__(
        self,
        owner: Owner,
        place: int,
        shares: Sequence[range],
        *,
        staging: Flat,
        versions: NDArray[np.uint64],
        fragment_len: int,
        limits_: Limits,
    ) -> None:
        super().__init__(
            owner, place, shares,
            values=staging, words=versions, fragment_len=fragment_len, sums=False, limits_=limits_,
        )  # fmt: skip
