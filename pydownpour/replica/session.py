"""Everything of a replica that needs the network, on one event loop.

Owns one link per shard, the staging buffer fetches land in, the pushes in flight, the heartbeats
and the leases. It decides nothing about training: the schedule is the policy's, the arithmetic the
core's. Whatever ends it (fenced, the job failed, a shard gone for good) is kept in ``failure`` and
raised to whoever waits, now or later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydownpour import limits
from pydownpour.errors import (
    ClosedError,
    DownpourError,
    Fenced,
    InternalError,
    JobFailed,
)
from pydownpour.fields import clip
from pydownpour.histogram import Histogram
from pydownpour.layout import Flat, Layout
from pydownpour.net import process
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.heartbeat import Heartbeats
from pydownpour.net.waiting import Stalls
from pydownpour.replica.link import Link
from pydownpour.replica.pushes import Push
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    CompleteAnswer,
    Completion,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    ReplicaStats,
    UnitFailure,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

WAITED_FOR_NAMED_MAX: Final = 4
"""Shards that a heartbeat names as waited for: the line shall fit, however many there are."""


@final
class Session:
    """A joined replica's connections; an async context manager.

    Attributes:
        staging: The newest fetched parameters, whole (elements of the layout, float32).
        fetched: Fetches completed. Written here, read by the user's thread.
        settled: Pushes with a definite answer from every shard, likewise.
        failure: Why the session ended, or None.
        job_state: As the coordinator last said.
    """

    def __init__(
        self, joined: Joined, layout: Layout, client: Client, access: Access, rng: random.Random
    ) -> None:
        self.joined, self.layout = joined, layout
        self.staging: Flat = layout.zeros()
        self.fetched = 0
        self.settled = 0
        self.failure: BaseException | None = None
        self.job_state: messages.JobStateName = "running"
        self.job_reason = ""
        self.progress: Callable[[], ReplicaStats] = ReplicaStats
        """The user side's counts, for heartbeats."""
        self._client = client
        headers = {
            messages.HEADER_REPLICA: str(joined.replica),
            messages.HEADER_INCARNATION: str(joined.incarnation),
            messages.HEADER_SECRET: joined.secret,
            messages.HEADER_EPOCH: str(joined.epoch),
            messages.HEADER_FINGERPRINT: layout.fingerprint,
        }
        self.links = [
            Link(
                entry,
                Client(entry.url, access=access),
                replica=joined.replica,
                incarnation=joined.incarnation,
                headers=headers,
                fragment_len=joined.fragment_len,
                wire_dtype=joined.wire_dtype,
                staging=self.staging,
                on_settled=self._on_settled,
                rng=rng,
            )
            for entry in joined.shards
        ]
        self.pushes: dict[int, Push] = {}
        self._newest = 0
        """The newest push we were given."""
        self.not_applied: dict[int, str] = {}
        """Lease -> why a gradient of its unit was not applied, until the unit is reported; "" if
        that is the policy's way and nobody's fault."""
        self.released: list[Flat] = []
        """Buffers of settled pushes, for the user's side to use again."""
        self.acked = 0
        self.refused = 0
        self.refused_in_a_row = 0
        """Pushes that were not applied since the last one that was."""
        self.last_refusal = ""
        self.staleness = Histogram()
        self._received: dict[int, int] = {}
        """Bytes received by then from the shards that the coordinator asked about."""
        self._fetching: list[asyncio.Future[None]] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Session:
        for link in self.links:
            _ = self.spawn(link.run(), f"link to shard {link.entry.index}")
        _ = self.spawn(self._heartbeats(), "heartbeats")
        try:
            await self.fetch()
        except Exception:
            await self.close("could not fetch the first parameters", failed=True)
            raise
        except BaseException:
            await self.close("stopped")  # by its user, which is no failure
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close("")

    # -- pushes ----------------------------------------------------------------------------------

    def push(self, push: Push) -> None:
        """Send a push to every shard in the background. Its buffer is ours until settled.

        One that cannot be sent is settled at once, in its turn: nobody has applied it.
        """
        self._newest = push.index
        if push.reason:
            self._settled(push)
            return
        push.open_parts = len(self.links)
        self.pushes[push.index] = push
        for link in self.links:
            link.push(push)

    def _on_settled(self, push: Push, shard: int) -> None:
        if push.open_parts > 0:
            self._notify()
            return
        del self.pushes[push.index]
        self._settled(push)

    def _settled(self, push: Push) -> None:
        self.settled += 1
        if push.reason:
            self.refused += push.refused > 0
            self.refused_in_a_row += 1
            self.last_refusal = push.reason
            words = "" if push.by_policy else push.reason
            for lease in push.leases:
                self.not_applied[lease] = self.not_applied.get(lease) or words
        else:
            self.acked += 1
            self.refused_in_a_row = 0
            self.staleness.add(push.staleness)
        self.released.append(push.values)
        self._notify()

    def is_settled(self, index: int) -> bool:
        """True when every push up to ``index`` was made and has a definite answer."""
        return index <= self._newest and all(open_index > index for open_index in self.pushes)

    async def wait_settled(self, index: int) -> None:
        """Wait until every push up to ``index`` was made and answered for by every shard."""
        await self._wait(lambda: self.is_settled(index))

    async def wait_in_flight(self, at_most: int) -> None:
        """Wait until at most so many pushes are open."""
        await self._wait(lambda: len(self.pushes) <= at_most)

    def waiting_for(self) -> str:
        """Whom we wait for, in words; "" if nobody. Of many the first few are named."""
        late = [link for link in self.links if link.queue or link.fetch_wanted]
        named = ", ".join(link.waiting_for() for link in late[:WAITED_FOR_NAMED_MAX])
        more = len(late) - WAITED_FOR_NAMED_MAX
        return clip(f"{named} and {more} more" if more > 0 else named)

    # -- fetches ---------------------------------------------------------------------------------

    def start_fetch(self) -> None:
        """Fetch in the background, unless a fetch is already on its way."""
        if self._fetching is None:
            self._fetching = [link.fetch() for link in self.links]
            for part in self._fetching:
                part.add_done_callback(self._fetch_moved)

    async def fetch(self) -> None:
        """Fetch from every shard, later than now; returns when ``staging`` is complete."""
        await self._wait(lambda: self._fetching is None)
        number = self.fetched + 1
        self.start_fetch()
        await self._wait(lambda: self.fetched >= number)

    def _fetch_moved(self, part: asyncio.Future[None]) -> None:
        if self._fetching is not None and all(part.done() for part in self._fetching):
            self._fetching = None
            self.fetched += 1
            self._notify()

    def versions(self) -> tuple[NDArray[np.uint64], ...]:
        """A copy of the fragment versions of ``staging``, one array per shard."""
        return tuple(link.versions.copy() for link in self.links)

    # -- the coordinator -------------------------------------------------------------------------

    async def lease(self, count: int, held: list[int]) -> LeaseAnswer:
        """Ask for units; a coordinator that is away is waited for.

        ``held`` names the leases this replica knows of: one whose answer was lost comes again.

        Raises:
            JobFailed: there will be no more, because the job failed.
        """
        request = LeaseRequest(
            replica=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            count=count,
            held=held,
        )
        answer = await self._ask("/v1/lease", request, LeaseAnswer)
        if answer.failed:
            self._fail(JobFailed(answer.reason))
            self.check()
        return answer

    async def complete(
        self, units: list[Completion], failures: list[UnitFailure]
    ) -> CompleteAnswer:
        """Report finished units; a coordinator that is away is waited for."""
        request = Complete(
            replica=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            units=units,
            failures=failures,
        )
        return await self._ask("/v1/complete", request, CompleteAnswer)

    async def _ask(
        self, path: str, request: messages.Message, answer: type[messages.M]
    ) -> messages.M:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + limits.JOIN_PATIENCE_S
        stalls = Stalls(loop.time(), limits.REQUEST_TIMEOUT_S + limits.BACKOFF_MAX_S)
        delay_s = limits.BACKOFF_MIN_S
        while True:
            self.check()
            try:
                return await self._client.post(path, request, answer)
            except Fenced as error:
                self._fail(error)
            except DownpourError as error:
                if not error.retryable:
                    raise
                self._check_done()  # then its coordinator has ended, too
                give_up_at += stalls.look(loop.time())
                if loop.time() > give_up_at:
                    self._fail(JobFailed(f"no answer from the coordinator: {error}"))
            await self._sleep(delay_s)
            delay_s = min(delay_s * 2, limits.BACKOFF_MAX_S)

    async def _heartbeats(self) -> None:
        verdict = await Heartbeats(
            self._client, every_s=self.joined.heartbeat_s, make=self._heartbeat, heard=self._heard
        ).run()
        if verdict.fenced:
            raise Fenced(verdict.reason or "a newer incarnation of this replica lives")
        if verdict.state == "failed":
            raise JobFailed(verdict.reason)
        self._notify()

    def _heartbeat(self, with_counts: bool) -> Heartbeat:
        return Heartbeat(
            role="replica",
            id=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            epoch=self.joined.epoch,
            answering=self._answering(),
            replica=self.statistics() if with_counts else None,
            rss_peak_bytes=process.rss_peak_bytes(),
        )

    def _heard(self, answer: HeartbeatAnswer) -> None:
        if not answer.fenced:
            self.job_state, self.job_reason = answer.state, answer.reason
        received = self._received
        self._received = {
            link.entry.index: received.get(link.entry.index, link.traffic()[1])
            for link in self.links
            if link.entry.index in answer.missed
        }

    def _answering(self) -> list[int]:
        """Of the shards that the coordinator does not hear, those that sent us something since."""
        if not self._received:
            return []
        now = {link.entry.index: link.traffic()[1] for link in self.links}
        answering = [index for index, count in self._received.items() if now[index] > count]
        self._received = {index: now[index] for index in self._received}
        return answering

    # -- its end -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what ended the session, if something did."""
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise ClosedError("this replica has left the job")

    @property
    def job_is_over(self) -> bool:
        """As far as the coordinator has told: no step counts any more."""
        return self.job_state in ("evaluating", "done")

    def check_training(self) -> None:
        """Raise if there is no sense in another step."""
        self.check()
        if self.job_is_over:
            raise self._over()

    def _check_done(self) -> None:
        if self.job_state == "done":
            raise self._over()

    def _over(self) -> ClosedError:
        return ClosedError(f"job {self.joined.job} is over: {self.job_reason or self.job_state}")

    async def close(
        self, reason: str, failure: UnitFailure | None = None, *, failed: bool = False
    ) -> None:
        """Say goodbye with the final counts, close every connection. Whoever calls again waits.

        ``failed``: for a reason that is a fault, ``failure`` if it was the user's at a unit.

        The answer may be that the job has failed meanwhile: look at ``job_state`` afterwards.
        """
        if self._closing is None:
            self._closed = True
            self._notify()
            self._closing = asyncio.get_running_loop().create_task(
                self._leave(reason, failure, failed=failed)
            )
        await asyncio.shield(self._closing)

    async def _leave(self, reason: str, failure: UnitFailure | None, *, failed: bool) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        goodbye = Leave(
            replica=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            reason=reason,
            stats=self.statistics(),
            failed=failed,
            failure=failure,
        )
        try:
            self._heard(
                await self._client.post(
                    "/v1/leave", goodbye, HeartbeatAnswer, timeout_s=limits.SHUTDOWN_S / 2
                )
            )
        except DownpourError as error:
            log.debug("goodbye was not heard: %s", error)
        finally:
            for link in self.links:
                await link.client.close()

    def statistics(self) -> ReplicaStats:
        """The user side's counts and ours."""
        return msgspec.structs.replace(
            self.progress(),
            pushes_acked=self.acked,
            pushes_refused=self.refused,
            records_duplicate=sum(link.duplicates for link in self.links),
            fetches=self.fetched,
            reconnects=sum(link.reconnects for link in self.links),
            bytes_sent=sum(link.traffic()[0] for link in self.links),
            bytes_received=sum(link.traffic()[1] for link in self.links),
            staleness=self.staleness.entry(),
            waiting_for=self.waiting_for(),
            rss_bytes=process.rss_bytes(),
            fallback=any(link.fallback for link in self.links),
        )

    # -- waiting -----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run something beside the rest; if it fails, the session does; close() ends it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks[task] = None
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, DownpourError):
                log.error("%s failed", task.get_name(), exc_info=error)
                error = InternalError(f"{task.get_name()}: {error!r}")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._notify()

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def _changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    async def _wait(self, until: Callable[[], bool]) -> None:
        """Wait for a condition; every change of state looks at it again."""
        while not until():
            self.check()
            self._check_done()
            await self._changed()
        if self.failure is not None:
            raise self.failure

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but wake when the session ends."""
        try:
            async with asyncio.timeout(seconds):
                while self.failure is None and not self._closed and self.job_state != "done":
                    await self._changed()
        except TimeoutError:
            return

    async def pause(self, seconds: float) -> None:
        """Wait between two requests for work."""
        await self._sleep(seconds)
        self.check()
