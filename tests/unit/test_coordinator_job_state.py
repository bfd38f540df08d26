"""The coordinator's decisions: who is let in, what fails the job, when it is over."""

from __future__ import annotations

import math

import msgspec
import pytest

from pydownpour import limits
from pydownpour.codecs import Int8
from pydownpour.coordinator import view
from pydownpour.coordinator.report import audit_report, build_report
from pydownpour.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    Fenced,
    JobFailed,
    LayoutMismatch,
    NotReady,
    RemoteProtocolError,
)
from pydownpour.job import Work
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Completion,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Leave,
    RefusedEntry,
    ShardAssigned,
    ShardEnded,
    ShardHello,
    ShardStats,
    Status,
)
from tests.fakes.coordination import Cast, make_job


def running(**options: object) -> Cast:
    """A job whose shards are ready and that replica 1 has joined."""
    cast = Cast(**options)  # type: ignore[arg-type]
    cast.shards_ready()
    cast.join("one")
    return cast


# -- starting -----------------------------------------------------------------------------------


def test_it_says_for_whom_it_waits_all_the_way() -> None:
    cast = Cast(expected=4)
    assert cast.job.reason(cast.now) == "waiting for shards 0, 1 to start"
    cast.hello("a")
    assert "shard 1 to start and shard 0 to load" in cast.job.reason(cast.now)
    with pytest.raises(NotReady, match="the job waits for shard 1 to start and shard 0 to load"):
        cast.join()
    cast.shard_beat(0)
    cast.hello("b")
    cast.shard_beat(1)
    assert cast.job.reason(cast.now) == "waiting for a replica to join (4 expected)"
    assert cast.state == "waiting"
    joined = cast.join("one")
    assert cast.state == "running"
    assert cast.job.reason(cast.now) == ""
    assert [e.url for e in joined.shard_map.entries] == ["http://a", "http://b"]
    assert sum(e.len for e in joined.shard_map.entries) == cast.declared.layout.len
    assert joined.work == messages.WorkEntry(
        len=10, unit=4, passes=2, shuffle=True, seed=0, backup=limits.BACKUP_FACTOR
    )


def test_a_hello_is_told_its_elements() -> None:
    cast = Cast()
    first, second = cast.hello("a"), cast.hello("b")
    assert (first.start, first.len + second.len) == (0, cast.declared.layout.len)
    assert second.start == first.len
    assert first.optimizer == [("sgd", {"lr": 0.5})]
    assert cast.hello("a") == first, "a lost answer is given again"


@pytest.mark.parametrize(("low", "high"), [(2, 3), (0, 0)])
def test_protocols_that_do_not_meet_name_both_ranges(low: int, high: int) -> None:
    cast = Cast()
    cast.shards_ready()
    join = Join(protocol_min=low, protocol_max=high)
    with pytest.raises(ConfigError, match=f"replica speaks protocol {low} to {high}.*1 to 1"):
        cast.job.join(join, cast.now)
    with pytest.raises(ConfigError, match=f"shard speaks protocol {low} to {high}"):
        cast.job.hello(ShardHello(url="", protocol_min=low, protocol_max=high), cast.now)


def test_other_parameters_are_refused_even_before_the_shards_are_there() -> None:
    cast = Cast()
    with pytest.raises(LayoutMismatch, match=r"replica 'r' has other parameters .* /v1/layout"):
        cast.job.join(Join(fingerprint="x", name="r"), cast.now)
    assert len(cast.job.members) == 0


def test_a_replica_without_a_layout_of_its_own_takes_the_jobs() -> None:
    cast = running()
    joined = cast.job.join(Join(), cast.now)
    assert joined.fingerprint == cast.declared.layout.fingerprint


def test_a_dtype_the_replica_cannot_send() -> None:
    cast = Cast()
    cast.shards_ready()
    join = Join(wire_dtypes=["float16"])
    with pytest.raises(ConfigError, match="sends gradients as float32, the replica can send float"):
        cast.job.join(join, cast.now)


def test_who_lacks_the_jobs_codec_is_refused() -> None:
    cast = Cast(make_job(codec=Int8(64)))
    hello = ShardHello(url="http://0", codecs=["zip", "lzw"], version="0.0.9")
    words = r"encodes gradients by int8\(block=64\), the shard knows zip, lzw \(pydownpour 0.0.9\)"
    with pytest.raises(ConfigError, match=words):
        cast.job.hello(hello, cast.now)
    cast.shards_ready()
    words = r"the replica knows none .*use a build that has int8, or a job without codec="
    with pytest.raises(ConfigError, match=words):
        cast.job.join(Join(), cast.now)
    assert cast.join("r").codec == ("int8", {"block": 64.0})
    assert cast.hello("shard-0", index=0).codec == ("int8", {"block": 64.0})


def test_without_a_codec_nobody_needs_one() -> None:
    cast = running()
    assert cast.job.join(Join(codecs=["zip"]), cast.now).codec is None


