"""The work ledger against a model that knows nothing but sets.

Replicas lease, finish, die, come back and repeat themselves in any order; answers get lost. The
model keeps, for each (pass, unit), whether it is recorded. After every step the ledger's own audit
must balance; at the end whoever is left can always finish the work.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from pydownpour.coordinator.ledger import Ledger
from pydownpour.wire.messages import UnitEntry, WorkEntry

LEASE_S = 10.0
REPLICAS = (1, 2, 3)


class LedgerMachine(RuleBasedStateMachine):
    """Drives one ledger."""

    held: Bundle[tuple[int, int, UnitEntry]] = Bundle("held")
    """(replica, incarnation, lease) that a replica believes to hold, live or long over."""
    reported: Bundle[tuple[int, UnitEntry, bool]] = Bundle("reported")

    @initialize(
        length=st.integers(1, 17),
        unit=st.integers(1, 5),
        passes=st.integers(1, 3),
        leases_max=st.integers(1, 3),
        passes_open_max=st.integers(1, 3),
    )
    def begin(
        self, length: int, unit: int, passes: int, leases_max: int, passes_open_max: int
    ) -> None:
        self.work = WorkEntry(len=length, unit=unit, passes=passes, shuffle=True, seed=0)
        self.options = {
            "lease_s": LEASE_S,
            "leases_max": leases_max,
            "passes_open_max": passes_open_max,
        }
        self.ledger = Ledger(self.work, **self.options)  # type: ignore[arg-type]
        self.now = 0.0
        self.incarnations = dict.fromkeys(REPLICAS, 1)
        self.recorded: dict[tuple[int, int], int] = {}
        self.finished: list[int] = []
        self.ends: dict[int, float] = {}
        """Lease -> when it ends, by the model's own book-keeping."""

    @rule(target=held, replica=st.sampled_from(REPLICAS), count=st.integers(0, 4))
    def lease(self, replica: int, count: int) -> object:
        incarnation = self.incarnations[replica]
        lending = self.ledger.lease(replica, incarnation, count, self.now)
        self.renew(replica)
        assert lending.done == (self.ledger.complete and not lending.units)
        assert len(lending.units) <= min(count, self.options["leases_max"])
        for unit in lending.units:
            assert (unit.number, unit.unit) not in self.recorded, "lent again after it was done"
            assert unit.stop - unit.start == min(self.work.unit, self.work.len - unit.start)
        return multiple(*((replica, incarnation, unit) for unit in lending.units))

    @rule(replica=st.sampled_from(REPLICAS), count=st.integers(1, 4))
    def lease_and_lose_the_answer(self, replica: int, count: int) -> None:
        self.ledger.lease(replica, self.incarnations[replica], count, self.now)
        self.renew(replica)

    def renew(self, replica: int) -> None:
        for lease in self.ledger.open_leases:
            if lease.replica == replica:
                self.ends[lease.lease] = self.now + LEASE_S

    @rule(target=held, replica=st.sampled_from(REPLICAS))
    def ask_again_knowing_nothing(self, replica: int) -> object:
        """Whatever is lent to it and unknown to it is offered again, under the same lease."""
        before = {x.lease for x in self.ledger.open_leases if x.replica == replica}
        incarnation = self.incarnations[replica]
        lending = self.ledger.lease(replica, incarnation, len(before), self.now, held=[])
        self.renew(replica)
        assert {unit.lease for unit in lending.units} == before
        return multiple(*((replica, incarnation, unit) for unit in lending.units))

    @rule(target=reported, item=consumes(held))
    def complete(self, item: tuple[int, int, UnitEntry]) -> object:
        replica, incarnation, unit = item
        if incarnation != self.incarnations[replica]:
            return multiple()  # the membership fences it before the ledger is asked
        place = (unit.number, unit.unit)
        outcome = self.ledger.record(replica, unit.number, unit.unit, unit.lease)
        if not outcome.repeated:  # the same lease may be in the bundle twice
            assert outcome.counted == (place not in self.recorded)
            if outcome.counted:
                self.recorded[place] = replica
            whole = sum(number == unit.number for number, _ in self.recorded) == self.ledger.units
            assert (outcome.finished is not None) == (outcome.counted and whole)
            if outcome.finished is not None:
                self.finished.append(outcome.finished)
        again = self.ledger.record(replica, unit.number, unit.unit, unit.lease)
        assert (again.counted, again.repeated) == (outcome.counted, True)
        return replica, unit, outcome.counted

    @rule(item=reported)
    def complete_again(self, item: tuple[int, UnitEntry, bool]) -> None:
        replica, unit, counted = item
        before = self.ledger.units_done
        outcome = self.ledger.record(replica, unit.number, unit.unit, unit.lease)
        assert self.ledger.units_done == before, "a repeated completion was recorded again"
        if outcome.repeated:
            assert outcome.counted == counted

    @rule(replica=st.sampled_from(REPLICAS))
    def dies(self, replica: int) -> None:
        self.ledger.release(replica)
        assert not [x for x in self.ledger.open_leases if x.replica == replica]

    @rule(replica=st.sampled_from(REPLICAS))
    def comes_back(self, replica: int) -> None:
        self.incarnations[replica] += 1
        self.ledger.release(replica, below=self.incarnations[replica])
        assert not [x for x in self.ledger.open_leases if x.replica == replica]

    @rule(replica=st.sampled_from(REPLICAS))
    def heartbeat(self, replica: int) -> None:
        self.ledger.renew(replica, self.incarnations[replica], self.now)
        self.renew(replica)

    @rule(seconds=st.sampled_from([0.5, LEASE_S / 2, LEASE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        live = {lease.lease for lease in self.ledger.open_leases}
        over = {lease.lease for lease in self.ledger.expire(self.now)}
        assert over == {lease for lease in live if self.ends[lease] <= self.now}

    @rule(gap=st.sampled_from([1.0, LEASE_S, 8 * LEASE_S]))
    def coordinator_stands_still(self, gap: float) -> None:
        before = self.ledger.open_leases
        self.now += gap
        self.ledger.extend(gap, self.now)
        for lease in self.ends:
            self.ends[lease] = min(self.ends[lease] + gap, self.now + LEASE_S)
        assert [x for x in self.ledger.expire(self.now) if self.ends[x.lease] > self.now] == []
        assert len(self.ledger.open_leases) == len(before)

    @rule()
    def coordinator_moves(self) -> None:
        """State that survives: through bytes and back, nothing is forgotten."""
        state = msgspec.json.decode(msgspec.json.encode(self.ledger.export()))
        successor = Ledger(self.work, **self.options)  # type: ignore[arg-type]
        successor.restore(state, self.now)
        self.ends = {lease.lease: self.now + LEASE_S for lease in successor.open_leases}
        assert successor.export() == self.ledger.export()
        self.ledger = successor

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.audit() == []
        assert self.ledger.units_done == len(self.recorded)
        assert self.ledger.passes_finished == len(self.finished) == len(set(self.finished))
        for replica in REPLICAS:
            mine = sum(by == replica for by in self.recorded.values())
            assert self.ledger.account(replica).units == mine

    def teardown(self) -> None:
        """However bad it was, one fresh replica finishes, and every sample is counted once."""
        if not hasattr(self, "ledger"):
            return
        for replica in REPLICAS:
            self.ledger.release(replica)
        for _ in range(self.ledger.units_total + 1):
            lending = self.ledger.lease(9, 1, 1, self.now)
            if lending.done:
                break
            assert len(lending.units) == 1, lending.reason
            unit = lending.units[0]
            assert self.ledger.record(9, unit.number, unit.unit, unit.lease).counted
            assert (unit.number, unit.unit) not in self.recorded
            self.recorded[unit.number, unit.unit] = 9
        assert self.ledger.complete
        assert len(self.recorded) == self.ledger.units_total
        assert self.ledger.samples_done == self.work.len * self.work.passes
        assert self.ledger.audit() == []


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(stateful_step_count=60)
