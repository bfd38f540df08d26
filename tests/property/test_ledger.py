"""The work ledger against a model that knows nothing but sets.

Replicas lease, finish, fail, die, come back and repeat themselves in any order; answers get lost;
the coordinator stands still and moves; units that are held for long are lent twice. The model
keeps, for each (pass, unit), who is recorded, and for each lease when it ends. After every step the
ledger's own audit must balance; at the end whoever is left can always finish the work.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydownpour import limits
from pydownpour.coordinator.ledger import Ledger
from pydownpour.coordinator.units import Lease
from pydownpour.wire.messages import UnitEntry, WorkEntry

LEASE_S = 10.0
REPLICAS = (1, 2, 3)
NOBODY = 0
"""Who has done a unit that was set aside."""
Replicas = st.sampled_from(REPLICAS)
Pick = st.integers(0, 1000)


class LedgerMachine(RuleBasedStateMachine):
    """Drives one ledger."""

    @initialize(
        length=st.integers(1, 17),
        unit=st.integers(1, 5),
        passes=st.integers(1, 3),
        leases_max=st.integers(1, 3),
        passes_open_max=st.integers(1, 3),
        backup=st.sampled_from([0.0, 1.0, 2.0]),
    )
    def begin(
        self,
        length: int,
        unit: int,
        passes: int,
        leases_max: int,
        passes_open_max: int,
        backup: float,
    ) -> None:
        self.work = WorkEntry(
            len=length, unit=unit, passes=passes, shuffle=True, seed=0, backup=backup
        )
        self.leases_max, self.passes_open_max = leases_max, passes_open_max
        self.ledger = self.new()
        self.now = 0.0
        self.incarnations = dict.fromkeys(REPLICAS, 1)
        self.held: list[tuple[int, int, UnitEntry]] = []
        """(replica, incarnation, lease) that a replica believes to hold, live or long over."""
        self.reported: list[tuple[int, UnitEntry]] = []
        self.recorded: dict[tuple[int, int], int] = {}
        self.finished: list[int] = []
        self.ends: dict[int, float] = {}
        self.failures: Counter[tuple[int, int]] = Counter()
        self.aside: set[tuple[int, int]] = set()
        self.lent: dict[tuple[int, int], dict[int, float]] = {}
        """(pass, unit) -> its leases and when they were given."""

    def new(self) -> Ledger:
        return Ledger(
            self.work,
            limits.Limits(
                lease_s=LEASE_S,
                leases_per_replica_max=self.leases_max,
                passes_open_max=self.passes_open_max,
            ),
        )

    def renewed(self, replica: int) -> None:
        """The model's side of a sign of life."""
        for lease in self.ledger.open_leases:
            if lease.replica == replica:
                self.ends[lease.lease] = self.now + LEASE_S

    # One rule acts for everything replicas do: as separate rules most runs would lack one of them,
    # and it takes all of them to get a unit lent twice and completed twice.

    @rule(what=st.sampled_from(["lease", "lease", "finish", "finish", "late", "fail"]),
          replica=Replicas, pick=Pick)  # fmt: skip
    def work_goes_on(self, what: str, replica: int, pick: int) -> None:
        if what == "lease":
            self.lease(replica, 1 + pick % 4)
        elif what == "late":
            self.time_passes(LEASE_S)
            self.lease(replica, 1)
        elif self.held and what == "fail":
            self.fail(pick % len(self.held))
        elif self.held:
            self.finish(pick % len(self.held))

    def lease(self, replica: int, count: int) -> None:
        incarnation = self.incarnations[replica]
        mine = [u for r, i, u in self.held if (r, i) == (replica, incarnation)]
        live = {lease.lease for lease in self.ledger.open_leases}
        lending = self.ledger.lease(replica, incarnation, count, self.now, held=self.known(replica))
        self.renewed(replica)
        again = {lease.lease for lease in self.ledger.open_leases}
        for unit in mine:
            place = (unit.pass_index, unit.unit)
            if place not in self.recorded and len(self.lent[place]) == 1:
                assert unit.lease in again, "it came back before anybody else was lent its unit"
        self.check_copies(replica, live, lending.backups)
        for unit in lending.units:
            self.lent.setdefault((unit.pass_index, unit.unit), {})[unit.lease] = self.now
        assert lending.done == (self.ledger.complete and not lending.units)
        assert lending.units or lending.reason
        assert len(lending.units) <= min(count, self.leases_max)
        for unit in lending.units:
            assert (unit.pass_index, unit.unit) not in self.recorded, "lent again after it was done"
            assert unit.stop - unit.start == min(self.work.unit, self.work.len - unit.start)
            self.held.append((replica, incarnation, unit))

    def known(self, replica: int) -> set[int]:
        """Leases that a replica says it knows of: also those whose answers were lost on others."""
        live = {lease.lease for lease in self.ledger.open_leases if lease.replica == replica}
        return live | {unit.lease for r, _, unit in self.held if r == replica}

    def check_copies(self, replica: int, live: set[int], backups: tuple[Lease, ...]) -> None:
        """Backup copies are of units that another replica alone has held for long."""
        holders: dict[tuple[int, int], list[int]] = {}
        for lease in self.ledger.open_leases:
            holders.setdefault((lease.pass_index, lease.unit), []).append(lease.replica)
        assert all(len(set(them)) == len(them) <= 2 for them in holders.values())
        for backup in backups:
            given = self.lent[backup.pass_index, backup.unit]
            others = [lease for lease in given if lease in live]
            assert len(others) == 1
            assert self.work.backup
            assert self.now - given[others[0]] >= limits.DEFAULT.backup_min_s
            assert holders[backup.pass_index, backup.unit][-1] == replica

    def finish(self, index: int) -> None:
        replica, incarnation, unit = self.held.pop(index)
        if incarnation != self.incarnations[replica]:
            return  # the membership fences it before the ledger is asked
        place = (unit.pass_index, unit.unit)
        outcome = self.ledger.record(replica, unit.pass_index, unit.unit, unit.lease, self.now)
        if not outcome.repeated:  # a lease that was offered again is held twice
            assert outcome.counted == (place not in self.recorded)
            if outcome.counted:
                self.recorded[place] = replica
            whole = sum(index == unit.pass_index for index, _ in self.recorded) == self.ledger.units
            assert (outcome.finished is not None) == (outcome.counted and whole)
            if outcome.finished is not None:
                self.finished.append(outcome.finished)
        again = self.ledger.record(replica, unit.pass_index, unit.unit, unit.lease, self.now)
        assert (again.counted, again.repeated) == (outcome.counted, True)
        self.reported.append((replica, unit))

    def fail(self, index: int) -> None:
        """The user's code raises at a unit; it is told twice, and counts once."""
        replica, _, unit = self.held.pop(index)
        live = unit.lease in {lease.lease for lease in self.ledger.open_leases}
        failed = self.ledger.fail(replica, unit.pass_index, unit.unit, unit.lease)
        assert self.ledger.fail(replica, unit.pass_index, unit.unit, unit.lease) is None
        assert (failed is not None) == live
        if failed is None:
            return
        place = (unit.pass_index, unit.unit)
        self.failures[place] += 1
        assert failed.times == self.failures[place]
        assert failed.aside == (failed.times == limits.DEFAULT.unit_failures_max)
        if failed.aside:
            self.aside.add(place)
            self.recorded[place] = NOBODY
            whole = sum(index == unit.pass_index for index, _ in self.recorded) == self.ledger.units
            assert (failed.finished is not None) == whole
            if whole:
                self.finished.append(unit.pass_index)

    @precondition(lambda self: self.reported)
    @rule(pick=Pick)
    def an_old_completion_is_repeated(self, pick: int) -> None:
        replica, unit = self.reported[pick % len(self.reported)]
        before = self.ledger.units_done
        self.ledger.record(replica, unit.pass_index, unit.unit, unit.lease, self.now)
        assert self.ledger.units_done == before

    @rule(replica=Replicas, count=st.integers(1, 4))
    def a_lease_answer_is_lost(self, replica: int, count: int) -> None:
        """The units are lent, but their replica does not know: told so, it gets them again."""
        lost_units = self.ledger.lease(replica, self.incarnations[replica], count, self.now).units
        for unit in lost_units:
            self.lent.setdefault((unit.pass_index, unit.unit), {})[unit.lease] = self.now
        self.renewed(replica)
        mine = [lease for lease in self.ledger.open_leases if lease.replica == replica]
        known = {unit.lease for _, _, unit in self.held}
        lost = {lease.lease for lease in mine} - known
        incarnation = self.incarnations[replica]
        if lost:
            lending = self.ledger.lease(replica, incarnation, len(lost), self.now, held=known)
            self.renewed(replica)
            assert {unit.lease for unit in lending.units} == lost
            self.held += [(replica, incarnation, unit) for unit in lending.units]

    @rule(replica=Replicas)
    def a_replica_dies(self, replica: int) -> None:
        self.ledger.release(replica)
        assert not [x for x in self.ledger.open_leases if x.replica == replica]

    @rule(replica=Replicas)
    def a_replica_comes_back(self, replica: int) -> None:
        self.incarnations[replica] += 1
        self.ledger.release(replica, below=self.incarnations[replica])
        assert not [x for x in self.ledger.open_leases if x.replica == replica]

    @rule(replica=Replicas)
    def a_heartbeat(self, replica: int) -> None:
        self.ledger.renew(replica, self.incarnations[replica], self.now)
        self.renewed(replica)

    @rule(order=st.permutations(REPLICAS), seconds=st.sampled_from([15.0, 301.0]), pick=Pick)
    def units_are_held_for_long(self, order: list[int], seconds: float, pick: int) -> None:
        """Everybody lives on for a while and then asks; copies are completed in any order."""
        self.lease(order[0], 3)
        self.now += seconds
        for replica in REPLICAS:
            self.a_heartbeat(replica)
        for replica in order:
            self.lease(replica, 3)
        if pick % 3 and self.held:
            self.finish(pick % len(self.held))

    @rule(seconds=st.sampled_from([0.5, LEASE_S / 2, LEASE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        live = {lease.lease for lease in self.ledger.open_leases}
        over = {lease.lease for lease in self.ledger.expire(self.now)}
        assert over == {lease for lease in live if self.ends[lease] <= self.now}

    @rule(gap=st.sampled_from([1.0, LEASE_S, 8 * LEASE_S]))
    def the_coordinator_stands_still(self, gap: float) -> None:
        before = self.ledger.open_leases
        self.now += gap
        self.ledger.extend(gap, self.now)
        for lease, end in self.ends.items():
            self.ends[lease] = min(end + gap, self.now + LEASE_S)
        assert self.ledger.expire(self.now) == []
        assert self.ledger.open_leases == before

    @rule()
    def the_coordinator_moves(self) -> None:
        """State that survives: through bytes and back, nothing is forgotten."""
        state = msgspec.json.decode(msgspec.json.encode(self.ledger.export()))
        successor = self.new()
        successor.restore(state, self.now)
        assert successor.export() == self.ledger.export()
        self.ends = {lease.lease: self.now + LEASE_S for lease in successor.open_leases}
        self.ledger = successor

    @invariant()
    def the_books_balance(self) -> None:
        assert self.ledger.audit() == []
        assert self.ledger.units_done == len(self.recorded) - len(self.aside)
        assert self.ledger.units_aside == len(self.aside)
        assert self.ledger.passes_finished == len(self.finished) == len(set(self.finished))
        for replica in REPLICAS:
            mine = sum(by == replica for by in self.recorded.values())
            assert self.ledger.account(replica).units == mine

    def teardown(self) -> None:
        """However bad it was, one fresh replica finishes, and every sample is counted once."""
        if not hasattr(self, "ledger"):
            return  # it failed before it began
        for replica in REPLICAS:
            self.ledger.release(replica)
        for _ in range(self.ledger.units_total + 1):
            lending = self.ledger.lease(9, 1, 1, self.now)
            if lending.done:
                break
            assert len(lending.units) == 1, lending.reason
            unit = lending.units[0]
            assert self.ledger.record(9, unit.pass_index, unit.unit, unit.lease, self.now).counted
            assert (unit.pass_index, unit.unit) not in self.recorded
            self.recorded[unit.pass_index, unit.unit] = 9
        assert self.ledger.complete
        assert len(self.recorded) == self.ledger.units_total
        samples = self.ledger.samples_done + self.ledger.samples_aside
        assert samples == self.work.len * self.work.passes
        assert self.ledger.audit() == []


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(stateful_step_count=50)