def test_more_shards_than_fragments() -> None:
    with pytest.raises(ConfigError, match="use at most 5 shards"):
        Cast(shards=6)


def test_a_join_asked_again_is_answered_alike_and_noted_once() -> None:
    cast = Cast()
    cast.shards_ready()
    first = cast.join("r", nonce="n")
    (unit,) = cast.lease(1).units
    assert cast.join("r", nonce="n") == first
    assert len(cast.events("join", "rejoin")) == 1
    assert cast.complete(1, unit).counted == [True], "its units stay its own"


# -- work ---------------------------------------------------------------------------------------


def test_work_goes_out_comes_back_and_ends_the_job() -> None:
    cast = running()
    cast.finish_all(1)
    assert cast.state == "evaluating"
    assert cast.job.reason(cast.now) == "all 2 passes are complete"
    assert cast.lease(1).done
    assert [e["pass_index"] for e in cast.events("pass")] == [0, 1]
    assert cast.job.take_pass_ended()
    assert not cast.job.take_pass_ended(), "it was taken"
    assert cast.job.samples_done == 20


def test_a_warm_start_lets_one_replica_work_alone() -> None:
    cast = running(job=make_job(work=Work(10, unit=4, passes=2), warm_start=8))
    cast.join("two")
    refused = cast.lease(2)
    assert refused.units == []
    assert "replica 1 trains alone" in refused.reason
    assert refused.wait_s > 0
    cast.complete(1, *cast.lease(1, 2).units)
    assert cast.lease(2).units


def test_the_next_in_line_warms_up_when_the_first_dies() -> None:
    cast = running(job=make_job(work=Work(100, unit=4), warm_start=8))
    cast.join("two")
    cast.pass_time(limits.DEFAULT.dead_s + 0.5, beating=(2,))
    assert cast.lease(2).units


def test_waits_grow_with_the_crowd() -> None:
    cast = running(job=make_job(work=Work(4, unit=4)))
    cast.lease(1)
    assert cast.lease(1).wait_s == limits.DEFAULT.lease_retry_s
    for _ in range(300):
        cast.join()
    assert cast.lease(2).wait_s == pytest.approx(0.301)


def test_a_repeated_completion_is_not_drawn_twice() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    assert cast.complete(1, unit).counted == [True]
    assert cast.complete(1, unit).counted == [True]
    assert len(cast.job.progress.curve.points) == 1


def test_losses_that_are_not_finite_are_not_drawn() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    cast.complete(1, unit, loss=math.nan)
    assert cast.job.progress.curve.points == []


def test_a_job_without_work_says_so() -> None:
    cast = running(job=make_job())
    with pytest.raises(ConfigError, match="declares no work"):
        cast.lease(1)


def test_units_never_lent_are_a_protocol_error() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    with pytest.raises(RemoteProtocolError):
        cast.complete(1, msgspec.structs.replace(unit, unit=2))


# -- trouble ------------------------------------------------------------------------------------


def test_a_dead_replicas_units_go_to_others_within_the_limit() -> None:
    cast = running(job=make_job(work=Work(4, unit=4)))
    cast.join("two")
    (lost,) = cast.lease(1).units
    assert "at replica 1" in cast.lease(2).reason
    cast.pass_time(limits.DEFAULT.dead_s + 0.5, beating=(2,))
    (again,) = cast.lease(2).units
    assert again.unit == lost.unit
    (dead,) = cast.events("dead")
    assert dead["units_returned"] == [[0, 0]]
    assert [e["replica"] for e in cast.events("suspect")] == [1]


def test_a_dead_replica_that_wakes_goes_on_and_its_work_counts_if_it_is_first() -> None:
    cast = running()
    cast.join("two")
    (unit,) = cast.lease(1).units
    cast.pass_time(limits.DEFAULT.dead_s + 0.5, beating=(2,))
    cast.lease(2, 4)
    answer = cast.beat(1)
    assert not answer.fenced
    assert cast.events("alive")[0]["was"] == "dead"
    assert cast.complete(1, unit).counted == [True]
    assert cast.events("late completion")[0]["counted"] is True


def test_a_unit_in_doubt_is_lent_anew_and_the_books_say_so() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    cast.complete(1, in_doubt=[unit])
    (event,) = cast.events("in doubt")
    assert event["units_returned"] == [[0, 0]]
    assert "lent again under another lease" in str(event["reason"])
    (again,) = cast.lease(1).units
    assert again.unit == unit.unit
    assert again.lease != unit.lease
    cast.complete(1, in_doubt=[unit])
    assert len(cast.events("in doubt")) == 1, "a repeated report ends nothing else"
    assert cast.complete(1, again).counted == [True]


