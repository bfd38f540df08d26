"""Directed cases of the work ledger; the random ones are in tests/property/test_ledger.py."""

from __future__ import annotations

import base64
import tracemalloc
from typing import Any

import pytest

from pydownpour import limits
from pydownpour.coordinator.ledger import Ledger
from pydownpour.errors import ConfigError, RemoteProtocolError
from pydownpour.limits import Limits
from pydownpour.wire.messages import UnitEntry, WorkEntry


def ledger(
    length: int = 10, unit: int = 4, passes: int = 1, *, backup: float = 0.0, **options: Any
) -> Ledger:
    work = WorkEntry(len=length, unit=unit, passes=passes, shuffle=False, seed=0, backup=backup)
    return Ledger(work, Limits(**{"lease_s": 10.0, "leases_per_replica_max": 4, **options}))


def take(books: Ledger, replica: int, now: float = 0.0, count: int = 1) -> list[UnitEntry]:
    return list(books.lease(replica, 1, count, now).units)


def record(books: Ledger, replica: int, unit: UnitEntry) -> bool:
    return books.record(replica, unit.pass_index, unit.unit, unit.lease, 0.0).counted


def test_units_cover_the_pass_in_order_and_the_last_is_shorter() -> None:
    units = take(ledger(), 1, count=4)
    assert [(u.start, u.stop) for u in units] == [(0, 4), (4, 8), (8, 10)]
    assert [u.lease for u in units] == [1, 2, 3]


def test_who_is_second_is_told_that_it_was_not_needed() -> None:
    books = ledger()
    (slow,) = take(books, 1)
    assert [lease.unit for lease in books.expire(10.0)] == [0]
    (again,) = take(books, 2, 10.0)
    assert (again.unit, again.lease) == (0, 2)
    assert record(books, 2, again)
    late = books.record(1, slow.pass_index, slow.unit, slow.lease, 0.0)
    assert not late.counted
    assert "completed by another" in late.reason
    assert books.account(1).refused == 1
    assert (books.units_done, books.samples_done) == (1, 4)
    assert books.audit() == []


def test_a_late_completion_counts_while_the_unit_is_open_and_ends_the_other_lease() -> None:
    books = ledger()
    (slow,) = take(books, 1)
    books.expire(10.0)
    (again,) = take(books, 2, 10.0)
    assert record(books, 1, slow)
    assert books.open_leases == ()
    assert not record(books, 2, again)
    assert books.account(1).units == 1


def test_a_completion_of_a_returned_unit_counts_and_it_is_not_lent_again() -> None:
    books = ledger()
    (unit,) = take(books, 1)
    books.expire(10.0)
    assert record(books, 1, unit)
    assert [u.unit for u in take(books, 2, 10.0, 4)] == [1, 2]


def test_a_heartbeat_keeps_leases_alive_and_only_its_own() -> None:
    books = ledger()
    take(books, 1)
    take(books, 2)
    books.renew(1, 1, 9.0)
    books.renew(2, 7, 9.0)  # another incarnation does not renew
    assert [lease.replica for lease in books.expire(10.0)] == [2]
    assert [lease.replica for lease in books.expire(19.0)] == [1]


def test_a_repeated_completion_gets_the_same_answer_for_a_while() -> None:
    books = ledger(100, 1)
    (first,) = take(books, 1)
    assert record(books, 1, first)
    assert books.record(1, 0, 0, first.lease, 0.0).repeated
    for _ in range(90):
        (unit,) = take(books, 1)
        record(books, 1, unit)
    forgotten = books.record(1, 0, 0, first.lease, 0.0)
    assert not forgotten.repeated
    assert not forgotten.counted
    assert books.units_done == 91


def test_the_next_pass_begins_while_stragglers_of_the_last_compute() -> None:
    books = ledger(8, 4, passes=2)
    (straggler,) = take(books, 1)
    others = take(books, 2, count=4)
    assert [(u.pass_index, u.unit) for u in others] == [(0, 1), (1, 0), (1, 1)]
    for unit in others:
        record(books, 2, unit)
    assert books.passes_finished == 1
    assert not books.complete
    assert books.pass_index == 0, "the oldest open pass is shown"
    assert books.record(1, 0, straggler.unit, straggler.lease, 0.0).finished == 0
    assert books.complete


