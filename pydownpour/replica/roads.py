"""Two roads to a shard with the same frames on both: an upgraded stream, or POST and GET.

The stream is the road; POST and GET are for where a proxy refuses Upgrade: slower, same semantics,
chosen by itself. A road is an async context manager that opens and closes the connection.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from pydownpour import _core, limits
from pydownpour.errors import ConfigError, DownpourError, PeerLost, TooLarge, TransportError
from pydownpour.layout import raw
from pydownpour.net.reader import receive
from pydownpour.replica.pieces import RECORDS_MAX
from pydownpour.replica.pushes import Part
from pydownpour.replica.stream import ReplicaStream
from pydownpour.wire import frames

if TYPE_CHECKING:
    from pydownpour.replica.link import Link

log = logging.getLogger(__name__)

BATCH_RECORDS = max(1, limits.WRITE_BATCH_SIZE // limits.FRAGMENT_SIZE)
"""Records whose headers are made together, just before their bytes are written: 1 MiB."""


class Road(abc.ABC):
    """One way to send records and fetches; answers go to the link's ``on_frame``."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inlet = _core.ReplicaInlet(
            len=link.entry.len,
            fragment_len=link.fragment_len,
            control_size_max=limits.CONTROL_SIZE_MAX,
        )
        self._inlet.set_target(link.values, link.versions)
        self._landed = 0
        """Fragments that had landed when the fetch under way was asked for."""

    def book_landed(self) -> None:
        """The connection broke: tell the link where its fetch is to go on."""
        link = self._link
        landed, behind = self._inlet.landed()
        if link.fetch_sent and link.fetch_wanted is not None and landed > self._landed:
            link.fetch_cut_off(behind)

    @abc.abstractmethod
    async def __aenter__(self) -> Road: ...

    @abc.abstractmethod
    async def __aexit__(self, *exc: object) -> None: ...

    @abc.abstractmethod
    def check(self) -> None:
        """Raise if the connection is gone."""

    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) not yet booked on the link."""
        return 0, 0

    def moved(self) -> int | None:
        """Bytes that left this machine or reached it; None where that is watched elsewhere."""
        return None

    @property
    def records_max(self) -> int:
        """Records to announce at once."""
        return RECORDS_MAX

    @abc.abstractmethod
    def abort(self, error: PeerLost) -> None:
        """Give the connection up; whoever uses it sees the error."""

    @abc.abstractmethod
    async def push(self, part: Part, first: int, count: int) -> None:
        """Announce and send records first .. first+count-1 of a part."""

    @abc.abstractmethod
    async def fetch(self, request: int, since: int, first: int) -> None:
        """Ask for what changed after LSN ``since``, from a fragment on."""

    def _announcement(self, part: Part, first: int, count: int) -> bytes:
        link = self._link
        head = link.queue[0]
        return frames.push(
            replica=link.replica,
            incarnation=link.incarnation,
            seq=part.first_seq + first,
            count=count,
            continues=part.next_run() is not None,
            notice=part.notice(head.first_seq + head.first_open),
        )

    def _records(self, part: Part, first: int, count: int) -> list[Any]:
        """Headers and payloads, alternating, of some records."""
        link = self._link
        headers = memoryview(
            _core.fragment_headers(
                part.data,
                link.dtype_code,
                fragment_len=link.fragment_len,
                first_fragment=first,
                count=count,
                replica=link.replica,
                incarnation=link.incarnation,
                first_seq=part.first_seq + first,
                versions=part.push.base[link.entry.index],
            )
        )
        size = link.fragment_len * link.item_size
        buffers: list[Any] = []
        for i in range(count):
            buffers.append(headers[i * limits.HEADER_SIZE : (i + 1) * limits.HEADER_SIZE])
            buffers.append(part.data[(first + i) * size : (first + i + 1) * size])
        return buffers


@final
class StreamRoad(Road):
    """The upgraded stream."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._stream = ReplicaStream(
            self._inlet, raw(link.values), link.on_frame, lambda error: link.wake()
        )

    async def __aenter__(self) -> Road:
        link = self._link
        await link.client.upgrade(
            "/v1/stream", link.headers, self._stream, timeout_s=link.connect_patience_s
        )
        link.connected = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        link, stream = self._link, self._stream
        self.book_landed()
        if stream.is_open:
            stream.close()
            try:
                async with asyncio.timeout(limits.SHUTDOWN_S / 3):
                    await stream.wait_closed()
            except TimeoutError:
                stream.abort()
        link.bytes_sent += stream.bytes_sent
        link.bytes_received += stream.bytes_received
        stream.bytes_sent = stream.bytes_received = 0

    def abort(self, error: PeerLost) -> None:
        """Drop the connection; ``check`` raises the error."""
        self._stream.abort(error)

    def traffic(self) -> tuple[int, int]:
        """Bytes of the open connection."""
        return self._stream.bytes_sent, self._stream.bytes_received

    def moved(self) -> int | None:
        """What has left and what has come."""
        stream = self._stream
        return stream.bytes_sent - stream.unsent + stream.bytes_received

    def check(self) -> None:
        """Raise the reason the stream ended, if it has."""
        if self._stream.is_open:
            return
        error = self._stream.error
        if isinstance(error, DownpourError):
            raise error
        raise PeerLost(
            f"connection to {self._link.describe()} broke: {error or 'closed by the peer'}",
            peer=self._link.entry.url,
        )

    async def push(self, part: Part, first: int, count: int) -> None:
        """Write batch by batch, as fast as the peer takes it."""
        stream = self._stream
        self.check()
        # The announcement goes with the first records: by itself it would be a packet of its own
        # that wakes the shard for nothing.
        ahead: list[Any] = [self._announcement(part, first, count)]
        for start in range(first, first + count, BATCH_RECORDS):
            batch = min(BATCH_RECORDS, first + count - start)
            stream.write_many([*ahead, *self._records(part, start, batch)])
            ahead.clear()
            if not stream.is_writable:
                await stream.wait_writable()
            self.check()

    async def fetch(self, request: int, since: int, first: int) -> None:
        """One frame; the answer comes by itself."""
        self.check()
        self._landed, _ = self._inlet.landed()
        self._stream.write(frames.fetch(request=request, since=since, first=first))