def test_a_replica_that_comes_back_fences_its_past_and_returns_its_units() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    assert cast.join("one").incarnation == 2
    assert cast.events("rejoin")[0]["units_returned"] == [[0, 0]]
    old = cast.beat(1, incarnation=1)
    assert old.fenced
    assert "incarnation 2" in old.reason
    with pytest.raises(Fenced):
        cast.complete(1, unit, incarnation=1)
    with pytest.raises(Fenced):
        cast.lease(1, incarnation=1)
    assert cast.lease(1, incarnation=2).units[0].unit == unit.unit


def test_a_goodbye_returns_units_at_once_and_fences() -> None:
    cast = running()
    cast.lease(1, 2)
    cast.leave(1, steps=9)
    assert cast.events("leave")[0]["units_returned"] == [[0, 0], [0, 1]]
    assert cast.beat(1).fenced
    assert cast.beat(77).fenced
    cast.leave(1, steps=0)
    assert len(cast.events("leave")) == 1
    assert cast.job.reason(cast.now) == (
        "no replica was heard for 0 s; 6 units are left; waiting for one to join"
    )


def test_a_lease_ends_by_itself_while_the_coordinator_doubts_deaths() -> None:
    cast = running(job=make_job(work=Work(4, unit=4)), shards=1)
    for _ in range(3):
        cast.join()
    cast.lease(1)
    cast.pass_time(limits.DEFAULT.lease_s - 1)
    assert "fell silent at once" in cast.job.reason(cast.now)
    assert len(cast.events("doubt")) == 1
    assert cast.events("dead") == []
    cast.pass_time(2.0)
    assert cast.events("lease expired")[0]["replica"] == 1


def test_its_own_stall_blames_nobody() -> None:
    cast = running()
    cast.lease(1)
    cast.job.tick(cast.now)
    cast.now += 50
    cast.job.tick(cast.now)
    assert cast.events("stall")[0]["seconds"] == 50
    assert cast.events("dead", "suspect", "lease expired", "failure") == []
    cast.pass_time(limits.DEFAULT.dead_s + 0.5)
    assert [e["replica"] for e in cast.events("dead")] == [1]


def one_shard_silent(cast: Cast, seconds: float, *, answering: tuple[int, ...] = ()) -> None:
    """Shard 1 sends nothing for so long, everybody else does; replica 1 says who answers it."""
    for _ in range(int(seconds / 0.25)):
        cast.now += 0.25
        secret = cast.secret(1, 1)
        beat = Heartbeat(
            role="replica", id=1, incarnation=1, secret=secret, answering=list(answering)
        )
        cast.job.heartbeat(beat, cast.now)
        cast.shard_beat(0)
        cast.job.tick(cast.now)


def test_a_silent_shard_that_may_hold_updates_is_waited_for_and_that_is_said() -> None:
    cast = running(shards=2)
    assert cast.beat(1).missed == []
    one_shard_silent(cast, 30.0)
    assert cast.state == "running"
    assert cast.job.places.get(1).state == "silent"
    reason = cast.job.reason(cast.now)
    assert reason.startswith("shard 1 (pid 1, http://shard-1) is silent for 30 s")
    assert "is waited for, 270 s more" in reason
    assert cast.beat(1).missed == [1], "replicas are asked whether it answers them"
    assert cast.join("late").replica == 2, "it may answer others"
    with pytest.raises(ConfigError, match="nobody can take its place"):
        cast.hello("new", index=1)
    assert not cast.shard_beat(1).fenced
    assert cast.job.places.get(1).state == "ready"
    assert cast.job.reason(cast.now) == ""
    assert cast.beat(1).missed == []
    told = [(e["event"], e.get("shard")) for e in cast.events("silent", "alive", "dead")]
    assert told == [("silent", 1), ("alive", 1)]


def test_a_shard_without_any_sign_of_life_ends_a_running_job_in_words() -> None:
    cast = running(shards=2)
    one_shard_silent(cast, limits.DEFAULT.shard_patience_s - 1)
    assert cast.state == "running"
    one_shard_silent(cast, 2.0)
    assert cast.state == "failed"
    reason = cast.job.reason(cast.now)
    assert reason.startswith("shard 1 (pid 1, http://shard-1) died: no sign of life for 300.")
    assert "start the job anew" in reason
    with pytest.raises(JobFailed, match="shard 1"):
        cast.join()
    with pytest.raises(JobFailed):
        cast.hello("new", index=1)
    assert cast.beat(1).state == "failed"
    assert cast.shard_beat(1).fenced


def test_shards_hear_of_a_failure_last_so_that_they_can_still_be_read() -> None:
    cast = running(shards=2)
    cast.job.fail("shard 1 died", cast.now)
    assert cast.beat(1).state == "failed"
    assert cast.shard_beat(0).state == "evaluating"
    assert not cast.job.everyone_knows()
    cast.job.conclude(cast.now)
    assert (cast.shard_beat(0).state, cast.shard_beat(1).state) == ("failed", "failed")
    assert cast.job.everyone_knows()


