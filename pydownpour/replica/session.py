"""A joined replica's network side, put together and owned: what runs on the session's loop.

    coordination   joining, leases, completions, heartbeats, leaving
    outbox         pushes until they are answered
    fetcher        parameters into the staging buffer
    links          one to each shard, under both
    standing       how it all stands; where everything waits

The session decides nothing about training: the schedule is the policy's, the arithmetic the core's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydownpour.codecs import compiled
from pydownpour.errors import ClosedError, DownpourError, InternalError
from pydownpour.fields import clip
from pydownpour.layout import fragments_of
from pydownpour.net import process
from pydownpour.net.access import Access, check_not_plain
from pydownpour.net.client import Client
from pydownpour.net.waiting import Turn
from pydownpour.policy import Policy, from_wire
from pydownpour.replica.coordination import Coordination, Goodbye
from pydownpour.replica.fetcher import Fetcher
from pydownpour.replica.link import Link
from pydownpour.replica.outbox import Outbox
from pydownpour.replica.reduction.listening import NOWHERE, Listening
from pydownpour.replica.reduction.reducer import Reducer
from pydownpour.wire import messages
from pydownpour.wire.messages import ReplicaStats, ShardEntry, ShardMap

log = logging.getLogger(__name__)

T = TypeVar("T")

WAITED_FOR_NAMED_MAX: Final = 4
"""Shards that a heartbeat names as waited for: the line shall fit, however many there are."""


@final
class Session:
    """Owns a replica's links and tasks while it takes part; see :meth:`taking_part`.

    Args:
        coordination: With a coordinator that has taken us in.
        access: Token and TLS, for shards.
        rng: Randomness of the pauses between connections, and of what the policy leaves to chance.
        policies: The classes of the job's policies that are none of ours.
        listening: Where it listens for others, if replicas reduce among themselves.

    Attributes:
        progress: The user side's counts, for heartbeats.
    """

    def __init__(
        self,
        coordination: Coordination,
        access: Access,
        rng: random.Random,
        policies: Sequence[type[Policy]] = (),
        listening: Listening = NOWHERE,
    ) -> None:
        joined, layout = coordination.joined, coordination.layout
        self.coordination, self.standing = coordination, coordination.standing
        self.joined, self.layout, self.rng = joined, layout, rng
        self._access, self._listening = access, listening
        staging = layout.zeros()
        fragments = len(fragments_of(0, layout.len, joined.fragment_len))
        versions: NDArray[np.uint64] = np.zeros(fragments, np.uint64)
        headers = {
            messages.HEADER_REPLICA: str(joined.replica),
            messages.HEADER_INCARNATION: str(joined.incarnation),
            messages.HEADER_SECRET: joined.secret,
            messages.HEADER_FINGERPRINT: layout.fingerprint,
        }
        codec = compiled(joined.codec)

        def client_of(entry: ShardEntry) -> Client:
            check_not_plain(coordination.url, entry.url, f"shard {entry.index}")
            return Client(entry.url, access=access, limits=coordination.limits)

        self.links = [
            Link(
                entry,
                client_of,
                replica=joined.replica,
                incarnation=joined.incarnation,
                headers=headers,
                fragment_len=joined.fragment_len,
                wire_dtype=joined.wire_dtype,
                codec=codec,
                durability=joined.durability,
                staging=staging,
                versions=versions,
                rng=rng,
            )
            for entry in coordination.shard_map.entries
        ]
        self.fetcher = Fetcher(self.links, staging, versions, self.standing)
        self.reducer = self._reducer(policies, access)
        ways = self.links if self.reducer is None else [self.reducer]
        self.outbox = Outbox(ways, self.standing)
        self.progress: Callable[[], ReplicaStats] = ReplicaStats
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[asyncio.Task[Any], None] = {}
        for link in self.links:
            link.on_policy = coordination.heard_of_policy
        coordination.statistics = self.statistics
        coordination.rerouted = self.reroute
        coordination.received = lambda: {link.entry.index: link.traffic()[1] for link in self.links}

    def _reducer(self, policies: Sequence[type[Policy]], access: Access) -> Reducer | None:
        """What adds up gradients with other replicas, if the job's policy says so."""
        reduction = from_wire(self.joined.policy, lambda: policies).reduction()
        if reduction is None:
            return None
        return Reducer(self.coordination, self.links, self.fetcher, reduction, access)

    # -- its life --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def taking_part(self, goodbye: Callable[[], Goodbye] = Goodbye) -> AsyncIterator[Session]:
        """Connect and fetch the first parameters; at the end stop everything and say goodbye.

        Args:
            goodbye: Says at the end why we leave.
        """
        words: Goodbye | None = Goodbye("could not fetch the first parameters", failed=True)
        failure: Exception | None = None
        try:
            async with self._reachable(), asyncio.TaskGroup() as self._tasks:
                try:
                    for link in self.links:
                        _ = self.spawn(link.run(), f"link to shard {link.entry.index}")
                    _ = self.spawn(self.coordination.heartbeats(), "heartbeats")
                    _ = self.spawn(self._say_waits(), "words about waiting")
                    if self.reducer is not None:
                        _ = self.spawn(self.reducer.run(), "reducing with others")
                    await self.fetcher.fetch()
                    words = None
                    yield self
                except Exception as error:
                    failure = error  # the group would put it into one of its own
                finally:
                    self.standing.leave()
                    for task in self._running:
                        _ = task.cancel()
            if failure is not None:
                raise failure
        except asyncio.CancelledError:
            words = Goodbye("stopped")  # by its user, which is no failure
            raise
        finally:
            try:
                await self.coordination.leave(words or goodbye())
            finally:
                for link in self.links:
                    await link.client.close()

    @contextlib.asynccontextmanager
    async def _reachable(self) -> AsyncIterator[None]:
        """Listen for other replicas, if we reduce with them and can."""
        if self.reducer is None:
            yield
            return
        async with contextlib.AsyncExitStack() as stack:
            self.coordination.listens = await self._listening.begin(
                stack, self.reducer.routes(), self._access, self.coordination
            )
            yield

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T | None]:
        """Run something beside the rest until our end; if it fails, the session does.

        Returns:
            Its result is None if it failed: ``standing`` knows why.

        Raises:
            ClosedError: it has ended.
        """
        if self._tasks is None or self.standing.has_left:
            work.close()
            self.standing.check()
            raise ClosedError("nothing runs before taking_part")
        task = self._tasks.create_task(self._watched(work, name), name=name)
        self._running[task] = None
        task.add_done_callback(lambda task: self._running.pop(task, None))
        return task

    async def _watched(self, work: Coroutine[Any, Any, T], name: str) -> T | None:
        """A failure takes nothing else down: heartbeats go on until the user's code has heard."""
        try:
            return await work
        except DownpourError as error:
            self.standing.fail(error)
        except Exception as error:
            log.exception("%s failed", name)
            self.standing.fail(InternalError(f"{name}: {error!r}"))
        return None

    async def _say_waits(self) -> None:
        """Say for which shards this replica waits while nothing moves between them."""
        loop, turn = asyncio.get_running_loop(), Turn(self.coordination.limits)
        since, before = loop.time(), -1
        while True:
            moved = sum(sum(link.traffic()) for link in self.links)
            whom = self.waiting_for()
            if not whom or moved != before:
                since, before = loop.time(), moved
            elif turn.is_mine(since, loop.time()):
                log.warning("waiting for %s for %.0f s now", whom, loop.time() - since)
            await asyncio.sleep(self.coordination.limits.wait_told_s / 2)

    def reroute(self, shard_map: ShardMap) -> None:
        """A newer shard map: what is open at a shard that has moved goes where it is now."""
        for link in self.links:
            link.reroute(shard_map.entries[link.entry.index])

    # -- what it says of itself ------------------------------------------------------------------

    def waiting_for(self) -> str:
        """Whom we wait for, in words; "" if nobody. Of many the first few are named."""
        late = [link for link in self.links if link.queue or link.fetch_wanted]
        if self.reducer is not None and not late:
            return clip(self.reducer.waiting_for())
        named = ", ".join(link.waiting_for() for link in late[:WAITED_FOR_NAMED_MAX])
        more = len(late) - WAITED_FOR_NAMED_MAX
        return clip(f"{named} and {more} more" if more > 0 else named)

    def statistics(self) -> ReplicaStats:
        """The user side's counts and ours."""
        outbox, progress = self.outbox, self.progress()
        given = got = 0
        sent = max(progress.pushes_sent - outbox.silent, 0)
        if self.reducer is not None:
            outbox, sent = self.reducer.outbox, self.reducer.sums_pushed
            given, got = self.reducer.traffic()
        return msgspec.structs.replace(
            progress,
            pushes_sent=sent,
            reduced_sent=given,
            reduced_received=got,
            pushes_silent=outbox.silent,
            records_left_out=outbox.records_left_out,
            payload_bytes=outbox.payload_bytes,
            pushes_acked=outbox.acked,
            pushes_repeated=outbox.repeated,
            pushes_refused=self.outbox.refused,
            records_duplicate=sum(link.duplicates for link in self.links),
            fetches=self.fetcher.completed,
            reconnects=sum(link.reconnects for link in self.links),
            bytes_sent=sum(link.traffic()[0] for link in self.links),
            bytes_received=sum(link.traffic()[1] for link in self.links),
            staleness=outbox.staleness.entry(),
            waiting_for=self.waiting_for(),
            rss_bytes=process.rss_bytes(),
            fallback=any(link.fallback for link in self.links),
        )
