"""The final report: one JSON object that says what a run did, and whose counts agree.

Who counts what. Replicas count what they sent and what was acknowledged to them; shards count what
they applied, so the two sides check each other: after a clean end ``sent`` = ``applied`` +
``refused``. A push has a part at every shard; it counts as applied once, by the shard that applied
the most. Where a codec leaves fragments out, other shards may have applied others: then all that is
known is that it is at least what one shard applied, and at most what all did. When a replica was
killed its last words are missing: what shards applied was sent, so ``sent`` is at least that, and
``unheard`` of it no replica has told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from pydownpour import histogram
from pydownpour.coordinator.declared import Declared
from pydownpour.coordinator.job_state import JobState
from pydownpour.coordinator.ledger import FORGOTTEN
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.places import Place
from pydownpour.coordinator.salvage import PARTS_TOLD_MAX
from pydownpour.coordinator.tally import WAITED, finite
from pydownpour.coordinator.waits import table, who_waited
from pydownpour.histogram import HistogramEntry
from pydownpour.wire.messages import PolicyStatus, ReplicaStats

AUDIT_LINES_MAX: Final = 100
"""What the ledger says against itself: one fault shows in many places, the first ones tell."""


def build_report(
    job: JobState, now: float, *, version: str, rss_peak_bytes: int, storage: str
) -> dict[str, Any]:
    """The report of a job that is over.

    Args:
        job: Its state, with the last counts of every role.
        now: When the work ended.
        version: Of this package.
        rss_peak_bytes: Of the coordinator's own process.
        storage: "ok", "off", or what went wrong when the run folder was written.
    """
    ledger, progress = job.ledger, job.progress
    members, places = list(job.members), list(job.places)
    counts = job.members.counts
    samples = job.samples_done
    metrics = progress.metrics
    waits = who_waited(places)
    listed = job.members.foremost(job.limits.report_rows_max, lambda member: _work_of(job, member))
    report: dict[str, Any] = {
        "job": job.declared.name,
        "state": "failed" if job.state == "failed" else job.outcome,
        "reason": job.reason(now),
        "version": version,
        "loss": finite(progress.curve.last),
        "metrics": metrics,
        "evaluations": [
            {"passes": e.passes, "at_s": e.at_s, "samples": e.samples, "metrics": e.metrics}
            for e in progress.evaluations
        ],
        "evaluation_errors": list(progress.evaluation_errors),
        "seconds": round(progress.running_s(now), 3),
        "seconds_total": round(now - job.started, 3),
        "samples": samples,
        "samples_per_s": round(progress.samples_per_s(samples, now), 1),
        "units": ledger.units_done if ledger is not None else sum(c.units for c in counts),
        "passes": ledger.passes_finished if ledger is not None else 0,
        "work": _work(job),
        "units_aside": job.units_aside,
        "pushes": _pushes(counts, places),
        "gradients": _gradients(job, counts),
        "records": _records(places),
        "staleness": _staleness(histogram.total(c.staleness for c in counts)),
        "clocks": _clocks(members, places),
        "waits": waits,
        "bytes": {
            "to_shards": sum(place.stats.bytes_received for place in places),
            "from_shards": sum(place.stats.bytes_sent for place in places),
            "among_replicas": sum(c.reduced_sent for c in counts),
        },
        "rss_peak_bytes": _memory(listed, places[: job.limits.report_rows_max], rss_peak_bytes),
        "replicas": [_replica(job, member) for member in listed],
        "replicas_more": _more(job, members, listed),
        "shards": [_shard(place, waits) for place in places[: job.limits.report_rows_max]],
        "shards_count": len(places),
        "optimizer": job.declared.shard_optimizer.describe(),
        "local_optimizer": _local_optimizer(job.declared),
        "policy": job.policies.entry.settings,
        "policies": [_version(status) for status in job.policies.versions],
        "phases": job.policies.plan(),
        "parameters": job.declared.layout.len,
        "parameters_missing": list(job.missing[:PARTS_TOLD_MAX]),
        "losses": progress.curve.points,
        "losses_not_finite": sum(c.losses_not_finite for c in counts),
        "audit": ledger.audit()[:AUDIT_LINES_MAX] if ledger is not None else [],
        "storage": storage,
    }
    if "accuracy" in metrics:
        report["accuracy"] = metrics["accuracy"]
    return report


def audit_report(report: Mapping[str, Any]) -> list[str]:
    """What a report of a job that is done says against itself, in words; [] if nothing.

    Every push a replica was told of is among those the shards count; units and samples of the
    replicas add up to the job's, and those to the work that was declared. A job that failed is not
    audited: its counts stop anywhere.
    """
    if report["state"] != "done":
        return []
    wrong = [str(words) for words in report["audit"]]
    pushes = report["pushes"]
    if pushes["sent"] < pushes["applied"]:
        wrong.append(f"{pushes['applied']} pushes were applied and {pushes['sent']} sent")
    if pushes["applied"] < pushes["acked"]:
        wrong.append(
            f"replicas were told of {pushes['acked']} pushes, shards count {pushes['applied']}"
        )
    if work := report["work"]:
        for what in ("units", "samples"):
            total = work[f"{what}_total"] - work[f"{what}_aside"]
            rows = [*report["replicas"], report["replicas_more"]]
            by_replicas = sum(replica[what] for replica in rows)
            if not by_replicas == report[what] == total:
                wrong.append(
                    f"{what}: {by_replicas} by replicas, {report[what]} of the job, {total} to do"
                )
    return wrong


def _local_optimizer(declared: Declared) -> str | None:
    """What replicas train with, where they do so by themselves."""
    if declared.optimizer is declared.shard_optimizer:
        return None
    return "the user's" if declared.optimizer is None else declared.optimizer.describe()


def _version(status: PolicyStatus) -> dict[str, Any]:
    """One version of the job's policy, and when and why it came to be."""
    return {
        "version": status.entry.version,
        "policy": status.entry.settings,
        "at_s": status.at_s,
        "samples": status.samples,
        "by": status.by,
    }