@pytest.mark.parametrize("who", ["replicas", "coordinator"])
def test_whatever_answers_elsewhere_is_alive(who: str) -> None:
    cast = running(shards=2)
    one_shard_silent(cast, limits.DEFAULT.shard_patience_s - 2)
    if who == "replicas":
        one_shard_silent(cast, 1.0, answering=(1,))
        assert "but replica 1 reaches it" in cast.job.reason(cast.now)
    else:
        cast.job.shard_answered(1, ShardStats(index=1, ready=True, lsn=7), cast.now)
        assert "but it answers when asked" in cast.job.reason(cast.now)
        assert cast.job.places.get(1).stats.lsn == 7
    one_shard_silent(cast, limits.DEFAULT.shard_patience_s - 2)
    assert cast.state == "running"
    one_shard_silent(cast, 3.0)
    assert cast.state == "failed"


def test_replicas_word_alone_does_not_keep_a_job_waiting_for_ever() -> None:
    cast = running(shards=2)
    one_shard_silent(
        cast, limits.DEFAULT.hearsay_s + limits.DEFAULT.shard_patience_s - 5, answering=(1,)
    )
    assert cast.state == "running"
    one_shard_silent(cast, 10.0, answering=(1,))
    assert cast.state == "failed"


def test_a_host_that_refuses_connections_tells_that_its_shard_is_gone() -> None:
    cast = running(shards=2)
    one_shard_silent(cast, 5.0)
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    one_shard_silent(cast, limits.DEFAULT.shard_refused_s - 1)
    cast.job.shard_did_not_answer(1, cast.now, refused=False)
    one_shard_silent(cast, 5.0)
    assert cast.state == "running", "a proxy had been restarting"
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    one_shard_silent(cast, limits.DEFAULT.shard_refused_s, answering=(1,))
    assert cast.state == "failed", "nobody's word stands against that"
    assert "its host has refused connections" in cast.job.reason(cast.now)


def test_a_shard_whose_end_was_seen_is_dead_at_once() -> None:
    cast = running(shards=2)
    news = ShardEnded(index=1, pid=99, reason="was killed by SIGKILL")
    assert not cast.job.shard_ended(news), "of another process"
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    news = ShardEnded(index=1, pid=1, reason="was killed by SIGKILL")
    assert cast.job.shard_ended(news)
    cast.job.shard_answered(1, ShardStats(index=1, ready=True), cast.now)
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    assert cast.state == "running", "the news was false, as it answered"
    assert cast.job.shard_ended(news)
    assert cast.state == "running", "words are no proof"
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    assert cast.state == "failed"
    assert "shard 1 (pid 1, http://shard-1) died: was killed by SIGKILL" in cast.job.reason(0.0)
    assert not cast.job.shard_ended(news)


def test_a_shard_whose_end_was_seen_before_the_job_ran_is_replaced_at_once() -> None:
    cast = Cast()
    cast.shards_ready()
    assert cast.job.shard_ended(ShardEnded(index=1, pid=1, reason="was killed by SIGKILL"))
    cast.job.shard_did_not_answer(1, cast.now, refused=True)
    assert cast.state == "waiting"
    assert cast.hello("new", index=1).index == 1, "nobody had pushed to it"


def test_a_shard_that_dies_before_the_job_runs_is_replaced() -> None:
    cast = Cast()
    cast.shards_ready()
    for _ in range(16):
        cast.now += 0.25
        cast.shard_beat(0)
        cast.job.tick(cast.now)
    assert cast.state == "waiting"
    assert "shard 1 to start" in cast.job.reason(cast.now)
    assert cast.hello("new").index == 1
    cast.shard_beat(1)
    assert cast.join().shard_map.entries[1].url == "http://new"


def test_a_shard_that_loads_long_is_not_called_dead_for_it() -> None:
    cast = Cast()
    assigned = cast.hello("a")
    cast.pass_time(limits.DEFAULT.join_patience_s - 1)
    assert cast.events("dead") == []
    cast.job.loading(0, assigned.secret, cast.now)
    cast.pass_time(limits.DEFAULT.join_patience_s - 1)
    assert cast.events("dead") == []
    cast.pass_time(2)
    assert "did not load within" in str(cast.events("dead")[0]["reason"])
    assert "shards 0, 1 to start" in cast.job.reason(cast.now)
    with pytest.raises(Fenced, match="has no place"):
        cast.job.loading(0, assigned.secret, cast.now)


