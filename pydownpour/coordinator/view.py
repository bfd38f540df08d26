"""What ``GET /v1/status`` shows: the job's state as one message."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pydownpour import limits
from pydownpour.coordinator.job_state import JobState
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.places import Place
from pydownpour.coordinator.tally import finite
from pydownpour.fields import clip
from pydownpour.wire.messages import ReplicaStatus, ShardStatus, Status

ROWS: Final = (
    "evaluations", "evaluation_errors", "replicas", "shards", "losses", "units_aside",
    "rss_peak_bytes",
)  # fmt: skip
"""What of a report has its own rows in a status, or none there: it may be long."""
WAITING_LEN_MAX: Final = 256
"""Characters of the words for whom a replica waits: a line of a display is no longer."""


def status(job: JobState, now: float, *, run_folder: str, report: dict[str, Any] | None) -> Status:
    """The job at this moment."""
    ledger = job.ledger
    members = job.members.foremost(limits.STATUS_ROWS_MAX, _worth)
    # A stable sort: those that are not ready come first, each kind by index.
    places = sorted(job.places, key=lambda place: place.state == "ready")[: limits.STATUS_ROWS_MAX]
    return Status(
        job=job.declared.name,
        state=job.state,
        reason=job.reason(now),
        elapsed_s=round(now - job.started, 3),
        passes=ledger.work.passes if ledger is not None else 0,
        pass_index=ledger.pass_index if ledger is not None else 0,
        units_done=ledger.units_done if ledger is not None else 0,
        units=ledger.units_total if ledger is not None else 0,
        samples_done=job.samples_done,
        samples=ledger.samples_total if ledger is not None else 0,
        losses=job.progress.curve.points,
        evaluations=list(job.progress.evaluations)[-limits.STATUS_EVALUATIONS_MAX :],
        replicas=[replica_status(member, ledger, now) for member in members],
        replicas_live=sum(member.state == "live" for member in job.members),
        replicas_count=len(job.members),
        shards=[
            shard_status(place, now) for place in sorted(places, key=lambda place: place.index)
        ],
        shards_ready=sum(place.state == "ready" for place in job.places),
        shards_count=len(job.places),
        bytes_to_shards=sum(place.stats.bytes_received for place in job.places),
        bytes_from_shards=sum(place.stats.bytes_sent for place in job.places),
        policy=job.policies.status,
        run_folder=run_folder,
        report={k: v for k, v in report.items() if k not in ROWS} if report is not None else None,
    )


def _worth(member: Member) -> tuple[bool, bool, float]:
    """Of many replicas, those that are here are shown, then those that may come back."""
    return member.is_present, member.state != "left", member.seen_at


def replica_status(member: Member, ledger: Ledger | None, now: float) -> ReplicaStatus:
    """One replica, its counts over all incarnations."""
    stats = member.stats
    # Without declared work the replica's own counts are all there is.
    account = ledger.account(member.id) if ledger is not None else stats
    return ReplicaStatus(
        id=member.id,
        name=member.name,
        incarnation=member.incarnation,
        state=member.state,
        host=member.host,
        pid=member.pid,
        joins=member.joins,
        age_s=round(now - member.seen_at, 3),
        units=account.units,
        samples=account.samples,
        stats=msgspec.structs.replace(
            stats,
            loss=finite(stats.loss),
            staleness=stats.staleness.outline(),
            waiting_for=clip(stats.waiting_for, WAITING_LEN_MAX),
        ),
    )


def shard_status(place: Place, now: float) -> ShardStatus:
    """One shard, its counts as last heard."""
    return ShardStatus(
        index=place.index,
        state=place.state,
        url=place.url,
        pid=place.pid,
        age_s=round(now - place.seen_at, 3) if place.url else 0.0,
        stats=msgspec.structs.replace(
            place.stats,
            staleness=place.stats.staleness.outline(),
            waits=place.stats.waits.outline(),
        ),
    )