def _work(job: JobState) -> dict[str, Any] | None:
    ledger = job.ledger
    if ledger is None:
        return None
    return {
        "len": ledger.work.len,
        "unit": ledger.work.unit,
        "passes": ledger.work.passes,
        "shuffle": ledger.work.shuffle,
        "seed": ledger.work.seed,
        "units_total": ledger.units_total,
        "samples_total": ledger.samples_total,
        "units_aside": ledger.units_aside,
        "samples_aside": ledger.samples_aside,
        "leases_ended": ledger.leases_ended,
        "attempts_max": ledger.attempts_max,
        "backups": ledger.backups,
    }


def _pushes(counts: list[ReplicaStats], places: list[Place]) -> dict[str, int]:
    told = sum(c.pushes_sent for c in counts)
    acked = sum(c.pushes_acked for c in counts)
    by_shards = [place.stats.pushes for place in places] or [0]
    most = sum(by_shards) if any(c.records_left_out for c in counts) else max(by_shards)
    applied = min(max(max(by_shards), acked), most)
    return {
        "sent": max(told, applied),
        "acked": acked,
        "repeated": sum(c.pushes_repeated for c in counts),
        "applied": applied,
        "duplicate": max((place.stats.pushes_duplicate for place in places), default=0),
        "refused": sum(c.pushes_refused for c in counts),
        "silent": sum(c.pushes_silent for c in counts),
        "unheard": max(applied - told, 0),
    }


def _gradients(job: JobState, counts: list[ReplicaStats]) -> dict[str, Any]:
    """What became of gradients before they were sent."""
    return {
        "computed": sum(c.steps for c in counts),
        "dropped": sum(c.gradients_dropped for c in counts),
        "wire_dtype": job.declared.wire_dtype,
        "max_norm": job.declared.max_norm,
        "codec": codec.describe() if (codec := job.declared.codec) is not None else "none",
        "values_overflowed": sum(c.values_overflowed for c in counts),
        "values_underflowed": sum(c.values_underflowed for c in counts),
        "fragments_left_out": sum(c.records_left_out for c in counts),
        "payload_bytes": sum(c.payload_bytes for c in counts),
    }


def _records(places: list[Place]) -> dict[str, int]:
    return {
        "applied": sum(place.stats.lsn for place in places),
        "duplicate": sum(place.stats.records_duplicate for place in places),
        "superseded": sum(place.stats.records_superseded for place in places),
        "refused": sum(place.stats.records_refused for place in places),
    }


def _staleness(entry: HistogramEntry) -> dict[str, Any]:
    return {"mean": round(entry.mean, 4), "max": entry.max, "histogram": entry.by_value()}