def test_who_finds_nothing_is_told_who_holds_what() -> None:
    books = ledger(8, 4)
    take(books, 1, 0.0)
    take(books, 2, 1.0)
    waiting = books.lease(3, 1, 1, 3.5)
    assert not waiting.done
    assert waiting.reason == (
        "nothing left to lend; waiting for unit 0 of pass 1 at replica 1 for 3.5 s, "
        "unit 1 of pass 1 at replica 2 for 2.5 s"
    )
    many = ledger(8, 1)
    take(many, 1, count=4)
    take(many, 2, count=4)
    assert many.lease(3, 1, 1, 0.0).reason.endswith("and 5 more")


def test_no_replica_hoards() -> None:
    books = ledger(100, 1, leases_per_replica_max=6)
    assert len(take(books, 1, count=99)) == limits.DEFAULT.leases_asked_max == 4
    assert len(take(books, 1, count=99)) == 2
    assert "leases_per_replica_max" in books.lease(1, 1, 1, 0.0).reason


def test_a_pass_that_does_not_end_bounds_how_many_are_open() -> None:
    books = ledger(1, 1, passes=5, passes_open_max=2)
    take(books, 1)
    (second,) = take(books, 2)
    assert second.pass_index == 1
    assert "waiting for unit 0 of pass 1 at replica 1" in books.lease(3, 1, 1, 0.0).reason


def test_lost_leases_are_offered_again_and_first() -> None:
    books = ledger()
    (known,) = take(books, 1)
    (lost,) = take(books, 1)
    again = books.lease(1, 1, 1, 0.0, held=[known.lease])
    assert again.units == (lost,)
    assert books.lease(1, 1, 2, 0.0, held=[]).units == (known, lost)


def test_everything_done_is_said_to_all() -> None:
    books = ledger(4, 4)
    (unit,) = take(books, 1)
    assert books.record(1, 0, 0, unit.lease, 0.0).finished == 0
    answer = books.lease(2, 1, 1, 0.0)
    assert answer.done
    assert "complete" in answer.reason


@pytest.mark.parametrize(
    ("pass_index", "unit", "lease"),
    [(1, 0, 1), (-1, 0, 1), (0, 3, 1), (0, -1, 1), (0, 1, 1), (0, 2, 1), (0, 0, 9), (0, 0, 0)],
)
def test_what_was_never_lent_cannot_be_completed(pass_index: int, unit: int, lease: int) -> None:
    books = ledger()
    take(books, 1)
    with pytest.raises(RemoteProtocolError, match="replica 1 completed unit"):
        books.record(1, pass_index, unit, lease, 0.0)
    assert books.units_done == 0


def test_nobody_completes_by_anothers_lease() -> None:
    books = ledger()
    (mine,) = take(books, 1)
    with pytest.raises(RemoteProtocolError, match="that lease is replica 1's"):
        record(books, 2, mine)


@pytest.mark.parametrize("field", ["len", "unit", "passes"])
def test_impossible_work_is_refused(field: str) -> None:
    values = {"len": 4, "unit": 4, "passes": 1, field: 0}
    with pytest.raises(ConfigError, match=f"{field}=0"):
        Ledger(WorkEntry(shuffle=True, seed=0, **values))


def test_too_many_units_name_the_limit() -> None:
    with pytest.raises(ConfigError, match="UNITS_MAX"):
        ledger(limits.UNITS_MAX + 1, 1)


def test_memory_is_a_bit_a_unit() -> None:
    books = ledger(limits.UNITS_MAX, 1)
    take(books, 1)
    assert len(books._open[0].done) == limits.UNITS_MAX // 8
    assert len(books._leases) == 1


def test_a_unit_that_failed_three_times_is_set_aside_and_its_pass_ends_without_it() -> None:
    books = ledger(length=8, unit=4)
    for replica in (1, 2):
        (unit,) = take(books, replica)
        failed = books.fail(replica, unit.pass_index, unit.unit, unit.lease)
        assert failed is not None
        assert (unit.unit, failed.times, failed.aside) == (0, replica, False), "lent again first"
    first, second = take(books, 3, count=2)
    assert record(books, 3, second)
    failed = books.fail(3, first.pass_index, first.unit, first.lease)
    assert failed is not None
    assert (failed.times, failed.aside, failed.finished) == (3, True, 0)
    assert books.complete
    assert (books.units_done, books.units_aside, books.samples_aside) == (1, 1, 4)
    assert books.audit() == []
    assert take(books, 3) == []