def test_whoever_knows_an_older_shard_map_gets_the_newest_and_nobody_else_any() -> None:
    cast = Cast()
    cast.hello("first", index=0)
    assert cast.shard_beat(0, knows=0).shard_map is None, "it has holes yet"
    cast.hello("second", index=1)
    cast.shard_beat(1)
    joined = cast.join()
    entries = joined.shard_map.entries
    assert joined.shard_map.epoch == max(entry.epoch for entry in entries) == 1
    assert joined.shard_map.fragments == cast.job.partition.fragment_count
    assert cast.shard_beat(0, knows=0).shard_map == joined.shard_map
    assert cast.shard_beat(0, knows=1).shard_map is None
    assert cast.beat(1, knows=0).shard_map == joined.shard_map
    assert cast.beat(1, knows=1).shard_map is None


def test_a_place_that_is_taken_anew_has_a_newer_entry() -> None:
    cast = Cast()
    cast.hello("a", index=0)
    cast.pass_time(limits.DEFAULT.join_patience_s + 1)
    assert cast.hello("b", index=0).epoch == 2
    assert cast.hello("c", index=1).epoch == 2
    cast.shard_beat(0)
    cast.shard_beat(1)
    shard_map = cast.join().shard_map
    assert (shard_map.epoch, [entry.epoch for entry in shard_map.entries]) == (2, [2, 2])


def test_refusals_are_told_once_each_with_their_number() -> None:
    cast = running()
    one = RefusedEntry(replica=1, records=2)
    cast.shard_beat(1, refused_by=[one], records_refused=2)
    cast.shard_beat(1, refused_by=[one], records_refused=2)
    more = [RefusedEntry(replica=1, records=5), RefusedEntry(replica=4, records=1)]
    cast.shard_beat(1, refused_by=more, records_refused=6)
    told = [(e["shard"], e["replica"], e["records"], e["of"]) for e in cast.events("refusal")]
    assert told == [(1, 1, 2, 2), (1, 1, 5, 6), (1, 4, 1, 6)]


def test_a_quiet_job_says_so_and_goes_on() -> None:
    cast = running(job=make_job(work=Work(4, unit=4)))
    cast.pass_time(limits.DEFAULT.quiet_s + 1)
    assert cast.state == "running"
    assert "no replica was heard for 31 s; 1 units are left" in cast.job.reason(cast.now)
    cast.join()
    assert cast.job.reason(cast.now) == ""


def test_events_nobody_takes_away_are_only_counted() -> None:
    cast = running()
    for _ in range(limits.DEFAULT.events_queued_max + 5):
        cast.job.note_event(cast.now, "x")
    assert len(cast.job.events) == limits.DEFAULT.events_queued_max
    assert cast.job.take_events(cast.now)[-1]["event"] == "events dropped"
    assert not cast.job.events


# -- the end ------------------------------------------------------------------------------------


def test_without_work_the_job_ends_when_everybody_left() -> None:
    cast = running(job=make_job(), expected=2)
    cast.leave(1)
    cast.pass_time(1)
    assert cast.state == "running", "the second is still expected"
    cast.join("two")
    cast.pass_time(1, beating=(2,))
    cast.leave(2)
    cast.pass_time(0.25)
    assert cast.state == "evaluating"
    assert cast.job.reason(cast.now) == "every replica has left"


def test_without_work_a_crashed_replica_has_time_to_come_back() -> None:
    cast = running(job=make_job())
    cast.join("two")
    cast.leave(1)
    cast.pass_time(limits.DEFAULT.lease_s - 1)
    assert cast.state == "running"
    cast.pass_time(2)
    assert cast.state == "evaluating"


def test_without_work_a_replica_that_failed_has_time_to_come_back() -> None:
    cast = running(job=make_job())
    cast.fail(1, "ValueError: no data (job.py:3 in train)")
    cast.pass_time(limits.DEFAULT.lease_s - 1)
    assert cast.state == "running", "its engine starts it again"
    cast.join("one")
    cast.pass_time(1, beating=(1,))
    cast.leave(1, incarnation=2)
    cast.pass_time(0.25)
    assert (cast.state, cast.job.outcome) == ("evaluating", "done")


def test_without_work_a_job_whose_replicas_all_failed_is_not_done() -> None:
    cast = running(job=make_job())
    cast.join("two")
    cast.fail(1, "ValueError: no data (job.py:3 in train)")
    cast.fail(2, "ValueError: nor here (job.py:3 in train)")
    cast.pass_time(limits.DEFAULT.lease_s + 1)
    assert (cast.state, cast.job.outcome) == ("evaluating", "failed")
    assert "every replica has failed, the last one, replica" in cast.job.reason(cast.now)
    assert "(job.py:3 in train)" in cast.job.reason(cast.now)


def test_without_work_losses_come_from_heartbeats() -> None:
    cast = running(job=make_job())
    cast.beat(1, samples=10, loss=2.0)
    cast.beat(1, samples=10, loss=2.0)
    cast.beat(1, samples=30, loss=1.0)
    assert [(s, loss) for _, s, loss in cast.job.progress.curve.points] == [(10, 2.0), (30, 1.0)]
    assert cast.job.samples_done == 30


