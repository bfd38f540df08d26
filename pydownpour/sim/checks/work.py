"""Checks of the whole job: pushes, work units, errors, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from pydownpour.coordinator.job_state import JobState
from pydownpour.coordinator.membership import Membership
from pydownpour.coordinator.report import audit_report
from pydownpour.coordinator.service import CoordinatorService
from pydownpour.errors import DownpourError
from pydownpour.replica.pushes import Push
from pydownpour.sim.checks.base import Check, Watched
from pydownpour.sim.checks.oracle import Life, read
from pydownpour.storage import safetensors
from pydownpour.storage.rundir import PARAMETERS
from pydownpour.wire.messages import Complete, CompleteAnswer, LeaseAnswer, LeaseRequest


@final
class ParametersCountPushes(Check):
    """The index oracle, where the job is the oracle's."""

    name = "parameters count the pushes"
    is_cheap = False

    def pushed(self, life: Life, push: Push) -> None:
        if self.watched.oracle is not None:
            self.watched.oracle.pushed(life, push, push.portions)

    def look(self) -> Iterator[str]:
        """Compare each shard with the books."""
        oracle = self.watched.oracle
        if oracle is not None:
            for shard in self.shards():
                yield from oracle.compare(shard)
            yield from oracle.wrong


@final
class UnitsCountOnce(Check):
    """A completion counts once, for the incarnation that lives, behind its settled pushes."""

    name = "a unit counts once"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._pushes: dict[int, list[Push]] = {}
        """Lease -> pushes made while its unit was worked on."""
        self._members: Membership
        self._counted: dict[tuple[int, int], int] = {}
        self._wrong: list[str] = []

    def pushed(self, life: Life, push: Push) -> None:
        """Remember for which unit it was made."""
        unit = life.trainer.unit
        if unit is not None:
            self._pushes.setdefault(unit.lease, []).append(push)

    def coordinator_made(self, service: CoordinatorService) -> None:
        """Whose members they are."""
        self._members = service.job.members

    def completed(self, message: Complete, answer: CompleteAnswer) -> None:
        """Compare with what was counted before, and with the pushes that are open."""
        who = f"replica {message.replica}.{message.incarnation}"
        member = self._members.get(message.replica)
        newest = member.incarnation if member is not None else 0
        if message.incarnation != newest:
            self._wrong.append(f"{who} completed units, but incarnation {newest} lives")
        for unit, counted in zip(message.units, answer.counted, strict=True):
            what = f"unit {unit.unit} of pass {unit.pass_index + 1}"
            first = self._counted.get((unit.pass_index, unit.unit))
            if counted and first not in (None, unit.lease):
                self._wrong.append(f"{what} was counted for leases {first} and {unit.lease}")
            if counted:
                self._counted[unit.pass_index, unit.unit] = unit.lease
            still_open = [p for p in self._pushes.pop(unit.lease, ()) if p.open_portions]
            if still_open:
                self._wrong.append(
                    f"{who} completed {what} before the answer to its push {still_open[0].index}"
                )

    def look(self) -> Iterator[str]:
        yield from self._wrong

    def end(self) -> Iterator[str]:
        """Every unit was counted."""
        report = self.world.report
        if report.get("state") == "done" and report.get("work"):
            total = report["work"]["units_total"] - report["work"]["units_aside"]
            if not len(self._counted) == report["units"] == total:
                yield f"{len(self._counted)} units counted, {report['units']} reported, of {total}"


@final
class SamplesCount(Check):
    """The sample oracle, where the job is its."""

    name = "recorded samples are applied"

    def pushed(self, life: Life, push: Push) -> None:
        if self.watched.samples is not None:
            self.watched.samples.pushed(life, push)

    def leased(self, message: LeaseRequest, answer: LeaseAnswer) -> None:
        if self.watched.samples is not None:
            self.watched.samples.leased(answer)

    def completed(self, message: Complete, answer: CompleteAnswer) -> None:
        if self.watched.samples is not None:
            self.watched.samples.completed(message, answer)

    def look(self) -> Iterator[str]:
        """Compare each shard with the books."""
        if self.watched.samples is not None:
            for shard in self.shards():
                yield from self.watched.samples.compare(read(shard), shard.assigned.start)

    def end(self) -> Iterator[str]:
        """Compare the final parameters, as they were written."""
        oracle, disk = self.watched.samples, self.world.network.hosts["coordinator"].disk
        if oracle is None or disk is None:
            return
        files = {path.rpartition("/")[2]: content for path, content in disk.files().items()}
        if PARAMETERS in files:
            _, tensors = safetensors.decode(files[PARAMETERS])
            for words in oracle.compare(tensors["counts"].values, 0):
                yield f"final parameters: {words}"


@final
class LedgerBalances(Check):
    """The coordinator's books: units in one place each, counts and incarnations that only grow."""

    name = "the ledger balances"
    is_cheap = False

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._job: JobState | None = None
        self._done = (0, 0)
        self._members: dict[int, int] = {}

    def coordinator_made(self, service: CoordinatorService) -> None:
        """Its job is looked into."""
        self._job = service.job

    def look(self) -> Iterator[str]:
        job = self._job
        if job is None:
            return
        if job.ledger is not None:
            yield from job.ledger.audit()
            done = (job.ledger.units_done, job.ledger.samples_done)
            if done < self._done:
                yield f"(units, samples) done: {done} after {self._done}"
            self._done = done
        for member in job.members:
            if member.incarnation < self._members.get(member.id, 0):
                yield f"replica {member.id} is incarnation {member.incarnation} again"
            self._members[member.id] = member.incarnation

    def end(self) -> Iterator[str]:
        """The report agrees with itself."""
        if self.world.report:
            yield from audit_report(self.world.report)


@final
class NothingEscapes(Check):
    """No error that nobody foresaw, neither caught by the loop nor by a service."""

    name = "no error escapes"

    def look(self) -> Iterator[str]:
        """The loop's and the log's."""
        yield from self.world.loop.errors
        yield from self.watched.logged


@final
class EndInWords(Check):
    """The job is done; under a plan it cannot survive it ends as failed, in words, and soon."""

    name = "the job ends well"

    def end(self) -> Iterator[str]:
        world = self.world
        if not world.settings.faults.is_doom:
            if world.failure:
                yield world.failure
        elif "not done" in world.failure or not (world.failure or world.report):
            yield f"a shard or the coordinator died and nobody said so: {world.failure}"
        elif any(issubclass(kind, Exception) for kind in _unforeseen(world.ends)):
            yield f"processes ended by {world.ends}"


def _unforeseen(ends: list[BaseException]) -> list[type[BaseException]]:
    return [type(error) for error in ends if not isinstance(error, DownpourError)]