def test_a_failure_counts_only_for_the_lease_that_is_held() -> None:
    books = ledger()
    (unit,) = take(books, 1)
    assert books.fail(2, unit.pass_index, unit.unit, unit.lease) is None, "not its own"
    assert books.fail(1, unit.pass_index, unit.unit + 1, unit.lease) is None
    assert books.fail(1, 2**40, 2**40, 2**40) is None
    assert record(books, 1, unit)
    assert books.fail(1, unit.pass_index, unit.unit, unit.lease) is None, "it was done before"


def test_a_completed_unit_forgets_its_failures() -> None:
    books = ledger(length=4, unit=4, passes=2)
    for replica in (1, 2):
        (unit,) = take(books, replica)
        books.fail(replica, unit.pass_index, unit.unit, unit.lease)
    (unit,) = take(books, 3)
    assert record(books, 3, unit)
    (unit,) = take(books, 3)
    failed = books.fail(3, unit.pass_index, unit.unit, unit.lease)
    assert failed is not None
    assert (unit.pass_index, failed.times) == (1, 1)


def test_a_late_completion_of_a_unit_set_aside_is_told_so() -> None:
    books = ledger(length=4, unit=4)
    (slow,) = take(books, 1)
    books.expire(10.0)
    for replica in (2, 3, 4):
        (unit,) = take(books, replica)
        books.fail(replica, unit.pass_index, unit.unit, unit.lease)
    late = books.record(1, slow.pass_index, slow.unit, slow.lease, 0.0)
    assert not late.counted
    assert books.units_done == 0


def test_the_audit_sees_a_cooked_book() -> None:
    books = ledger()
    (unit,) = take(books, 1)
    record(books, 1, unit)
    books._open[0].done[0] = 0b111
    books.account(1).samples += 1
    words = "; ".join(books.audit())
    for part in ("a lent unit is in no place", "3 bits, 1 counted", "samples"):
        assert part in words


