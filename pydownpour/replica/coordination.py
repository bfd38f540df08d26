"""One replica and its coordinator: joining, leases, completions, heartbeats, leaving.

Small JSON, never on the gradient path: a coordinator that is away is waited for, while pushes and
fetches go on.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, final

import pydownpour
from pydownpour import _core, limits
from pydownpour.errors import (
    ConfigError,
    DownpourError,
    Fenced,
    JobFailed,
    LayoutMismatch,
)
from pydownpour.layout import DTYPE_CODES, Layout, partition_of
from pydownpour.net import process
from pydownpour.net.client import Client
from pydownpour.net.heartbeat import Heartbeats
from pydownpour.net.retry import patiently
from pydownpour.replica.standing import Standing
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    CompleteAnswer,
    Completion,
    Group,
    Heartbeat,
    HeartbeatAnswer,
    JobLayout,
    Join,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    PolicyEntry,
    ReplicaStats,
    ShardMap,
    UnitFailure,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Goodbye:
    """Why a replica leaves.

    Attributes:
        reason: In words; "" if it is through.
        failed: That is a fault.
        failure: It was the user's, at a unit.
        units: Those that count, though their report has no answer yet.
    """

    reason: str = ""
    failed: bool = False
    failure: UnitFailure | None = None
    units: tuple[Completion, ...] = ()


@final
class Coordination:
    """What a replica asks its coordinator and tells it, once it has joined.

    Attributes:
        joined: The coordinator's answer to the join.
        shard_map: The newest.
        policy: The job's, of the newest version that was heard of.
        layout: The job's.
        standing: Told what the coordinator says of the job.
        statistics: Makes this replica's counts, for heartbeats.
        rerouted: Called with a newer shard map.
        regrouped: Called with a newer group of replicas that reduce among themselves.
        listens: Where this one listens for others; "": nowhere. None: it does not reduce.
        received: Bytes that each shard has sent us by now, by its index.
    """

    def __init__(self, client: Client, joined: Joined, layout: Layout) -> None:
        self._client, self.limits = client, client.limits
        self.joined, self.layout = joined, layout
        self.shard_map = joined.shard_map
        self.policy = PolicyEntry(version=joined.policy_version, settings=joined.policy)
        self.standing = Standing(joined.job)
        self.statistics: Callable[[], ReplicaStats] = ReplicaStats
        self.rerouted: Callable[[ShardMap], object] = lambda shard_map: None
        self.regrouped: Callable[[Group], object] = lambda group: None
        self.listens: str | None = None
        self._group = self._broke = 0
        """The newest group that we know; that of which a connection broke."""
        self.received: Callable[[], Mapping[int, int]] = dict
        self._beats = Heartbeats(
            client, every_s=joined.heartbeat_s, make=self._heartbeat, heard=self._heard
        )
        self._policy_heard_of = joined.policy_version
        self._asked_about: dict[int, int] = {}
        """Bytes received by then from the shards that the coordinator asked about."""

    @classmethod
    async def join(
        cls,
        client: Client,
        layout: Layout | None,
        *,
        name: str,
        owner: str,
        rng: random.Random,
    ) -> Coordination:
        """Ask to be taken in; the layout itself does not travel, unless it is not the job's.

        Args:
            client: Of the coordinator.
            layout: What the replica will train; None takes the job's.
            name: For people.
            owner: See :func:`pydownpour.replica.run.run_replica`.
            rng: Randomness of the nonce and of the pauses between two tries.

        Raises:
            LayoutMismatch: the layout is not the job's.
            JobFailed: nobody answered for ``join_patience_s``.
            ConfigError: the answer is of no use to this version.
        """
        asking = _Asking(client, rng)
        if layout is None:
            layout = await asking.layout()
        joined = await asking.join(layout, name, owner)
        entries = joined.shard_map.entries
        partition_of(entries, joined.stripe_len, joined.fragment_len)
        return cls(client, joined, layout)

    @property
    def url(self) -> str:
        return self._client.url

    # -- work ------------------------------------------------------------------------------------

    async def lease(self, count: int, held: list[int]) -> LeaseAnswer:
        """Ask for units.

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
            self.standing.fail(JobFailed(answer.reason))
            self.standing.check()
        return answer

    async def complete(
        self,
        units: list[Completion],
        failures: list[UnitFailure],
        in_doubt: Sequence[int] = (),
    ) -> CompleteAnswer:
        """Report finished units, and those to give back: why, or by leases that are in doubt."""
        request = Complete(
            replica=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            units=units,
            failures=failures,
            in_doubt=list(in_doubt),
        )
        return await self._ask("/v1/complete", request, CompleteAnswer)

    async def _ask(
        self, path: str, request: messages.Message, answer: type[messages.M]
    ) -> messages.M:
        standing = self.standing

        async def ask() -> messages.M:
            standing.check()
            return await self._client.post(path, request, answer)

        async def sleep(seconds: float) -> None:
            standing.check_not_done()
            await standing.sleep(seconds)

        try:
            return await patiently(ask, sleep=sleep)
        except Fenced as error:
            standing.fail(error)
        except DownpourError as error:
            if not error.retryable:
                raise
            standing.fail(JobFailed(f"no answer from the coordinator: {error}"))
        standing.check()
        raise AssertionError("a session that failed says so")

    # -- heartbeats ------------------------------------------------------------------------------

    async def heartbeats(self) -> None:
        """Say that we live, hear how the job stands; returns when it is done.

        Raises:
            Fenced, JobFailed: the coordinator's last word.
        """
        verdict = await self._beats.run()
        if verdict.fenced:
            raise Fenced(verdict.reason or "a newer incarnation of this replica lives")
        if verdict.state == "failed":
            raise JobFailed(verdict.reason)

    def _heartbeat(self, with_counts: bool) -> Heartbeat:
        return Heartbeat(
            role="replica",
            id=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            epoch=self.shard_map.epoch,
            policy=self.policy.version,
            answering=self._answering(),
            listens=self.listens,
            group=self._group,
            broke=self._broke,
            replica=self.statistics() if with_counts else None,
            rss_peak_bytes=process.rss_peak_bytes(),
        )

    def _heard(self, answer: HeartbeatAnswer) -> None:
        self.standing.heard(answer)
        shard_map = answer.shard_map
        if shard_map is not None and shard_map.epoch > self.shard_map.epoch:
            self.shard_map = shard_map
            self.rerouted(shard_map)
        if answer.policy is not None and answer.policy.version > self.policy.version:
            self.policy = answer.policy
        if answer.group is not None and answer.group.number > self._group:
            self._group, self._broke = answer.group.number, 0
            self.regrouped(answer.group)
        before, now = self._asked_about, self.received()
        self._asked_about = {
            index: before.get(index, now[index]) for index in answer.missed if index in now
        }

    def heard_of_policy(self, version: int) -> None:
        """A shard obeys this version of the job's policy: ask for a newer one than ours at once."""
        if version > max(self.policy.version, self._policy_heard_of):
            self._policy_heard_of = version
            self._beats.hurry()

    def look_again(self, broke: int = 0) -> None:
        """Ask at once for what is new: something here is not as we were told.

        ``broke``: the group of which a connection to another member broke.
        """
        self._broke = max(self._broke, broke)
        self._beats.hurry()

    async def look_now(self) -> None:
        """The same, and wait for an answer to a question that is asked from now on."""
        await self._beats.next_answer()

    def _answering(self) -> list[int]:
        """Of the shards that the coordinator does not hear, those that sent us something since."""
        before = self._asked_about
        if not before:
            return []
        now = self.received()
        self._asked_about = {index: now[index] for index in before}
        return [index for index, count in before.items() if now[index] > count]

    # -- the end ---------------------------------------------------------------------------------

    async def leave(self, goodbye: Goodbye) -> None:
        """Say goodbye with the final counts, if anybody listens.

        The answer may be that the job has failed meanwhile: ``standing`` knows then.
        """
        message = Leave(
            replica=self.joined.replica,
            incarnation=self.joined.incarnation,
            secret=self.joined.secret,
            reason=goodbye.reason,
            stats=self.statistics(),
            failed=goodbye.failed,
            failure=goodbye.failure,
            units=list(goodbye.units),
        )
        try:
            answer = await self._client.post(
                "/v1/leave", message, HeartbeatAnswer, timeout_s=self.limits.shutdown_s / 2
            )
        except DownpourError as error:
            log.debug("goodbye was not heard: %s", error)
        else:
            self.standing.heard(answer)


