"""What ``GET /v1/status`` shows: the core's state as one message."""

from __future__ import annotations

from typing import Any

import msgspec

from pydownpour.coordinator.core import Core
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.slots import Slot
from pydownpour.coordinator.tally import finite
from pydownpour.wire.messages import ReplicaStatus, ShardStatus, Status


def status(core: Core, now: float, *, run_folder: str, report: dict[str, Any] | None) -> Status:
    """The job at this moment."""
    ledger = core.ledger
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
        evaluations=list(core.progress.evaluations),
        replicas=[replica_status(member, ledger, now) for member in core.members],
        shards=[shard_status(slot, now) for slot in core.slots],
        run_folder=run_folder,
        report=report,
    )


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
            stats, loss=finite(stats.loss), staleness=stats.staleness.outline()
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
