"""The work ledger: every unit of every pass is computed at least once and recorded exactly once.

Theory. A pass has ``units`` units. Each of them is in exactly one of these states (``units.UNIT``
says what becomes what, and when)::

    fresh      not handed out yet: every unit from the pass's cursor on
    leased     a live lease names it
    returned   its lease ended; first in line
    done       its bit is set; final
    aside      the user's code failed at it too often: its bit is set, too, so that the pass can
               end, and it is counted as nobody's work; final

so memory is a bitmap a pass and a few words an open lease, however many units there are. A unit
whose lease ended may be computed twice; whoever completes it first is recorded, the other is told
that it was not needed. But whoever comes back before its unit was lent to another goes on under
the lease it had, unless it has given that back.

A holder may live and never finish. So a unit that is held ``work.backup`` times longer than units
usually are is lent to one more replica, when that has nothing else to do: a backup copy, as in
MapReduce. Lending goes on into the next pass while stragglers of the last still
compute, so that nobody idles; a pass is finished when its own bitmap is full.

Answers can be lost. A repeated completion of the same lease gets the answer it got the first time,
and a replica that says which leases it knows of is offered the others again.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, final

from pydownpour.coordinator.units import (
    Account,
    Failed,
    HoldTimes,
    Lease,
    Lending,
    OpenPass,
    Recorded,
    UnitState,
    audit_pass,
)
from pydownpour.errors import ConfigError, RemoteProtocolError
from pydownpour.limits import BACKUP_FACTOR, DEFAULT, UNITS_MAX, Limits
from pydownpour.wire.messages import UnitEntry, WorkEntry

FORGOTTEN = 0
"""In the place of an id: all replicas that are gone for good."""
NAMED_MAX = 3
"""Open leases a waiting replica is told of; more would not fit a line."""


@final
class Ledger:
    """Lends the units of a job's work and records their completion.

    Args:
        work: What the job declared.
        limits: How long leases live, how many a replica may hold, and how often a unit is tried.

    Raises:
        ConfigError: no samples, no passes, or more than ``UNITS_MAX`` units in a pass.
    """

    def __init__(
        self,
        work: WorkEntry,
        limits: Limits = DEFAULT,
    ) -> None:
        for field in ("len", "unit", "passes"):
            if getattr(work, field) < 1:
                raise ConfigError(f"work: {field}={getattr(work, field)} must be at least 1")
        self.units = -(-work.len // work.unit)
        """Units in one pass."""
        if self.units > UNITS_MAX:
            raise ConfigError(
                f"work: {self.units} units in a pass, the limit is {UNITS_MAX} "
                f"(UNITS_MAX); use a unit of more than {work.unit} samples"
            )
        self.work = work
        self._limits = limits
        self._open: dict[int, OpenPass] = {}
        self._next_pass = 0
        self._next_lease = 1
        self._leases: dict[int, Lease] = {}
        self._expires: dict[int, float] = {}
        self._by_unit: dict[tuple[int, int], tuple[int, ...]] = {}
        """The live leases of a unit: one, or two of which the second is the backup."""
        self._ended: dict[int, Lease] = {}
        """Leases whose units were returned and not lent since."""
        self._given_back: set[int] = set()
        """Those of them that their holders gave back: nobody goes on under them."""
        self._held = HoldTimes(limits)
        self._by_replica: dict[int, dict[int, None]] = {}
        self._answers: dict[int, OrderedDict[int, bool]] = {}
        self._accounts: dict[int, Account] = {}
        self._finished: list[int] = []
        self.units_done = 0
        self.samples_done = 0
        self.units_aside = self.samples_aside = 0
        """Set aside: in nobody's account."""
        self.leases_ended = 0
        """Leases that ended without a completion, in all."""
        self.attempts_max = 0
        """How often the unit that was lent most often was lent."""
        self.backups = 0
        """Backup copies lent."""

    # -- lending ---------------------------------------------------------------------------------

    def lease(
        self,
        replica: int,
        incarnation: int,
        count: int,
        now: float,
        *,
        held: Iterable[int] | None = None,
    ) -> Lending:
        """Lend up to ``count`` units, the oldest first; those whose answer was lost before all."""
        self.renew(replica, incarnation, now)
        self._revive(replica, incarnation, held or (), now)
        count = min(max(count, 0), self._limits.leases_asked_max)
        units = self._offered_again(replica, held)[:count]
        room = self._limits.leases_per_replica_max - len(self._by_replica.get(replica, {}))
        backups: list[Lease] = []
        for _ in range(min(count - len(units), room)):
            lease = self._next_for(replica, incarnation, now)
            if lease is None:
                break
            units.append(self._entry(lease))
            if lease.is_backup:
                backups.append(lease)
        if units:
            return Lending(tuple(units), tuple(backups))
        if self.complete:
            return Lending(done=True, reason=f"all {self.work.passes} passes are complete")
        if room <= 0:
            return Lending(
                reason=f"replica {replica} holds {self._limits.leases_per_replica_max} units, the "
                "limit (leases_per_replica_max); complete one first"
            )
        return Lending(reason=self._why_nothing(replica, now))

    def _offered_again(self, replica: int, held: Iterable[int] | None) -> list[UnitEntry]:
        if held is None:
            return []
        known = set(held)
        return [
            self._entry(self._leases[lease])
            for lease in self._by_replica.get(replica, {})
            if lease not in known
        ]

    def _revive(self, replica: int, incarnation: int, held: Iterable[int], now: float) -> None:
        """It still works on these: where nobody else was lent the unit, its lease goes on."""
        for lease_id in held:
            ended = self._ended.get(lease_id)
            if ended is None or (ended.replica, ended.incarnation) != (replica, incarnation):
                continue
            if lease_id in self._given_back:
                continue  # it asked before it gave it back, and was heard only now
            self._take_back(ended)
            self._insert(ended, now)
            self.account(replica).returned -= 1
            self.leases_ended -= 1

    def _next_for(self, replica: int, incarnation: int, now: float) -> Lease | None:
        """Lend what comes next: of a pass that is open, a backup copy, of the next pass."""
        place = self._take()
        before = None
        if place is None and (before := self._overdue_for(replica, now)) is not None:
            place = before.pass_index, before.unit, before.attempt
            self.backups += 1
        if place is None:
            place = self._begin_pass()
        if place is None:
            return None
        pass_index, unit, attempts = place
        lease = Lease(
            self._next_lease, replica, incarnation, pass_index, unit, attempts + 1, now,
            is_backup=before is not None,
        )  # fmt: skip
        self._next_lease += 1
        self._insert(lease, now)
        return lease

    def _take(self) -> tuple[int, int, int] | None:
        """(pass, unit, attempts before) of the next unit of an open pass, or None."""
        for open_pass in self._open.values():
            if open_pass.returned:
                ended = next(iter(open_pass.returned.values()))
                self._take_back(ended)
                return ended.pass_index, ended.unit, ended.attempt
            if (fresh := open_pass.cursor) < self.units:
                open_pass.become(fresh, "leased")
                return open_pass.pass_index, fresh, 0
        return None

    def _begin_pass(self) -> tuple[int, int, int] | None:
        """The first unit of the next pass, if one may be begun."""
        if self._next_pass >= self.work.passes or len(self._open) >= self._limits.passes_open_max:
            return None
        begun = OpenPass(self._next_pass, self.units)
        self._open[begun.pass_index] = begun
        self._next_pass += 1
        begun.become(0, "leased")
        return begun.pass_index, 0, 0

    def _take_back(self, ended: Lease) -> None:
        """A returned unit is lent again."""
        self._open[ended.pass_index].become(ended.unit, "leased")
        self._over(ended)

    def _over(self, ended: Lease) -> None:
        """Nobody can go on under it any more."""
        del self._ended[ended.lease]
        self._given_back.discard(ended.lease)

    def _overdue_for(self, replica: int, now: float) -> Lease | None:
        """The unit held longest of those that this replica may have a backup copy of."""
        if not self.work.backup:
            return None
        patience_s = self._held.patience_s(self.work.backup, self._limits.backup_blind_s)
        for lease in self._held_for(patience_s, now):
            holders = self._by_unit[lease.pass_index, lease.unit]
            if lease.replica != replica and len(holders) == 1:
                return lease
        return None

    def _held_for(self, seconds: float, now: float) -> Iterator[Lease]:
        """Leases at least so old, the oldest first."""
        for lease in self._leases.values():
            if now - lease.since < seconds:
                return
            yield lease

    def _insert(self, lease: Lease, now: float) -> None:
        self.attempts_max = max(self.attempts_max, lease.attempt)
        self._leases[lease.lease] = lease
        self._expires[lease.lease] = now + self._limits.lease_s
        place = lease.pass_index, lease.unit
        self._by_unit[place] = (*self._by_unit.get(place, ()), lease.lease)
        self._by_replica.setdefault(lease.replica, {})[lease.lease] = None

    def _entry(self, lease: Lease) -> UnitEntry:
        start, stop = self.bounds(lease.unit)
        return UnitEntry(
            pass_index=lease.pass_index, unit=lease.unit, start=start, stop=stop, lease=lease.lease
        )

    def _why_nothing(self, replica: int, now: float) -> str:
        others = len(self._leases) - len(self._by_replica.get(replica, {}))
        oldest = islice((x for x in self._leases.values() if x.replica != replica), NAMED_MAX)
        named = ", ".join(_where(lease, now) for lease in oldest)
        more = f" and {others - NAMED_MAX} more" if others > NAMED_MAX else ""
        if not others:
            return f"only replica {replica}'s own {len(self._leases)} units are left"
        return f"nothing left to lend; waiting for {named}{more}"

    def overdue(self, now: float) -> str:
        """Who holds what for too long, in words; "" if nobody does."""
        factor = self.work.backup or BACKUP_FACTOR
        patience_s = self._held.patience_s(factor, self._limits.quiet_s)
        late = [lease for lease in self._held_for(patience_s, now) if not lease.is_backup]
        if not late:
            return ""
        named = ", ".join(self._held_words(lease, now) for lease in late[:NAMED_MAX])
        more = f" and {len(late) - NAMED_MAX} more" if len(late) > NAMED_MAX else ""
        typical = self._held.typical
        usually = "few were completed yet" if typical is None else f"usual is {typical:.1f} s"
        return f"held long: {named}{more}; {usually}"

    def _held_words(self, lease: Lease, now: float) -> str:
        others = [x for x in self._by_unit[lease.pass_index, lease.unit] if x != lease.lease]
        lent = [f" (lent to replica {self._leases[x].replica}, too)" for x in others]
        return _where(lease, now) + "".join(lent)

    def bounds(self, unit: int) -> tuple[int, int]:
        """The places [start, stop) of the pass's order that a unit covers."""
        return unit * self.work.unit, min((unit + 1) * self.work.unit, self.work.len)

    # -- leases end ------------------------------------------------------------------------------

    def renew(self, replica: int, incarnation: int, now: float) -> None:
        """A sign of life: the holder's leases live on."""
        for lease in self._by_replica.get(replica, {}):
            if self._leases[lease].incarnation == incarnation:
                self._expires[lease] = now + self._limits.lease_s

    def extend(self, gap: float, now: float) -> None:
        """The coordinator itself stood still for ``gap`` seconds: no lease pays for it."""
        for lease, end in self._expires.items():
            self._expires[lease] = min(end + gap, now + self._limits.lease_s)

    def expire(self, now: float) -> list[Lease]:
        """Return the units of all leases whose time is over."""
        over = [lease for lease, end in self._expires.items() if end <= now]
        return [self._return(lease) for lease in over]

    def release(self, replica: int, *, below: int | None = None) -> list[Lease]:
        """Return the units a replica holds: it left, died, or a newer incarnation took over.

        Args:
            replica: Whose.
            below: Only leases of incarnations below this one. None: all.
        """
        over = [
            lease
            for lease in self._by_replica.get(replica, {})
            if below is None or self._leases[lease].incarnation < below
        ]
        return [self._return(lease) for lease in over]

    def give_back(self, replica: int, lease_id: int) -> Lease | None:
        """Some gradients of this lease may have been applied, not all: it ends, for good.

        The unit is lent again by another lease, as that of a replica that died is: so the books say
        that it was computed twice.

        Returns:
            None if the replica does not hold it by that lease: then it counts for nothing.
        """
        held = self._leases.get(lease_id) or self._ended.get(lease_id)
        if held is None or held.replica != replica:
            return None
        ended = self._return(lease_id) if lease_id in self._leases else None
        self._given_back.update(self._ended.keys() & {lease_id})
        return ended

    def _return(self, lease_id: int) -> Lease:
        lease = self._remove(lease_id)
        if (lease.pass_index, lease.unit) not in self._by_unit:
            self._open[lease.pass_index].become(lease.unit, "returned", ended=lease)
            self._ended[lease_id] = lease
        self.account(lease.replica).returned += 1
        self.leases_ended += 1
        return lease

    def _remove(self, lease_id: int) -> Lease:
        lease = self._leases.pop(lease_id)
        del self._expires[lease_id]
        place = lease.pass_index, lease.unit
        others = tuple(live for live in self._by_unit.pop(place) if live != lease_id)
        if others:
            self._by_unit[place] = others
        mine = self._by_replica[lease.replica]
        del mine[lease_id]
        if not mine:
            del self._by_replica[lease.replica]
        return lease

    # -- completion ------------------------------------------------------------------------------

    def record(
        self, replica: int, pass_index: int, unit: int, lease_id: int, now: float
    ) -> Recorded:
        """Record a finished unit, exactly once.

        A lease that ended still counts while its unit is open; then whoever else holds the unit
        computes it in vain.

        Raises:
            RemoteProtocolError: no such unit, or the lease was never given for it.
        """
        answers = self._answers.get(replica)
        repeated = answers.get(lease_id) if answers is not None else None
        if repeated is not None:
            return Recorded(repeated, repeated=True, reason="answered before")
        self._check(replica, pass_index, unit, lease_id)
        open_pass = self._open.get(pass_index)
        account = self.account(replica)
        if open_pass is None or open_pass.is_done(unit):
            account.refused += 1
            self._remember(replica, lease_id, counted=False)
            aside = open_pass is not None and unit in open_pass.aside
            return Recorded(
                False,
                reason=f"unit {unit} of pass {pass_index + 1} was "
                + ("set aside before" if aside else "completed by another before"),
            )
        lease = self._leases.get(lease_id) or self._ended.get(lease_id)
        if lease is not None:
            self._held.note(now - lease.since)
        live = self._settle(open_pass, unit, "done")
        start, stop = self.bounds(unit)
        account.units += 1
        account.samples += stop - start
        self.units_done += 1
        self.samples_done += stop - start
        self._remember(replica, lease_id, counted=True)
        reason = "" if lease_id in live else "late, but the unit was still open"
        return Recorded(True, finished=self._finished_by(open_pass), reason=reason)

    def _finished_by(self, open_pass: OpenPass) -> int | None:
        """The index of the pass if its last unit has just been done or set aside."""
        if open_pass.done_count < self.units:
            return None
        del self._open[open_pass.pass_index]
        self._finished.append(open_pass.pass_index)
        return open_pass.pass_index

    def fail(self, replica: int, pass_index: int, unit: int, lease_id: int) -> Failed | None:
        """A try at a unit failed: it is lent again, or set aside after the last time.

        Returns:
            None if the replica does not hold it by that lease: then it counts for nothing.
        """
        lease = self._leases.get(lease_id)
        if lease is None or (lease.replica, lease.pass_index, lease.unit) != (
            replica,
            pass_index,
            unit,
        ):
            return None
        self._return(lease_id)
        self._given_back.update(self._ended.keys() & {lease_id})
        open_pass = self._open[pass_index]
        times = open_pass.failures[unit] = open_pass.failures.get(unit, 0) + 1
        if times < self._limits.unit_failures_max:
            return Failed(times)
        self._settle(open_pass, unit, "aside")
        start, stop = self.bounds(unit)
        self.units_aside += 1
        self.samples_aside += stop - start
        return Failed(times, aside=True, finished=self._finished_by(open_pass))

    def _settle(self, open_pass: OpenPass, unit: int, state: UnitState) -> tuple[int, ...]:
        """Nobody gets this unit any more; returns the live leases it had."""
        live = self._by_unit.get((open_pass.pass_index, unit), ())
        for lease in live:
            self._remove(lease)
        if (ended := open_pass.returned.get(unit)) is not None:
            self._over(ended)
        open_pass.become(unit, state)
        return live

    def _check(self, replica: int, pass_index: int, unit: int, lease_id: int) -> None:
        what = f"replica {replica} completed unit {unit} of pass {pass_index} by lease {lease_id}"
        if not (0 <= pass_index < self._next_pass and 0 <= unit < self.units):
            raise RemoteProtocolError(f"{what}: no such unit was lent")
        open_pass = self._open.get(pass_index)
        if not 0 < lease_id < self._next_lease or (
            open_pass is not None and unit >= open_pass.cursor
        ):
            raise RemoteProtocolError(f"{what}: that lease was never given")
        lease = self._leases.get(lease_id)
        if lease is not None and (lease.replica, lease.pass_index, lease.unit) != (
            replica,
            pass_index,
            unit,
        ):
            raise RemoteProtocolError(
                f"{what}: that lease is replica {lease.replica}'s for unit {lease.unit} of "
                f"pass {lease.pass_index}"
            )

    def _remember(self, replica: int, lease_id: int, *, counted: bool) -> None:
        answers = self._answers.setdefault(replica, OrderedDict())
        answers[lease_id] = counted
        if len(answers) > self._limits.completions_max:
            answers.popitem(last=False)

    # -- questions -------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Every unit of every pass is done."""
        return len(self._finished) == self.work.passes

    @property
    def passes_finished(self) -> int:
        """How many passes are complete."""
        return len(self._finished)

    @property
    def pass_index(self) -> int:
        """The oldest pass that is not finished (the last one when all are)."""
        return next(iter(self._open), min(self._next_pass, self.work.passes - 1))

    @property
    def units_total(self) -> int:
        """Units of all passes together."""
        return self.units * self.work.passes

    @property
    def samples_total(self) -> int:
        """Samples over all passes."""
        return self.work.len * self.work.passes

    @property
    def open_leases(self) -> tuple[Lease, ...]:
        """All live leases, oldest first."""
        return tuple(self._leases.values())

    def account(self, replica: int) -> Account:
        """What a replica did, over all its incarnations; zeros for one that did nothing."""
        return self._accounts.setdefault(replica, Account())

    def forget(self, replica: int) -> None:
        """A replica is gone for good: what it did is kept in the sum of those."""
        self.release(replica)
        self._answers.pop(replica, None)
        self.account(FORGOTTEN).add(self._accounts.pop(replica, Account()))

    def audit(self) -> list[str]:
        """Everything that is not as it must be, in words; empty when the books balance."""
        wrong: list[str] = []
        counted = len(self._finished) * self.units
        samples = len(self._finished) * self.work.len
        if len(set(self._finished)) != len(self._finished):
            wrong.append(f"a pass was finished twice: {self._finished}")
        for open_pass in self._open.values():
            leased = {
                unit for pass_index, unit in self._by_unit if pass_index == open_pass.pass_index
            }
            done = open_pass.all_done(self.units)
            counted += int(done.sum())
            samples += int(done.sum()) * self.work.unit
            if done[-1]:
                samples -= self.units * self.work.unit - self.work.len  # the last may be shorter
            wrong += audit_pass(open_pass, leased, self.units)
        for name, theirs, ours in (
            ("units", sum(a.units for a in self._accounts.values()), self.units_done),
            ("samples", sum(a.samples for a in self._accounts.values()), self.samples_done),
            ("units in bitmaps", counted, self.units_done + self.units_aside),
            ("samples in bitmaps", samples, self.samples_done + self.samples_aside),
        ):
            if theirs != ours:
                wrong.append(f"{name}: {theirs} by one count, {ours} by another")
        if self.complete and (self._open or self._leases):
            wrong.append(f"complete, but {len(self._leases)} leases are open")
        return wrong

    # -- state that must survive -----------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """Everything a successor needs, as plain JSON values."""
        return {
            "next_pass": self._next_pass,
            "next_lease": self._next_lease,
            "finished": list(self._finished),
            "open": [
                {
                    "pass_index": p.pass_index,
                    "cursor": p.cursor,
                    "done": base64.b64encode(p.done).decode(),
                    "returned": [_lease_out(x) for x in p.returned.values()],
                    "failures": [[unit, times] for unit, times in p.failures.items()],
                    "aside": sorted(p.aside),
                }
                for p in self._open.values()
            ],
            "leases": [_lease_out(x) for x in self._leases.values()],
            "given_back": sorted(self._given_back),
            "answers": [
                [replica, [[lease, counted] for lease, counted in answers.items()]]
                for replica, answers in self._answers.items()
            ],
            "accounts": [[r, *dataclasses.astuple(a)] for r, a in self._accounts.items()],
            "aside": [self.units_aside, self.samples_aside],
            "leases_ended": self.leases_ended,
            "attempts_max": self.attempts_max,
            "backups": self.backups,
        }

    def restore(self, state: Mapping[str, Any], now: float) -> None:
        """Become what ``export`` described; every open lease gets a whole new term."""
        self._next_pass = state["next_pass"]
        self._next_lease = state["next_lease"]
        self._finished = list(state["finished"])
        for field in (self._open, self._leases, self._expires, self._by_unit, self._by_replica):
            field.clear()
        self._ended.clear()
        for entry in state["open"]:
            restored = OpenPass(entry["pass_index"], self.units)
            restored.cursor = entry["cursor"]
            restored.done = bytearray(base64.b64decode(entry["done"]))
            restored.done_count = sum(byte.bit_count() for byte in restored.done)
            for out in entry["returned"]:
                ended = _lease_in(out, now)
                restored.returned[ended.unit] = self._ended[ended.lease] = ended
            restored.failures = {unit: times for unit, times in entry["failures"]}
            restored.aside = set(entry["aside"])
            self._open[restored.pass_index] = restored
        self._given_back = set(state["given_back"])
        self.attempts_max = state["attempts_max"]
        self.backups = state["backups"]
        for out in state["leases"]:
            self._insert(_lease_in(out, now), now)
        self._answers = {
            replica: OrderedDict((lease, counted) for lease, counted in answers)
            for replica, answers in state["answers"]
        }
        self._accounts = {replica: Account(*values) for replica, *values in state["accounts"]}
        self.units_done = sum(a.units for a in self._accounts.values())
        self.samples_done = sum(a.samples for a in self._accounts.values())
        self.units_aside, self.samples_aside = state["aside"]
        self.leases_ended = state["leases_ended"]


def _where(lease: Lease, now: float) -> str:
    return (
        f"unit {lease.unit} of pass {lease.pass_index + 1} at replica {lease.replica} "
        f"for {now - lease.since:.1f} s"
    )


def _lease_out(lease: Lease) -> list[Any]:
    """A lease as JSON; since when it is held is of this process's clock."""
    return [value for field, value in dataclasses.asdict(lease).items() if field != "since"]


def _lease_in(values: list[Any], now: float) -> Lease:
    lease, replica, incarnation, pass_index, unit, attempt, is_backup = values
    return Lease(lease, replica, incarnation, pass_index, unit, attempt, now, is_backup)
