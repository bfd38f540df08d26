"""What ``GET /v1/status`` shows: the core's state as one message."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pydownpour import limits
from pydownpour.coordinator.core import Core
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.slots import Slot
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


def status(core: Core, now: float, *, run_folder: str, report: dict[str, Any] | None) -> Status:
    """The job at this moment."""
    ledger = core.ledger
    members = core.members.foremost(limits.STATUS_ROWS_MAX, _worth)
    # A stable sort: those that are not ready come first, each kind by index.
    slots = sorted(core.slots, key=lambda slot: slot.state == "ready")[: limits.STATUS_ROWS_MAX]
    return Status(
        job=core.job.name,
        state=core.state,
        reason=core.reason(now),
        elapsed_s=round(now - core.started, 3),
        passes=ledger.work.passes if ledger is not None else 0,
        pass_number=ledger.pass_number if ledger is not None else 0,
        units_done=ledger.units_done if ledger is not None else 0,
        units=ledger.units_total if ledger is not None else 0,
        samples_done=core.samples_done,
        samples=ledger.samples_total if ledger is not None else 0,
        losses=core.progress.curve.points,
        evaluations=list(core.progress.evaluations)[-limits.STATUS_EVALUATIONS_MAX :],
        replicas=[replica_status(member, ledger, now) for member in members],
        replicas_live=sum(member.state == "live" for member in core.members),
        replicas_count=len(core.members),
        shards=[shard_status(slot, now) for slot in sorted(slots, key=lambda slot: slot.index)],
        shards_ready=sum(slot.state == "ready" for slot in core.slots),
        shards_count=len(core.slots),
        bytes_to_shards=sum(slot.stats.bytes_received for slot in core.slots),
        bytes_from_shards=sum(slot.stats.bytes_sent for slot in core.slots),
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


def shard_status(slot: Slot, now: float) -> ShardStatus:
    """One shard, its counts as last heard."""
    return ShardStatus(
        index=slot.index,
        state=slot.state,
        url=slot.url,
        pid=slot.pid,
        age_s=round(now - slot.seen_at, 3) if slot.url else 0.0,
        stats=msgspec.structs.replace(slot.stats, staleness=slot.stats.staleness.outline()),
    )