@final
class _Asking:
    """What is asked before the coordinator has taken us in."""

    def __init__(self, client: Client, rng: random.Random) -> None:
        self._client, self._rng = client, rng
        self._whom = f"the coordinator at {client.url} to let this replica join"

    async def join(self, layout: Layout, name: str, owner: str) -> Joined:
        client = self._client
        request = Join(
            fingerprint=layout.fingerprint,
            version=pydownpour.__version__,
            host=process.host_name(),
            pid=process.pid(),
            name=name,
            owner=owner,
            nonce=f"{self._rng.getrandbits(128):032x}",
            wire_dtypes=list(DTYPE_CODES),
            codecs=_core.codecs(),
        )
        try:
            joined = await self._patiently(lambda: client.post("/v1/join", request, Joined))
        except LayoutMismatch:
            (await self.layout()).check_same(layout, whose="this replica")
            raise
        if joined.fingerprint != layout.fingerprint:
            raise LayoutMismatch(f"{client.url} has begun another job while we joined; join again")
        if joined.wire_dtype not in DTYPE_CODES:
            raise ConfigError(f"the job pushes {joined.wire_dtype}, unknown to this version")
        return joined

    async def layout(self) -> Layout:
        answer = await self._patiently(
            lambda: self._client.get("/v1/layout", JobLayout, size_max=limits.LAYOUT_SIZE_MAX)
        )
        return Layout.from_entries(answer.arrays)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await patiently(ask, whom=self._whom, rng=self._rng)
        except DownpourError as error:
            if not error.retryable:
                raise
            raise JobFailed(
                f"could not join within {self._client.limits.join_patience_s:g} s: {error}"
            ) from error
