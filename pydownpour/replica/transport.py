"""Two ways to a shard with the same frames on both: an upgraded stream, or POST and GET.

The stream is the way; POST and GET are for where a proxy refuses Upgrade: slower, same semantics,
chosen by itself. A transport is told what to write and where parameters land, and reports what
happens to its :class:`Listener`. It knows nothing of pushes: who numbers records, keeps them and
sends them again is the link.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core, limits
from pydownpour.errors import ConfigError, DownpourError, PeerLost, TooLarge, TransportError
from pydownpour.layout import Flat, raw
from pydownpour.net.client import Client
from pydownpour.net.reader import receive
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.replica.pieces import RECORDS_MAX, Pieces
from pydownpour.wire import frames, messages
from pydownpour.wire.frames import Age, FetchNotice, Kind

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Whom a transport reports to."""

    def on_open(self) -> None:
        """The shard has taken us in, or answered."""

    def on_frame(self, frame: _core.Frame) -> None:
        """A frame that is not parameters."""

    def on_lost(self) -> None:
        """The connection is gone; ``check`` says why."""

    def fetch_begins(self, age: Age) -> None:
        """An answer that takes long begins with parameters of an age."""

    def fetch_done(self, age: Age) -> None:
        """An answer is complete that began with parameters of an age."""


@final
@dataclasses.dataclass(slots=True)
class Run:
    """Records of one push in a row, as they are written.

    Attributes:
        announcement: The PUSH frame that goes ahead.
        frames: Those of the records.
        count: How many they are.
        continues: The push has more for the shard.
    """

    announcement: bytes
    frames: memoryview
    count: int
    continues: bool = False

    def batches(self, size: int) -> Iterator[memoryview]:
        """The frames, so many bytes at a time: between two there are other things to do."""
        for start in range(0, len(self.frames), size):
            yield self.frames[start : start + size]


@final
class Asked(NamedTuple):
    """What a fetch asks for.

    Attributes:
        request: Its number.
        since: What changed after this LSN,
        first: from this fragment on,
        stop: and before this one (0: to the shard's last),
        notice: when what this waits for is so.
    """

    request: int
    since: int
    first: int
    stop: int
    notice: FetchNotice

    @property
    def limit(self) -> int:
        """How many fragments from ``first`` on, as the wire has it; 0: to the shard's last."""
        return max(self.stop - self.first, 0)


class Transport(Protocol):
    """One connection to a shard; an async context manager that opens and closes it.

    Attributes:
        bytes_sent, bytes_received: By this connection so far.
    """

    is_pipelined: ClassVar[bool]
    """Several questions may be asked before the first is answered."""

    bytes_sent: int
    bytes_received: int

    async def __aenter__(self) -> Transport: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def check(self) -> None:
        """Raise if the connection is gone."""

    def moved(self) -> int | None:
        """Bytes that left this machine or reached it; None where that is watched elsewhere."""

    def landed(self) -> tuple[int, int]:
        """Of the fetch last asked for: (fragments that came, the fragment behind the last one)."""

    @property
    def records_max(self) -> int:
        """Records to announce at once."""

    def abort(self, error: PeerLost) -> None:
        """Give the connection up; whoever uses it sees the error."""

    def push_at_once(self, run: Run) -> bool:
        """Write records now, if they are few and nothing is in their way; False: use ``push``."""

    async def push(self, run: Run) -> bool:
        """Send records. False: something on the way has no room for so many; send them again."""

    def fetch_at_once(self, asked: Asked) -> bool:
        """Ask now, if nothing is in the way; False: use ``fetch``."""

    async def fetch(self, asked: Asked) -> bool:
        """Ask. False: it still waits for what its notice says, and is to be asked for again."""

    async def tell(self, behind: int, clock: int) -> None:
        """Say how many steps are finished: by a fetch that wants nothing, from ``behind`` on."""


@final
class Landing:
    """Where the parameters of one connection land, and how far they have come.

    Shapes:
        values: (elements of the shard,) float32.
        versions: (fragments,) uint64.
    """

    def __init__(
        self,
        values: Flat,
        versions: NDArray[np.uint64],
        fragment_len: int,
        first_fragment: int,
    ) -> None:
        self.values = values
        self.inlet = _core.ReplicaInlet(
            len=len(values),
            fragment_len=fragment_len,
            first_fragment=first_fragment,
            control_size_max=limits.CONTROL_SIZE_MAX,
        )
        self.inlet.set_target(values, versions)
        self._before = 0
        """Fragments that had landed when the fetch under way was asked for."""

    def begin(self) -> None:
        """A fetch is asked for."""
        self._before, _ = self.inlet.landed()

    def landed(self) -> tuple[int, int]:
        """As :meth:`Transport.landed`."""
        count, behind = self.inlet.landed()
        return count - self._before, behind