def test_the_audit_of_a_long_pass_makes_no_object_for_each_unit() -> None:
    books, units = ledger(800_001, 4), 200_001
    take(books, 1)
    state = books.export()
    state["open"][0] |= {
        "cursor": units - 1,
        "done": base64.b64encode(b"\xfe" + b"\xff" * (units // 8 - 1) + b"\0").decode(),
    }
    state["accounts"] = [[1, units - 2, 4 * (units - 2), 0, 0]]
    books.restore(state, 0.0)
    tracemalloc.start()
    try:
        assert books.audit() == []
        assert tracemalloc.get_traced_memory()[1] < 10 * units
    finally:
        tracemalloc.stop()


def test_whoever_comes_back_in_time_goes_on_under_its_lease() -> None:
    books = ledger(8, 4)
    (first,) = take(books, 1)
    books.release(1)
    assert books.lease(1, 1, 1, 0.0, held=[first.lease]).units[0].unit == 1
    assert {lease.lease for lease in books.open_leases} == {1, 2}
    assert (books.leases_ended, books.account(1).returned) == (0, 0)
    books.release(1)
    assert take(books, 2)[0].unit == 0
    books.lease(1, 1, 1, 0.0, held=[first.lease])
    assert [x.replica for x in books.open_leases if x.unit == 0] == [2], "another has it now"
    assert books.audit() == []


@pytest.mark.parametrize("gone", [False, True])
def test_what_was_given_back_is_lent_anew_whatever_its_holder_said_before(gone: bool) -> None:
    """Its request was sent before it gave the lease back, and comes after that."""
    books = ledger()
    (first,) = take(books, 1)
    assert books.give_back(2, first.lease) is None, "it is not theirs"
    if gone:
        books.release(1)
    assert (books.give_back(1, first.lease) is None) == gone
    restored = ledger()
    restored.restore(books.export(), 0.0)
    for one in (books, restored):
        (again,) = one.lease(1, 1, 1, 0.0, held=[first.lease]).units
        assert again.unit == first.unit
        assert again.lease != first.lease
        assert one.account(1).returned == 1
        assert one.give_back(1, first.lease) is None, "a repeated report"
        assert record(one, 1, again)
        assert one.audit() == []


def test_a_failed_unit_does_not_go_on_under_its_lease() -> None:
    books = ledger()
    (first,) = take(books, 1)
    assert books.fail(1, 0, first.unit, first.lease) is not None
    (again,) = books.lease(1, 1, 1, 0.0, held=[first.lease]).units
    assert (again.unit, again.lease != first.lease) == (first.unit, True)


def test_an_older_incarnation_does_not_get_its_lease_back() -> None:
    books = ledger(8, 4)
    (first,) = take(books, 1)
    books.release(1, below=2)
    (again,) = books.lease(1, 2, 1, 0.0, held=[first.lease]).units
    assert (again.unit, again.lease) == (0, 2)


def slow_tail(backup: float) -> Ledger:
    """Ten units took 2 s each; the eleventh is with replica 1 since 20.0."""
    books = ledger(11, 1, backup=backup, lease_s=1000.0)
    for number in range(10):
        (unit,) = take(books, 2, 2.0 * number)
        books.record(2, 0, unit.unit, unit.lease, 2.0 * number + 2.0)
    take(books, 1, 20.0)
    return books


def test_a_unit_held_much_longer_than_usual_is_lent_to_one_more() -> None:
    books = slow_tail(backup=8.0)
    assert not books.lease(1, 1, 1, 99.0, held=[11]).units, "its own holder gets no copy"
    assert not books.lease(2, 1, 1, 35.9).units
    assert books.overdue(35.9) == ""
    lending = books.lease(2, 1, 1, 36.0)
    assert [lease.lease for lease in lending.backups] == [lending.units[0].lease] == [12]
    assert not books.lease(3, 1, 1, 99.0).units, "two are enough"
    assert books.overdue(36.0) == (
        "held long: unit 10 of pass 1 at replica 1 for 16.0 s (lent to replica 2, too); "
        "usual is 2.0 s"
    )
    assert books.record(2, 0, 10, 12, 38.0).finished == 0
    late = books.record(1, 0, 10, 11, 39.0)
    assert not late.counted
    assert late.reason == "unit 10 of pass 1 was completed by another before"
    assert (books.backups, books.attempts_max, books.audit()) == (1, 2, [])


def test_the_first_holder_may_still_be_the_first_to_finish() -> None:
    books = slow_tail(backup=8.0)
    (copy,) = books.lease(2, 1, 1, 60.0).units
    assert books.record(1, 0, 10, 11, 61.0).counted
    assert not books.record(2, 0, 10, copy.lease, 62.0).counted
    assert books.open_leases == ()


def test_a_copy_outlives_the_death_of_the_first_holder() -> None:
    books = slow_tail(backup=8.0)
    (copy,) = books.lease(2, 1, 1, 60.0).units
    books.release(1)
    assert books.audit() == []
    assert not books.lease(3, 1, 1, 61.0).units
    books.release(2)
    assert take(books, 3, 62.0)[0].unit == copy.unit


def test_without_backup_copies_a_long_hold_is_only_told() -> None:
    books = slow_tail(backup=0.0)
    assert not books.lease(2, 1, 1, 1000.0).units
    assert "held long: unit 10 of pass 1 at replica 1" in books.overdue(1000.0)


def test_before_anybody_knows_how_long_units_take_patience_is_longer() -> None:
    books = ledger(1, 1, backup=8.0)
    take(books, 1)
    assert not books.lease(2, 1, 1, limits.DEFAULT.backup_blind_s - 1).units
    assert books.overdue(limits.DEFAULT.quiet_s).endswith("few were completed yet")
    assert books.lease(2, 1, 1, limits.DEFAULT.backup_blind_s).backups


def test_an_overdue_unit_goes_before_the_next_pass() -> None:
    books = ledger(4, 1, passes=9, backup=8.0, lease_s=1000.0)
    take(books, 1)
    for _ in range(3):
        (unit,) = take(books, 2)
        books.record(2, 0, unit.unit, unit.lease, 1.0)
    assert take(books, 2, 5.0)[0].pass_index == 1
    for _ in range(3):
        take(books, 2, 5.0)
    (copy,) = take(books, 3, 50.0)
    assert (copy.pass_index, copy.unit) == (0, 0)