@final
class PostRoad(Road):
    """The same frames as request and response bodies."""

    async def __aenter__(self) -> Road:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.book_landed()

    def check(self) -> None:
        """Nothing to check: every request opens what it needs."""

    def abort(self, error: PeerLost) -> None:
        """Nothing to drop: every request has a time limit of its own."""

    @property
    def records_max(self) -> int:
        """What moves in a fair time."""
        return self._link.pieces.count

    async def push(self, part: Part, first: int, count: int) -> None:
        """One request; its answer settles the records."""
        link = self._link
        ahead = self._announcement(part, first, count)
        size = len(ahead) + self._size(part, first, count)
        clock = asyncio.get_running_loop().time
        began = clock()
        # Whoever stands between may have taken all of it, and pass it on as slowly as a link may
        # be: the answer to one record is waited for as long as that takes.
        behind_s = min(size, limits.PAYLOAD_SIZE_MAX) / limits.LINK_RATE_MIN
        try:
            body = await link.client.exchange(
                "/v1/push",
                itertools.chain([ahead], self._in_batches(part, first, count)),
                link.headers,
                size=size,
                size_max=limits.POST_FRAMES_SIZE_MAX,
                timeout_s=limits.ACK_TIMEOUT_S + behind_s,
            )
        except TooLarge as error:
            self._too_large(part, first, count, size, error)
            return
        except TransportError as error:
            link.connected = link.connected or isinstance(error, PeerLost)
            link.pieces.broke()
            raise
        link.connected = True
        link.pieces.sent(count, clock() - began)
        link.bytes_sent += size
        link.bytes_received += len(body)
        for frame in _core.scan_frames(body):
            link.on_frame(frame)

    def _too_large(self, part: Part, first: int, count: int, size: int, error: TooLarge) -> None:
        """Smaller pieces from now on.

        Raises:
            ConfigError: one record is too much.
        """
        link = self._link
        if not link.pieces.refused(count):
            raise ConfigError(
                f"{error}. A body of {size} bytes is one fragment of a push, and there is nothing "
                "smaller to send: raise the limit on bodies there (nginx: client_max_body_size), "
                "or let it pass Upgrade on"
            ) from error
        log.warning(
            "%s; a body of %d bytes was too large, sending at most %d records in one from now on",
            error, size, link.pieces.count,
        )  # fmt: skip
        part.take_back(part.first_seq + first, count)

    def _size(self, part: Part, first: int, count: int) -> int:
        """Bytes of some records' frames."""
        link = self._link
        size = link.fragment_len * link.item_size
        return count * limits.HEADER_SIZE + len(part.data[first * size : (first + count) * size])

    def _in_batches(self, part: Part, first: int, count: int) -> Iterator[Any]:
        """Checksums are made just before the bytes are sent, and find them in the cache."""
        for start in range(first, first + count, BATCH_RECORDS):
            yield from self._records(part, start, min(BATCH_RECORDS, first + count - start))

    async def fetch(self, request: int, since: int, first: int) -> None:
        """Read the answer into the target as it comes."""
        link = self._link

        def heard(size: int) -> None:
            link.connected = True
            link.bytes_received += size

        self._landed, _ = self._inlet.landed()
        lsn = await receive(
            link.client,
            link.values,
            link.headers,
            inlet=self._inlet,
            since=since,
            first=first,
            heard=heard,
            begins=link.fetch_begins,
        )
        link.fetch_done(lsn)