@final
class StreamTransport(StreamProtocol):
    """The upgraded stream: parameters land in the target, other frames are told.

    Args:
        client: Of the shard.
        headers: Who we are.
        landing: Where parameters go.
        listener: Told of everything else.
        patience_s: For the stream to open.
    """

    is_pipelined: ClassVar[bool] = True

    def __init__(
        self,
        client: Client,
        headers: dict[str, str],
        landing: Landing,
        listener: Listener,
        *,
        patience_s: float,
    ) -> None:
        super().__init__(client.limits)
        self._client, self._headers, self._patience_s = client, headers, patience_s
        self._landing, self._listener = landing, listener
        self._inlet = landing.inlet
        self._buffers = (memoryview(landing.inlet), raw(landing.values))

    async def __aenter__(self) -> StreamTransport:
        await self._client.upgrade("/v1/stream", self._headers, self, timeout_s=self._patience_s)
        self._listener.on_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self.is_open:
            return
        self.close()
        try:
            async with asyncio.timeout(self._client.limits.shutdown_s / 3):
                await self.wait_closed()
        except TimeoutError:
            self.abort()

    # -- what comes ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> Any:
        """The inlet's scratch for headers, the target itself for parameters."""
        which, start, stop = self._inlet.window()
        return self._buffers[which][start:stop]

    def received(self, n: int) -> None:
        """Take frames out as they complete."""
        frame = self._inlet.advance(n)
        while frame is not None:
            if frame.kind == Kind.PING:
                self.write(frames.simple(Kind.PONG, seq=frame.seq))
            else:
                self._listener.on_frame(frame)
            frame = self._inlet.advance(0)

    def lost(self, error: BaseException | None) -> None:
        """Tell the listener."""
        self._listener.on_lost()

    # -- what goes -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the reason the stream ended, if it has."""
        if self.is_open:
            return
        if isinstance(self.error, DownpourError):
            raise self.error
        url = self._client.url
        raise PeerLost(f"connection to {url} broke: {self.error or 'closed by the peer'}", peer=url)

    def moved(self) -> int | None:
        """What has left and what has come."""
        return self.bytes_sent - self.unsent + self.bytes_received

    def landed(self) -> tuple[int, int]:
        """As :meth:`Transport.landed`."""
        return self._landing.landed()

    @property
    def records_max(self) -> int:
        """As :meth:`Transport.records_max`."""
        return RECORDS_MAX

    def push_at_once(self, run: Run) -> bool:
        """In one write, if it is a single batch."""
        if (
            len(run.frames) > self.limits.write_batch_size
            or not self.is_writable
            or not self.is_open
        ):
            return False
        self.write_many([run.announcement, run.frames])
        return True

    async def push(self, run: Run) -> bool:
        """Write batch by batch, as fast as the peer takes it."""
        self.check()
        # The announcement goes with the first records: by itself it would be a packet of its own
        # that wakes the shard for nothing.
        ahead: list[Any] = [run.announcement]
        for batch in run.batches(self.limits.write_batch_size):
            self.write_many([*ahead, batch])
            ahead.clear()
            if not self.is_writable:
                await self.wait_writable()
            self.check()
        return True

    def fetch_at_once(self, asked: Asked) -> bool:
        """One frame; the answer comes by itself."""
        if not self.is_open:
            return False
        self._landing.begin()
        self.write(
            frames.fetch(
                request=asked.request, since=asked.since, first=asked.first, count=asked.limit,
                notice=asked.notice,
            )
        )  # fmt: skip
        return True

    async def fetch(self, asked: Asked) -> bool:
        """The same."""
        self.check()
        return self.fetch_at_once(asked)

    async def tell(self, behind: int, clock: int) -> None:
        """One frame, whose answer is nobody's."""
        self.check()
        notice = FetchNotice(clock=clock)
        self.write(frames.fetch(request=0, since=0, first=behind, notice=notice))