def test_after_the_end_nobody_is_let_in_and_everybody_is_told() -> None:
    cast = running()
    cast.finish_all(1)
    with pytest.raises(ClosedError, match="job sample is over: all 2 passes are complete"):
        cast.join()
    assert cast.beat(1).state == "evaluating"
    cast.job.conclude(cast.now)
    assert not cast.job.everyone_knows()
    assert cast.beat(1).state == "done"
    cast.shard_beat(0)
    assert not cast.job.everyone_knows()
    cast.shard_beat(1)
    assert cast.job.everyone_knows()


def test_a_stop_keeps_its_reason_and_a_second_end_changes_nothing() -> None:
    cast = running()
    cast.job.finish("stopped: lunch", cast.now)
    cast.job.finish("other", cast.now)
    assert cast.job.reason(cast.now) == "stopped: lunch"
    assert cast.lease(1).done
    cast.job.conclude(cast.now)
    cast.job.fail("too late", cast.now)
    assert cast.state == "done"


@pytest.mark.parametrize("secured", [False, True])
def test_a_shard_may_die_once_its_parameters_are_read(secured: bool) -> None:
    cast = running()
    cast.finish_all(1)
    cast.leave(1)
    if secured:
        cast.job.secure_parameters()
    for _ in range(int(limits.DEFAULT.shard_patience_s / 0.25) + 16):
        cast.now += 0.25
        cast.shard_beat(0)
        cast.job.tick(cast.now)
    assert cast.state == ("evaluating" if secured else "failed")


def test_the_status_survives_the_wire_whatever_was_reported() -> None:
    cast = running()
    (unit,) = cast.lease(1).units
    cast.complete(1, unit, loss=math.inf)
    cast.beat(1, loss=math.nan, steps=3)
    cast.now += 1
    shown = view.status(cast.job, cast.now, run_folder="runs/x", report=None)
    assert messages.decode(Status, messages.encode(shown)) == shown
    assert (shown.units_done, shown.units, shown.samples_done, shown.samples) == (1, 6, 4, 20)
    assert (shown.passes, shown.pass_index) == (2, 0)
    (replica,) = shown.replicas
    assert (replica.state, replica.units, replica.samples, replica.age_s) == ("live", 1, 4, 1.0)
    assert (replica.stats.steps, replica.stats.loss) == (3, None)
    assert [(s.index, s.state) for s in shown.shards] == [(0, "ready"), (1, "ready")]


def test_a_lease_s_answer_tells_a_failed_job_from_one_that_is_done() -> None:
    cast = running(job=make_job(work=Work(4, unit=4)))
    cast.finish_all(1)
    over = cast.lease(1)
    assert (over.done, over.failed) == (True, False)
    cast = running()
    cast.job.fail("shard 1 died", cast.now)
    over = cast.lease(1)
    assert (over.done, over.failed, over.reason) == (True, True, "shard 1 died")
    assert cast.leave(1).state == "failed"


# -- units at which the user's code raises ---------------------------------------------------------


def failing(on_error: str, units: int = 8) -> Cast:
    """A running job; its one replica fails and comes back as often as it is asked to."""
    job = make_job(work=Work(4 * units, unit=4))
    job.on_error = on_error  # type: ignore[assignment]
    return running(job=job)


def fail_units(cast: Cast, count: int) -> None:
    """The user's code raises at the next unit, so many times in all."""
    for _ in range(count):
        member = cast.job.members.get(1)
        assert member is not None
        (unit,) = cast.lease(1, incarnation=member.incarnation).units
        cast.fail(1, "ValueError: corrupt (job.py:3 in train)", unit=unit)
        if not cast.job.is_over:
            cast.join("one")


def test_a_unit_that_failed_three_times_ends_the_job_in_order() -> None:
    cast = failing("stop")
    fail_units(cast, limits.DEFAULT.unit_failures_max - 1)
    assert cast.state == "running"
    fail_units(cast, 1)
    assert (cast.state, cast.job.outcome) == ("evaluating", "failed")
    reason = cast.job.reason(cast.now)
    assert "unit 0 of pass 1 (places 0 to 3 of the pass's order) failed 3 times" in reason
    assert "ValueError: corrupt (job.py:3 in train)" in reason
    assert 'on_error="skip"' in reason
    cast.job.conclude(cast.now)
    assert cast.state == "failed"


def test_where_the_job_skips_them_the_unit_is_set_aside_and_said() -> None:
    cast = failing("skip")
    fail_units(cast, limits.DEFAULT.unit_failures_max)
    assert cast.state == "running"
    assert "1 unit set aside" in cast.job.reason(cast.now)
    member = cast.job.members.get(1)
    assert member is not None
    while units := cast.lease(1, 4, incarnation=member.incarnation).units:
        cast.complete(1, *units, incarnation=member.incarnation)
    assert (cast.state, cast.job.outcome) == ("evaluating", "done")
    assert "all 1 passes are complete but for 1 unit set aside" in cast.job.reason(cast.now)
    assert len(cast.job.units_aside) == 1