def _clocks(members: list[Member], places: list[Place]) -> dict[str, int]:
    """Steps finished: of the replica with the fewest and the most, and how far apart two were."""
    steps = [member.stats.steps for member in members]
    return {
        "least": min(steps, default=0),
        "most": max(steps, default=0),
        "spread_max": max((place.stats.clock_spread_max for place in places), default=0),
    }


def _memory(members: list[Member], places: list[Place], own: int) -> dict[str, int]:
    peaks = {"coordinator": own}
    peaks |= {f"shard-{place.index}": place.stats.rss_peak_bytes for place in places}
    # By name, as the engine and the log files call it; a name two replicas share gets the id too.
    names = [member.name or f"replica-{member.id}" for member in members]
    often = Counter(names)
    for member, name in zip(members, names, strict=True):
        key = name if often[name] == 1 else f"{name} ({member.id})"
        peaks[key] = member.rss_peak_bytes
    return peaks


def _work_of(job: JobState, member: Member) -> tuple[int, int]:
    """(samples, units) of one replica, as they count."""
    done = job.ledger.account(member.id) if job.ledger is not None else member.stats
    return done.samples, done.units


def _more(job: JobState, members: list[Member], listed: list[Member]) -> dict[str, int]:
    """The replicas that are not listed one by one: how many, and what they did together.

    With those that are gone for so long that the coordinator keeps only their sums.
    """
    ids = {member.id for member in listed}
    others = [member for member in members if member.id not in ids]
    work = [_work_of(job, member) for member in others]
    forgotten = job.members.forgotten
    gone = job.ledger.account(FORGOTTEN) if job.ledger is not None else forgotten.stats
    return {
        "count": len(others) + forgotten.replicas,
        "samples": sum(samples for samples, _ in work) + gone.samples,
        "units": sum(units for _, units in work) + gone.units,
        "steps": sum(member.stats.steps for member in others) + forgotten.stats.steps,
    }


def _replica(job: JobState, member: Member) -> dict[str, Any]:
    stats = member.stats
    account = job.ledger.account(member.id) if job.ledger is not None else None
    return {
        "id": member.id,
        "name": member.name,
        "state": member.state,
        "host": member.host,
        "incarnations": member.incarnation,
        "version": member.version,
        "units": account.units if account is not None else stats.units,
        "samples": account.samples if account is not None else stats.samples,
        "units_refused": account.refused if account is not None else 0,
        "units_returned": account.returned if account is not None else 0,
        "steps": stats.steps,
        "gradients_dropped": stats.gradients_dropped,
        "samples_computed": stats.samples,
        "pushes": {
            "sent": stats.pushes_sent,
            "acked": stats.pushes_acked,
            "repeated": stats.pushes_repeated,
            "refused": stats.pushes_refused,
        },
        "records_duplicate": stats.records_duplicate,
        "fetches": stats.fetches,
        "reconnects": stats.reconnects,
        "bytes_sent": stats.bytes_sent,
        "bytes_received": stats.bytes_received,
        "reduced_sent": stats.reduced_sent,
        "reduced_received": stats.reduced_received,
        "state_bytes": stats.state_bytes,
        "waited_s": {
            name.removeprefix("waited_").removesuffix("_s"): round(getattr(stats, name), 3)
            for name in WAITED
        },
        "loss": finite(stats.loss),
        "staleness": {
            "mean": round(stats.staleness.mean, 4),
            "median": stats.staleness.quantile(0.5),
            "p99": stats.staleness.quantile(0.99),
            "max": stats.staleness.max,
        },
        "fallback": stats.fallback,
    }


def _shard(place: Place, waits: Mapping[str, Any]) -> dict[str, Any]:
    stats = place.stats
    own = table(stats.waits)
    return {
        "index": place.index,
        "state": place.state,
        "url": place.url,
        "start": place.start,
        "len": place.len,
        "lsn": stats.lsn,
        "pushes": stats.pushes,
        "pushes_duplicate": stats.pushes_duplicate,
        "pushes_refused": stats.pushes_refused,
        "records_duplicate": stats.records_duplicate,
        "records_refused": stats.records_refused,
        "durability": stats.durability,
        "bases_gone": stats.bases_gone,
        "refused_by": {str(one.replica): one.records for one in stats.refused_by},
        "fetches": stats.fetches,
        "bytes_received": stats.bytes_received,
        "bytes_sent": stats.bytes_sent,
        "staleness": stats.staleness.by_value(),
        "clock_spread_max": stats.clock_spread_max,
        "waits": own if own != waits else None,
        "memory": dict(stats.memory),
    }