@final
class PostTransport:
    """The same frames as request and response bodies.

    Args:
        client: Of the shard.
        headers: Who we are.
        landing: Where parameters go.
        listener: Told of everything else.
        pieces: How many records a body carries; outlives connections.
    """

    is_pipelined: ClassVar[bool] = False

    def __init__(
        self,
        client: Client,
        headers: dict[str, str],
        landing: Landing,
        listener: Listener,
        *,
        pieces: Pieces,
    ) -> None:
        self._client, self._headers, self._pieces = client, headers, pieces
        self._landing, self._listener = landing, listener
        self.bytes_sent = self.bytes_received = 0

    async def __aenter__(self) -> PostTransport:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close: the client keeps what connections it needs."""

    def check(self) -> None:
        """Nothing to check: every request opens what it needs."""

    def moved(self) -> int | None:
        """Every request watches itself."""
        return None

    def landed(self) -> tuple[int, int]:
        """As :meth:`Transport.landed`."""
        return self._landing.landed()

    def abort(self, error: PeerLost) -> None:
        """Nothing to drop: every request has a time limit of its own."""

    @property
    def records_max(self) -> int:
        """What moves in a fair time."""
        return self._pieces.count

    def push_at_once(self, run: Run) -> bool:
        """A request has to be waited for."""
        return False

    async def push(self, run: Run) -> bool:
        """One request; its answer settles the records."""
        size = len(run.announcement) + len(run.frames)
        clock = asyncio.get_running_loop().time
        began = clock()
        # Whoever stands between may have taken all of it, and pass it on as slowly as a link may
        # be: the answer to one record is waited for as long as that takes.
        behind_s = min(size, limits.PAYLOAD_SIZE_MAX) / self._client.limits.link_rate_min
        try:
            body = await self._client.exchange(
                "/v1/push",
                itertools.chain(
                    [run.announcement], run.batches(self._client.limits.write_batch_size)
                ),
                self._headers,
                size=size,
                size_max=limits.POST_FRAMES_SIZE_MAX,
                timeout_s=self._client.limits.ack_timeout_s + behind_s,
            )
        except TooLarge as error:
            self._too_large(run.count, size, error)
            return False
        except TransportError as error:
            if isinstance(error, PeerLost):
                self._listener.on_open()  # and lost again
            self._pieces.broke()
            raise
        self._listener.on_open()
        self._pieces.sent(run.count, clock() - began)
        self.bytes_sent += size
        self.bytes_received += len(body)
        for frame in _core.scan_frames(body):
            self._listener.on_frame(frame)
        return True

    def _too_large(self, count: int, size: int, error: TooLarge) -> None:
        """Smaller pieces from now on.

        Raises:
            ConfigError: one record is too much.
        """
        if not self._pieces.refused(count):
            raise ConfigError(
                f"{error}. A body of {size} bytes is one fragment of a push, and there is nothing "
                "smaller to send: raise the limit on bodies there (nginx: client_max_body_size), "
                "or let it pass Upgrade on"
            ) from error
        log.warning(
            "%s; a body of %d bytes was too large, sending at most %d records in one from now on",
            error, size, self._pieces.count,
        )  # fmt: skip

    def fetch_at_once(self, asked: Asked) -> bool:
        """A request has to be waited for."""
        return False

    async def fetch(self, asked: Asked) -> bool:
        """Read the answer into the target as it comes.

        The shard holds one that waits for others for a while, and then says that it still does.
        """

        def heard(size: int) -> None:
            self._listener.on_open()
            self.bytes_received += size

        self._landing.begin()
        age = await receive(
            self._client,
            self._landing.values,
            self._headers | {messages.HEADER_GROUP: asked.notice.group.proof},
            inlet=self._landing.inlet,
            since=asked.since,
            first=asked.first,
            query=f"&count={asked.limit}{_query(asked.notice)}",
            heard=heard,
            begins=self._listener.fetch_begins,
            waits=self._listener.on_frame,
        )
        if age is not None:
            self._listener.fetch_done(age)
        return age is not None

    async def tell(self, behind: int, clock: int) -> None:
        """One request, whose answer is empty."""
        _ = await receive(
            self._client,
            self._landing.values,
            self._headers,
            inlet=self._landing.inlet,
            since=0,
            first=behind,
            query=_query(FetchNotice(clock=clock)),
        )


def _query(notice: FetchNotice) -> str:
    """What a FETCH says, of a GET."""
    values = {**notice._asdict(), "group": notice.group.number}
    return "".join(f"&{name}={value}" for name, value in values.items())