def test_units_set_aside_in_a_row_mean_that_the_code_is_broken() -> None:
    cast = failing("skip")
    fail_units(cast, limits.DEFAULT.unit_failures_max * limits.DEFAULT.units_aside_in_a_row_max - 1)
    assert cast.state == "running"
    fail_units(cast, 1)
    assert (cast.state, cast.job.outcome) == ("evaluating", "failed")
    assert "units_aside_in_a_row_max" in cast.job.reason(cast.now)


def test_shards_are_told_once_of_those_who_are_forgotten_and_the_report_still_adds_up() -> None:
    few = limits.Limits(replicas_gone_max=1)
    cast = Cast(make_job(work=Work(12, unit=1)), limits=few)
    cast.shards_ready()
    assert cast.shard_beat(0).ids is None, "nobody was forgotten"
    for replica in range(1, 5):
        cast.join()
        cast.complete(replica, *cast.lease(replica).units)
        cast.leave(replica, samples=1, pushes_acked=2)
    cast.join()
    cast.pass_time(limits.DEFAULT.replica_gone_s + 1, beating=(5,))
    assert [member.id for member in cast.job.members] == [4, 5]
    assert len(cast.events("forgotten")) == 3
    told = cast.shard_beat(0).ids
    assert told is not None
    assert (told.version, told.next, told.ranges) == (3, 6, [(4, 6)])
    life = cast.job.keeper.secret("shard", 0, 1)
    knows = Heartbeat(role="shard", id=0, incarnation=1, secret=life, epoch=1, ids_version=3)
    assert cast.job.heartbeat(knows, cast.now).ids is None
    assert cast.beat(2).fenced
    cast.finish_all(5)
    report = build_report(cast.job, cast.now, version="0", rss_peak_bytes=0, storage="off")
    assert report["replicas_more"] == {"count": 3, "units": 3, "samples": 3, "steps": 0}
    assert report["pushes"]["acked"] == 8
    assert sum(row["units"] for row in report["replicas"]) == 9
    assert not [words for words in audit_report(report) if "by replicas" in words]


def test_lies_that_fit_alone_do_not_add_up_to_a_status_nobody_can_read() -> None:
    cast = Cast(make_job())
    cast.shards_ready()
    for life in (1, 2, 3):
        cast.join("liar")
        cast.beat(1, life, samples=limits.COUNT_MAX, waited_push_s=limits.SECONDS_MAX, loss=1e308)
    cast.join("other")
    cast.beat(2, 1, samples=limits.COUNT_MAX, loss=1e308)
    body = messages.encode(view.status(cast.job, cast.now, run_folder="", report=None))
    status = messages.decode(Status, body)
    assert status.samples_done == limits.COUNT_MAX
    assert status.replicas[0].stats.samples == limits.COUNT_MAX
    report = build_report(cast.job, cast.now, version="0", rss_peak_bytes=0, storage="off")
    assert msgspec.json.decode(msgspec.json.encode(report))["samples"] == limits.COUNT_MAX


# -- a shard moves -------------------------------------------------------------------------------


def offered(cast: Cast, ticket: str, *, index: int | None = 1, nonce: str = "new") -> ShardAssigned:
    """A process with a ticket offers itself."""
    hello = ShardHello(url=f"http://{nonce}", nonce=nonce, index=index, pid=2, ticket=ticket)
    cast.job.check_hello(hello, cast.now)
    return cast.job.hello(hello, cast.now)


def successor_beat(cast: Cast, assigned: ShardAssigned, *, ready: bool) -> HeartbeatAnswer:
    beat = Heartbeat(
        role="shard",
        id=assigned.index,
        incarnation=assigned.incarnation,
        secret=assigned.secret,
        shard=ShardStats(index=assigned.index, ready=ready, lsn=7, pushes=3),
    )
    return cast.job.heartbeat(beat, cast.now)


def test_a_shard_moves_when_its_new_process_has_everything_and_not_before() -> None:
    cast = running()
    assigned = offered(cast, cast.job.move(1))
    assert (assigned.index, assigned.incarnation, assigned.epoch) == (1, 2, 0)
    assert assigned.source is not None
    assert assigned.source.url == "http://shard-1"
    old = cast.shard_beat(1)
    assert (old.serves, old.gives) == (1, assigned.source.secret)
    assert cast.shard_beat(0).gives == ""
    assert "shard 1 (pid 1, http://shard-1) moves to pid 2, http://new" in cast.job.reason(cast.now)
    waits = successor_beat(cast, assigned, ready=False)
    assert (waits.fenced, waits.serves, cast.job.places.epoch) == (False, 0, 1)
    serves = successor_beat(cast, assigned, ready=True)
    assert (serves.fenced, serves.serves) == (False, 2)
    shard_map = cast.join().shard_map
    assert shard_map.epoch == 2
    assert [(entry.url, entry.epoch) for entry in shard_map.entries] == [
        ("http://shard-0", 1),
        ("http://new", 2),
    ]
    assert cast.beat(1).shard_map == shard_map
    assert cast.beat(1, knows=2).shard_map is None
    fenced = cast.job.heartbeat(
        Heartbeat(
            role="shard", id=1, incarnation=1, secret=cast.job.keeper.secret("shard", 1, 1), epoch=1
        ),
        cast.now,
    )
    assert fenced.fenced
    assert fenced.shard_map == shard_map, "it says to whoever asks where the shard is"
    assert successor_beat(cast, assigned, ready=True).serves == 2, "its answer may be lost"
    assert cast.job.places.epoch == 2


