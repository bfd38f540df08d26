"""The two ends of a connection between members of a group.

The child calls and sends SUMs, one fragment of its subtree's sum each, then REDUCED; the parent
answers with PARAMETERS and REDUCED. A connection is one group's, and ends with it; what it breaks
in the middle of is made anew in the next group.

Sums land in memory that belongs to the connection, parameters in the session's staging buffer.
"""

from __future__ import annotations

import asyncio
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

    def on_whole(self, peer: Peer, round: int, words: str, lsns: Sequence[int]) -> None:
        """The peer says that what it sent of a round is whole."""

    def on_lost(self, peer: Peer) -> None:
        """The connection is gone."""


class Peer(StreamProtocol):
    """One end: elements land in the target, the rest is told to the owner.

    Args:
        owner: Told of everything.
        place: Of the other end in the group.
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
        self._owner, self._sums, self._fragments = owner, sums, len(words)
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
        self._before = 0
        """Fragments that had landed when the round under way began."""
        self.rounds = 0
        """Rounds that are whole."""
        self.totals = (0, 0)
        """Of the last of them: (gradients, samples) in the sum."""
        self._watch: Watch | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def landed_of(self, round: int) -> int:
        """Fragments of a round that are here: those before this one."""
        if self.rounds >= round:
            return self._fragments
        return self._inlet.landed()[0] - self._before if self.rounds == round - 1 else 0

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
        count, behind = self._inlet.landed()
        if count > self._before:
            if behind != count - self._before:
                raise RemoteProtocolError(
                    f"fragment {behind - 1} came as number {count - self._before} of its round"
                )
            self._owner.on_progress(self)

    def _whole(self, frame: _core.Frame) -> None:
        round, landed = self.rounds + 1, self.landed_of(self.rounds + 1)
        if (frame.seq, landed) != (round, self._fragments):
            raise RemoteProtocolError(
                f"round {frame.seq} is called whole with {landed} of {self._fragments} fragments, "
                f"in round {round}"
            )
        gradients, samples, words, lsns = frames.reduced_parts(frame)
        self._before += self._fragments
        self.rounds, self.totals = round, (gradients, samples)
        self.payload_received += 4 * len(self.values)
        self._owner.on_whole(self, round, words, lsns)

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
        """What was sent of a round is all."""
        self.write(
            frames.reduced(
                round=round, gradients=gradients, samples=samples, words=words[:1000], lsns=lsns
            )
        )

    def check(self) -> None:
        """Raise if the connection is gone."""
        if not self.is_open:
            raise PeerLost(f"a connection of a group broke: {self.error or 'closed by the peer'}")


@final
class Child(Peer):
    """A parent's end: the child's sums land in memory of its own."""

    def __init__(
        self, owner: Owner, place: int, *, len_: int, fragment_len: int, limits_: Limits
    ) -> None:
        fragments = -(-len_ // fragment_len)
        super().__init__(
            owner,
            place,
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
        *,
        staging: Flat,
        versions: NDArray[np.uint64],
        fragment_len: int,
        limits_: Limits,
    ) -> None:
        super().__init__(
            owner, place, values=staging, words=versions, fragment_len=fragment_len, sums=False,
            limits_=limits_,
        )  # fmt: skip
