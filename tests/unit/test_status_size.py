"""Status and report fit their carriers, however many roles there are and whatever these say."""

from __future__ import annotations

import numpy as np
import pytest

from pydownpour import limits
from pydownpour.coordinator import view
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.progress import Progress
from pydownpour.coordinator.report import audit_report, build_report
from pydownpour.histogram import BUCKETS, HistogramEntry
from pydownpour.job import Job, Work
from pydownpour.optimizers import SGD
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    EvaluationEntry,
    ReplicaStats,
    ShardStats,
    Status,
    WaitEntry,
    WaitsEntry,
)
from tests.fakes.coordination import Cast

REPLICAS, SHARDS = 3000, 1000
MOST = limits.COUNT_MAX
FULL = HistogramEntry(count=MOST, sum=MOST, max=MOST, buckets=[MOST] * BUCKETS)
CONTROL = "\x01"
"""Takes six bytes of JSON."""
SUMS = [(2**32 - 1, limits.SECONDS_MAX - 0.001)] * limits.WAITS_TOLD_MAX
WAIT = WaitEntry(
    MOST, 2**32 - 1, [2**32 - 1] * limits.WAITED_FOR_NAMED_MAX, limits.SECONDS_MAX - 0.001,
    CONTROL * limits.WAIT_WORDS_LEN_MAX,
)  # fmt: skip
WAITS = WaitsEntry(
    count=MOST, pairs=[(2**32 - 1, *one) for one in SUMS], waiters=SUMS, waited_for=SUMS,
    open=[WAIT] * limits.WAITS_OPEN_TOLD_MAX, ended=[WAIT] * limits.WAITS_ENDED_TOLD_MAX,
)  # fmt: skip
"""As long as an entry can be."""


@pytest.fixture(scope="module")
def crowd() -> Cast:
    """More roles than have rows; each says as much as its messages have room for."""
    job = Job(
        parameters={"w": np.zeros(SHARDS * 64, np.float32)}, optimizer=SGD(lr=1.0),
        data=Work(REPLICAS, unit=1), name="crowd",
    )  # fmt: skip
    cast = Cast(job, shards=SHARDS)
    for place in cast.job.places:
        place.become("loading")
        place.become("ready")
        place.url = f"https://shard-{place.index}.example/{'p' * 200}"
        place.stats = ShardStats(
            index=place.index, ready=True, bytes_received=7, staleness=FULL, waits=WAITS
        )
    for number in range(REPLICAS):
        cast.join(f"replica-{number}")
    members: list[Member] = list(cast.job.members)
    for member in members:
        member.host = CONTROL * limits.LABEL_LEN_MAX
        member.current = ReplicaStats(
            steps=1, staleness=FULL, waiting_for=CONTROL * limits.WORDS_LEN_MAX, loss=1e308
        )
        cast.job.members.change(member, "left" if member.id % 2 else "dead")
    for member in members[-2:]:
        cast.job.members.change(member, "live")
    names = [f"{i:03}{'m' * (limits.LABEL_LEN_MAX - 3)}" for i in range(limits.METRICS_MAX)]
    for number in range(200):
        metrics = dict.fromkeys(names, -1.2345678901234567e-300)
        cast.job.progress.evaluated(
            EvaluationEntry(passes=number, at_s=1.0, samples=1, metrics=metrics)
        )
        cast.job.progress.evaluation_errors.append(CONTROL * 1024)
    return cast


def test_a_status_is_never_longer_than_a_body_may_be_and_counts_everybody(crowd: Cast) -> None:
    report = build_report(crowd.job, crowd.now, version="1", rss_peak_bytes=1, storage="ok")
    shown = view.status(crowd.job, crowd.now, run_folder="runs/x", report=report)
    body = messages.encode(shown)
    assert len(body) < limits.JSON_SIZE_MAX
    again = messages.decode(Status, body)
    assert len(again.replicas) == len(again.shards) == limits.STATUS_ROWS_MAX
    assert [again.replicas_count, again.replicas_live] == [REPLICAS, 2]
    assert [again.shards_count, again.shards_ready] == [SHARDS, SHARDS]
    assert again.bytes_to_shards == 7 * SHARDS
    states = [replica.state for replica in again.replicas]
    assert states.count("live") == 2, "whoever is here has a row"
    assert states.count("left") == 0, "whoever left said so itself"


def test_a_report_is_never_longer_than_a_line_to_the_engine_and_adds_up(crowd: Cast) -> None:
    job = crowd.job
    assert job.ledger is not None
    for member in job.members:
        job.ledger.account(member.id).units += member.id % 3
    report = build_report(job, crowd.now, version="1", rss_peak_bytes=1, storage="ok")
    assert len(messages._encoder.encode(report)) < limits.DEFAULT.channel_line_size_max
    assert len(report["replicas"]) == limits.DEFAULT.report_rows_max
    more = report["replicas_more"]
    assert more["count"] == REPLICAS - limits.DEFAULT.report_rows_max
    assert sum(r["steps"] for r in report["replicas"]) + more["steps"] == REPLICAS
    units = sum(account % 3 for account in range(1, REPLICAS + 1))
    assert sum(r["units"] for r in report["replicas"]) + more["units"] == units
    wrong = audit_report({**report, "state": "done"})
    assert any(f"units: {units} by replicas, 0 of the job" in words for words in wrong)


def test_shards_that_are_not_ready_are_shown_before_all_others(crowd: Cast) -> None:
    late = crowd.job.places.get(SHARDS - 1)
    late.become("silent")
    try:
        shown = view.status(crowd.job, crowd.now, run_folder="", report=None)
    finally:
        late.become("ready")
    assert [shard.index for shard in shown.shards][-2:] == [limits.STATUS_ROWS_MAX - 2, SHARDS - 1]
    assert shown.shards_ready == SHARDS - 1


def test_evaluations_are_kept_up_to_a_number_of_numbers() -> None:
    progress = Progress()

    def evaluated(count: int) -> None:
        metrics = {str(i): 1.0 for i in range(count)}
        progress.evaluated(EvaluationEntry(passes=0, at_s=0.0, samples=0, metrics=metrics))

    for _ in range(2 * limits.DEFAULT.evaluations_max):
        evaluated(1)
    assert len(progress.evaluations) == limits.DEFAULT.evaluations_max
    for _ in range(1000):
        evaluated(limits.METRICS_MAX)
    kept = sum(len(entry.metrics) for entry in progress.evaluations)
    assert limits.DEFAULT.evaluation_numbers_max - limits.METRICS_MAX < kept
    assert kept <= limits.DEFAULT.evaluation_numbers_max