def test_a_ticket_is_for_one_shard_and_once() -> None:
    cast = running()
    ticket = cast.job.move(1)
    with pytest.raises(ConfigError, match="by its index"):
        offered(cast, ticket, index=None)
    for wrong in ("x", cast.job.keeper.secret("ticket", 0, 2)):
        with pytest.raises(AuthError):
            offered(cast, wrong)
    with pytest.raises(AuthError, match="is not to move"):
        offered(cast, cast.job.keeper.secret("ticket", 0, 2), index=0)
    first = offered(cast, ticket)
    assert offered(cast, ticket) == first, "the answer was lost"
    with pytest.raises(NotReady, match="is being taken over by pid 2"):
        offered(cast, ticket, nonce="other")
    successor_beat(cast, first, ready=True)
    with pytest.raises(AuthError, match="is not to move, or its ticket was used before"):
        offered(cast, ticket, nonce="other")
    cast.job.finish("stopped", cast.now)
    with pytest.raises(ClosedError):
        cast.job.move(1)


def test_who_is_not_heard_is_given_up_and_can_never_have_the_shard() -> None:
    cast = running()
    first = offered(cast, cast.job.move(1))
    cast.pass_time(limits.DEFAULT.handover_silence_s - 1, beating=(1,))
    assert cast.shard_beat(1).gives
    cast.pass_time(2, beating=(1,))
    assert cast.shard_beat(1).gives == "", "it goes on"
    assert [event["shard"] for event in cast.events("hand-over given up")] == [1]
    assert successor_beat(cast, first, ready=True).fenced
    assert cast.job.places.epoch == 1
    second = offered(cast, cast.job.move(1), nonce="second")
    assert second.incarnation == 3
    assert second.source is not None
    assert first.source is not None
    assert second.source.secret != first.source.secret
    assert successor_beat(cast, first, ready=True).fenced
    assert successor_beat(cast, second, ready=True).serves == 2


def test_the_coordinator_s_own_stall_gives_nobody_up() -> None:
    cast = running()
    assigned = offered(cast, cast.job.move(1))
    cast.job.tick(cast.now)
    cast.now += 4 * limits.DEFAULT.handover_silence_s
    cast.job.tick(cast.now)
    assert successor_beat(cast, assigned, ready=True).serves == 2


def test_a_shard_that_is_not_heard_any_more_may_still_have_moved() -> None:
    """Its way to the coordinator is cut, and everything it has is at its new process."""
    cast = running()
    assigned = offered(cast, cast.job.move(1))
    for _ in range(20):
        cast.now += 0.25
        cast.shard_beat(0)
        cast.beat(1)
        successor_beat(cast, assigned, ready=False)
        cast.job.tick(cast.now)
    assert cast.job.places.get(1).state == "silent"
    assert successor_beat(cast, assigned, ready=True).serves == 2
    assert cast.job.places.get(1).state == "ready"
    assert cast.job.places.silent == []
    cast.pass_time(10, beating=(1,))
    assert cast.state == "running"


def test_units_that_a_goodbye_reports_count_once_and_the_others_go_back() -> None:
    """Their report was under way; it may have come, or come later, or the goodbye come twice."""
    for has_come in (True, False):
        cast = running()
        done, rest = cast.lease(1, 2).units
        if has_come:
            assert cast.complete(1, done).counted == [True]
        completion = Completion(
            pass_index=done.pass_index, unit=done.unit, lease=done.lease,
            samples=done.stop - done.start,
        )  # fmt: skip
        goodbye = Leave(
            replica=1, incarnation=1, secret=cast.secret(1, 1), reason="x", failed=True,
            units=[completion],
        )  # fmt: skip
        for _ in range(2):
            cast.job.leave(goodbye, cast.now)
        assert cast.job.ledger is not None
        assert cast.job.ledger.units_done == 1
        assert cast.job.ledger.audit() == []
        cast.join("two")
        given = cast.lease(2, 9).units
        assert rest.unit in [unit.unit for unit in given]
        assert done.unit not in [unit.unit for unit in given if unit.pass_index == 0]
