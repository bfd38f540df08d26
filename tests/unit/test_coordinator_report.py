"""The loss curve, the sums and the final report: counts that agree with each other."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from pydownpour.cli.summary import summary
from pydownpour.coordinator.progress import LossCurve, Progress
from pydownpour.coordinator.report import audit_report, build_report
from pydownpour.coordinator.tally import SUMMED, add_stats
from pydownpour.wire.messages import EvaluationEntry, RefusedEntry, ReplicaStats
from tests.fakes.coordination import Cast, histogram


def test_a_short_curve_is_exact() -> None:
    curve = LossCurve(4)
    curve.add(1.0, 10, 3.0, 10)
    curve.add(2.0, 20, 1.0, 10)
    assert curve.points == [(1.0, 10, 3.0), (2.0, 20, 1.0)]
    assert curve.last == 1.0


def test_a_long_curve_is_thinned_by_weighted_means_and_keeps_its_end() -> None:
    curve = LossCurve(8)
    for number in range(1000):
        curve.add(number, number, number, 1)
        assert len(curve.points) <= 9
    points = curve.points
    assert [at for at, _, _ in points] == sorted({at for at, _, _ in points})
    assert points[-1][0] == 999
    assert points[0][2] == pytest.approx(points[0][0] / 2), "the mean of 0..at"


def test_weights_count() -> None:
    curve = LossCurve(2)
    curve.add(1.0, 1, 1.0, 1)
    curve.add(2.0, 4, 5.0, 3)
    assert curve.points == [(2.0, 4, 4.0)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_no_curve_holds_what_is_not_finite(loss: float) -> None:
    curve = LossCurve()
    curve.add(1.0, 1, loss, 1)
    assert (curve.points, curve.last) == ([], None)


def test_the_mean_of_losses_whose_sum_is_too_large_is_a_number_that_json_carries() -> None:
    curve = LossCurve(2)
    for at in range(5):
        curve.add(float(at), at, 1.7e308, 10**6)
        curve.add(float(at), at, -1.7e308, 10**6)
    text = msgspec.json.encode(curve.points)
    assert msgspec.json.decode(text, type=list[tuple[float, int, float]]) == curve.points


def test_the_rate_is_over_the_time_of_training() -> None:
    progress = Progress()
    assert progress.samples_per_s(5, 9.0) == 0.0
    progress.begin(10.0)
    progress.begin(11.0)
    assert progress.samples_per_s(20, 14.0) == 5.0
    progress.end(20.0)
    progress.end(30.0)
    assert progress.running_s(99.0) == 10.0


def test_every_total_of_a_replica_is_summed() -> None:
    """A count added to the messages must be added here, or a restart would forget it."""
    momentary = {"loss", "staleness", "waiting_for", "rss_bytes", "residual_bytes", "fallback"}
    momentary |= {"policy", "state_bytes"}
    assert set(SUMMED) | momentary == set(ReplicaStats.__struct_fields__)
    ones = ReplicaStats(**dict.fromkeys(SUMMED, 1))  # type: ignore[arg-type]
    both = add_stats(ones, ones)
    assert {name: getattr(both, name) for name in SUMMED} == dict.fromkeys(SUMMED, 2)


def finished() -> Cast:
    """Two replicas did all the work, one of them in two lives; everybody said their last counts."""
    cast = Cast()
    cast.shards_ready()
    cast.join("one")
    cast.join("two")
    cast.complete(1, *cast.lease(1, 2).units)
    cast.beat(1, steps=3, pushes_sent=3, pushes_acked=3, staleness=histogram(0, 0, 0))
    cast.join("one")
    cast.complete(1, *cast.lease(1, incarnation=2).units, incarnation=2)
    cast.now += 4
    cast.beat(2)
    cast.finish_all(2)
    cast.leave(1, incarnation=2, steps=1, pushes_sent=1, pushes_acked=1, staleness=histogram(1))
    cast.leave(
        2, steps=5, pushes_sent=5, pushes_acked=4, pushes_refused=1, staleness=histogram(0, 0, 3, 3)
    )
    for index in range(2):
        cast.shard_beat(
            index, pushes=8, pushes_duplicate=index, pushes_refused=1, lsn=16,
            records_duplicate=index, records_superseded=3 * index, records_refused=2,
            refused_by=[RefusedEntry(replica=2, records=2)],
            bytes_received=100, bytes_sent=1000, rss_peak_bytes=77,
        )  # fmt: skip
    return cast


def test_the_reports_counts_agree() -> None:
    cast = finished()
    metrics = {"accuracy": 0.5, "loss": 2.0}
    cast.job.progress.evaluations.append(
        EvaluationEntry(passes=2, at_s=4.0, samples=20, metrics=metrics)
    )
    report = build_report(cast.job, cast.now, version="9", rss_peak_bytes=5, storage="ok")
    assert report["state"] == "done"
    assert report["reason"] == "all 2 passes are complete"
    assert report["accuracy"] == 0.5
    assert report["metrics"] == metrics
    assert report["audit"] == []
    assert (report["units"], report["passes"], report["samples"]) == (6, 2, 20)
    assert report["samples"] == sum(r["samples"] for r in report["replicas"])
    assert report["units"] == sum(r["units"] for r in report["replicas"])
    assert (report["seconds"], report["samples_per_s"]) == (4.0, 5.0)
    pushes = report["pushes"]
    assert pushes == {
        "sent": 9, "acked": 8, "repeated": 0, "applied": 8, "duplicate": 1, "refused": 1,
        "silent": 0, "unheard": 0,
    }  # fmt: skip
    assert pushes["sent"] == pushes["applied"] + pushes["refused"]
    assert sum(report["staleness"]["histogram"].values()) == pushes["acked"]
    assert report["staleness"] == {
        "mean": 0.875,
        "max": 3,
        "histogram": {"0": 5, "1": 1, "3": 2},
    }
    assert report["records"] == {"applied": 32, "duplicate": 1, "superseded": 3, "refused": 4}
    assert report["bytes"] == {
        "to_shards": 200, "from_shards": 2000, "among_replicas": 0,
    }  # fmt: skip
    assert report["rss_peak_bytes"] == {
        "coordinator": 5, "shard-0": 77, "shard-1": 77, "one": 1000, "two": 2000,
    }  # fmt: skip
    first = report["replicas"][0]
    assert (first["incarnations"], first["steps"], first["units"]) == (2, 4, 3)


def test_what_shards_applied_was_sent_though_the_sender_died_before_it_told() -> None:
    cast = Cast()
    cast.shards_ready()
    cast.join()
    cast.beat(1, pushes_sent=5, pushes_acked=4, steps=9, gradients_dropped=3, losses_not_finite=2)
    cast.shard_beat(0, pushes=8)
    cast.finish_all(1)
    report = build_report(cast.job, cast.now, version="9", rss_peak_bytes=5, storage="ok")
    assert (report["pushes"]["sent"], report["pushes"]["unheard"]) == (8, 3)
    assert audit_report({**report, "state": "done"}) == []
    assert report["losses_not_finite"] == 2
    rows = dict(summary(report))
    assert rows["pushes"] == "8 sent, 4 acked, 8 applied, 0 duplicate, 0 refused, 3 unheard"
    assert rows["dropped"] == "3 of 9 gradients"
    assert rows["losses"] == "2 were NaN or infinite"


def test_the_report_reads_the_same_from_a_file() -> None:
    report = build_report(finished().job, 200.0, version="9", rss_peak_bytes=5, storage="off")
    text = msgspec.json.encode(report)
    again = json.loads(text)
    assert "accuracy" not in again
    assert again.pop("losses") == [list(point) for point in report.pop("losses")]
    assert again == report


def test_a_failed_job_reports_that() -> None:
    cast = Cast()
    cast.job.fail("shard 1 died", cast.now)
    report = build_report(cast.job, cast.now, version="9", rss_peak_bytes=0, storage="off")
    assert (report["state"], report["reason"], report["loss"]) == ("failed", "shard 1 died", None)
    assert report["pushes"]["applied"] == 0
