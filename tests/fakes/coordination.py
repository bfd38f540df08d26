"""The state of a job and the messages roles send it, in as few words as tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pydownpour import _core
from pydownpour.codecs import Codec
from pydownpour.coordinator.job_state import JobState
from pydownpour.histogram import Histogram, HistogramEntry
from pydownpour.job import Job, Work
from pydownpour.limits import DEFAULT, Limits
from pydownpour.optimizers import SGD
from pydownpour.policy.downpour import Downpour
from pydownpour.wire.messages import (
    Complete,
    CompleteAnswer,
    Completion,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    ReplicaStats,
    ShardAssigned,
    ShardHello,
    ShardStats,
    UnitEntry,
    UnitFailure,
)

KEY = bytes(range(32))
"""Of the jobs that are only pretended."""


def make_job(
    *,
    work: Work | None = None,
    warm_start: int = 0,
    name: str = "sample",
    length: int = 64,
    codec: Codec | None = None,
) -> Job:
    """A job of one parameter array ``w`` and a scalar ``b``."""
    return Job(
        parameters={"w": np.arange(length, dtype=np.float32), "b": np.float32(7)},
        optimizer=SGD(lr=0.5),
        policy=Downpour(warm_start=warm_start),
        data=work,
        name=name,
        codec=codec,
    )


def histogram(*values: int) -> HistogramEntry:
    """The histogram of some values, as it travels."""
    counting = Histogram()
    for value in values:
        counting.add(value)
    return counting.entry()


class Cast:
    """A job's state and everybody who talks to it; ``now`` is what the tests say it is."""

    def __init__(
        self,
        job: Job | None = None,
        *,
        shards: int = 2,
        expected: int = 0,
        limits: Limits = DEFAULT,
    ) -> None:
        self.declared = job if job is not None else make_job(work=Work(10, unit=4, passes=2))
        self.now = 100.0
        self.job = JobState(
            self.declared,
            shards=shards,
            now=self.now,
            key=KEY,
            expected_replicas=expected,
            limits=limits,
        )

    @property
    def state(self) -> str:
        """As text, so that a type checker does not think it stays what it was."""
        return self.job.state

    def hello(self, nonce: str, *, index: int | None = None) -> ShardAssigned:
        return self.job.hello(
            ShardHello(
                url=f"http://{nonce}", nonce=nonce, index=index, pid=1, codecs=_core.codecs()
            ),
            self.now,
        )

    def shard_beat(
        self, index: int, *, knows: int = 1, policy: int = 1, obeys: int = 1, **counts: object
    ) -> HeartbeatAnswer:
        """``knows``, ``policy``: the epoch of the shard map and the version it has heard of."""
        said: dict[str, Any] = {"policy": obeys, **counts}
        stats = ShardStats(index=index, ready=True, **said)
        life = self.job.places.get(index).incarnation
        secret = self.job.keeper.secret("shard", index, life)
        beat = Heartbeat(
            role="shard", id=index, incarnation=life, secret=secret, epoch=knows, policy=policy,
            shard=stats,
        )  # fmt: skip
        return self.job.heartbeat(beat, self.now)

    def shards_ready(self) -> None:
        for index in range(len(self.job.places)):
            self.hello(f"shard-{index}", index=index)
            self.shard_beat(index)

    def secret(self, replica: int, incarnation: int) -> str:
        """What the coordinator gave that life of that replica."""
        return self.job.replica_keeper.secret("replica", replica, incarnation)

    def join(self, name: str = "", *, nonce: str = "") -> Joined:
        """Who joins again under its name shows the same owner's key."""
        return self.job.join(
            Join(
                fingerprint=self.declared.layout.fingerprint,
                name=name,
                owner=name,
                nonce=nonce,
                codecs=_core.codecs(),
            ),
            self.now,
        )

    def beat(
        self,
        replica: int,
        incarnation: int = 1,
        *,
        knows: int = 1,
        policy: int = 1,
        **counts: object,
    ) -> HeartbeatAnswer:
        stats = ReplicaStats(**counts)  # type: ignore[arg-type]
        return self.job.heartbeat(
            Heartbeat(
                role="replica",
                id=replica,
                incarnation=incarnation,
                secret=self.secret(replica, incarnation),
                epoch=knows,
                policy=policy,
                replica=stats,
                rss_peak_bytes=1000 * replica,
            ),
            self.now,
        )

    def lease(
        self, replica: int, count: int = 1, *, incarnation: int = 1, held: list[int] | None = None
    ) -> LeaseAnswer:
        return self.job.lease(
            LeaseRequest(
                replica=replica,
                incarnation=incarnation,
                secret=self.secret(replica, incarnation),
                count=count,
                held=held,
            ),
            self.now,
        )

    def complete(
        self,
        replica: int,
        *units: UnitEntry,
        incarnation: int = 1,
        loss: float | None = 1.0,
        in_doubt: Sequence[UnitEntry] = (),
    ) -> CompleteAnswer:
        return self.job.complete(
            Complete(
                replica=replica,
                incarnation=incarnation,
                secret=self.secret(replica, incarnation),
                units=[
                    Completion(
                        pass_index=unit.pass_index,
                        unit=unit.unit,
                        lease=unit.lease,
                        samples=unit.stop - unit.start,
                        loss=loss,
                    )
                    for unit in units
                ],
                in_doubt=[unit.lease for unit in in_doubt],
            ),
            self.now,
        )

    def leave(self, replica: int, incarnation: int = 1, **counts: object) -> HeartbeatAnswer:
        stats = ReplicaStats(**counts)  # type: ignore[arg-type]
        return self.job.leave(
            Leave(
                replica=replica,
                incarnation=incarnation,
                secret=self.secret(replica, incarnation),
                stats=stats,
            ),
            self.now,
        )

    def fail(self, replica: int, reason: str, *, unit: UnitEntry | None = None) -> None:
        """It leaves because the user's code raised, at a unit if it had one."""
        failure = None
        if unit is not None:
            failure = UnitFailure(
                pass_index=unit.pass_index,
                unit=unit.unit,
                lease=unit.lease,
                words=reason,
                traceback="...",
            )
        member = self.job.members.get(replica)
        assert member is not None
        self.job.leave(
            Leave(
                replica=replica,
                incarnation=member.incarnation,
                secret=self.secret(replica, member.incarnation),
                reason=reason,
                failed=True,
                failure=failure,
            ),
            self.now,
        )

    def pass_time(self, seconds: float, *, beating: tuple[int, ...] = ()) -> None:
        """Sweep every quarter second; shards and the named replicas send heartbeats meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.25, end)
            for place in self.job.places:
                if place.state == "ready":
                    self.shard_beat(place.index)
            for replica in beating:
                member = self.job.members.get(replica)
                assert member is not None
                self.beat(replica, member.incarnation)
            self.job.tick(self.now)

    def finish_all(self, replica: int) -> None:
        """One replica does all the work there is."""
        while units := self.lease(replica, 4).units:
            self.complete(replica, *units)

    def events(self, *kinds: str) -> list[dict[str, object]]:
        return [event for event in self.job.events if event["event"] in kinds]
