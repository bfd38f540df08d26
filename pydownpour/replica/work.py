"""Leased work units: taken one ahead, completed when their gradients are applied.

A unit is *finished* when the loop asks for the next one. It is *completed* in the ledger only
when, besides, every gradient of it is in a push that every shard has applied: the ledger never
counts work whose gradients are still accrued here, on their way, or refused. A push that a policy
schedules for later may hold the gradients of many units, so a replica holds those until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any, Final, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from pydownpour import config, limits
from pydownpour.fields import clip
from pydownpour.replica.coordination import Coordination
from pydownpour.replica.outbox import Outbox
from pydownpour.sampling import samples_at
from pydownpour.wire.messages import Completion, UnitEntry, UnitFailure, WorkEntry

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFETCH_UNIT_S: Final = 1.0
"""Units quicker than this are leased one ahead; slower ones would be missed by idle replicas."""


@final
class Unit:
    """One leased piece of a pass: the samples a replica works through next.

    Attributes:
        pass_index: The pass, from 0.
        unit: Its number within the pass.
        start, stop: Its places in the pass's order.
        indices: The samples, int64: a slice of the pass's order, shuffled or consecutive.
    """

    def __init__(self, entry: UnitEntry, work: WorkEntry) -> None:
        self.pass_index, self.unit = entry.pass_index, entry.unit
        self.start, self.stop = entry.start, entry.stop
        self.lease = entry.lease
        self.indices: NDArray[np.int64] = samples_at(
            work.len, work.shuffle, work.seed, entry.pass_index, entry.start, entry.stop
        )
        self.batch_len = len(self.indices)
        """Samples of the batch last given out."""
        self.failure = ""
        """Why one of its gradients was dropped."""
        self.last_push = 0
        """The push that carries its newest gradient. 0: it has given none."""
        self.losses = 0
        self.loss: float | None = None
        """Mean of the finite losses reported while it was worked on."""

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Unit(pass_index={self.pass_index}, unit={self.unit}, len={len(self)})"

    def batches(self, size: int) -> Iterator[NDArray[np.int64]]:
        """Index arrays of ``size`` samples, the last one shorter."""
        size = config.whole("batches(): size", size, least=1)
        for start in range(0, len(self.indices), size):
            batch = self.indices[start : start + size]
            self.batch_len = len(batch)
            yield batch

    def note_loss(self, loss: float) -> None:
        """Add a finite loss to the mean that the unit's completion reports."""
        self.losses += 1
        if self.loss is None:
            self.loss = loss
        else:
            # Finite losses have a finite mean, though their sum or difference may not be.
            self.loss = self.loss * ((self.losses - 1) / self.losses) + loss / self.losses


class Spawn(Protocol):
    """Runs something beside the rest; see :meth:`pydownpour.replica.session.Session.spawn`."""

    def __call__(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T | None]:
        """Its result is None if it failed."""


@final
class Leases:
    """The units of one replica, on the session's loop.

    Args:
        coordination: Where units come from and are reported.
        outbox: Says which pushes are applied.
        spawn: Starts requests that nobody waits for yet.
    """

    def __init__(self, coordination: Coordination, outbox: Outbox, spawn: Spawn) -> None:
        self._coordination, self._outbox, self._spawn = coordination, outbox, spawn
        self._standing, self._limits = coordination.standing, coordination.limits
        self._wait_s = coordination.limits.heartbeat_s
        self._ahead: asyncio.Task[UnitEntry | None] | None = None
        self._finished: deque[tuple[int, Completion, str]] = deque()
        """(push with its last gradient, what to report once that is applied, why it cannot be),
        oldest first."""
        self._reporting: asyncio.Task[None] | None = None
        self._telling = asyncio.Lock()
        self._told: list[Completion] = []
        """Those whose report is under way."""
        self.completed = 0
        """Units whose completion the ledger has answered."""
        self._held: set[int] = set()
        """Leases we were given and whose completion is not answered."""
        self.reason = ""
        """Why there is no unit just now, in the coordinator's words."""
        self.waited = False
        """The unit last given out had to be waited for; meanwhile others went on training."""

    def finish(self, push_index: int, completion: Completion, failure: str) -> None:
        """Report a unit once push ``push_index`` and those before it are applied.

        It is given back if a gradient of it was dropped (``failure`` says so) or refused.
        """
        self._finished.append((push_index, completion, failure))
        if self._reporting is None or self._reporting.done():
            self._reporting = self._spawn(self._report(), "completions")

    async def next(self, *, accrued: bool, ahead: bool) -> UnitEntry | str | None:
        """The next unit; None when the work is done; "flush" to ask for what is accrued.

        Args:
            accrued: The user's side holds gradients that no push carries yet. While nothing can
                be leased they are what the job may be waiting for.
            ahead: Lease the unit after it already.
        """
        while True:
            if self._standing.job_state == "done":
                return None
            if self._is_full:
                if accrued:
                    return "flush"
                await self.settle()
            task, self._ahead = self._ahead, None
            entry = await task if task is not None else await self._lease()
            self._standing.check()
            if entry is not None:
                if ahead and not self._is_full:
                    self._ahead = self._spawn(self._lease(), "lease")
                return entry
            if self._done():
                return None
            if accrued:
                return "flush"
            self.waited = True
            await self._standing.sleep(self._wait_s)
            self._standing.check()

    async def settle(self) -> None:
        """Wait until every finished unit is reported."""
        if self._reporting is not None:
            await self._reporting
            self._standing.check()

    @property
    def unanswered(self) -> list[Completion]:
        """Finished units whose gradients are applied, and whose report has no answer yet."""
        units = list(self._told)
        for push_index, unit, words in self._finished:
            if not self._outbox.is_settled(push_index):
                break
            if not words and unit.lease not in self._outbox.not_applied:
                units.append(unit)
        return units[: limits.LEASES_TOLD_MAX]

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._limits.leases_per_replica_max

    def _done(self) -> bool:
        return self._ended or self._standing.job_state == "done"

    _ended = False

    async def _lease(self) -> UnitEntry | None:
        await self._tell()  # or a unit that is done could be lent again, to us or to another
        answer = await self._coordination.lease(1, sorted(self._held))
        self.reason = answer.reason
        self._ended = answer.done
        self._wait_s = min(max(answer.wait_s, self._limits.backoff_min_s), self._limits.heartbeat_s)
        if not answer.units:
            return None
        self._held.add(answer.units[0].lease)
        return answer.units[0]

    async def _report(self) -> None:
        while self._finished:
            await self._outbox.all_settled(self._finished[0][0])
            await self._tell()

    async def _tell(self) -> None:
        """Report what is applied; returns once that, and what is being reported, is answered."""
        async with self._telling:
            applied, failures, in_doubt = self._settled()
            if not applied and not failures and not in_doubt:
                return
            self._told = applied
            answer = await self._coordination.complete(applied, failures, in_doubt)
            self._told = []
            self._held.difference_update(unit.lease for unit in applied)
            self.completed += len(applied)
            for unit, counted in zip(applied, answer.counted, strict=True):
                if not counted:
                    log.info(
                        "unit %d of pass %d did not count: another had completed it",
                        unit.unit, unit.pass_index + 1,
                    )  # fmt: skip

    def _settled(self) -> tuple[list[Completion], list[UnitFailure], list[int]]:
        """The next finished units whose pushes are settled: applied, and those to give back."""
        applied: list[Completion] = []
        failures: list[UnitFailure] = []
        in_doubt: list[int] = []
        for _ in range(min(len(self._finished), self._limits.completions_max)):
            push_index, unit, words = self._finished[0]
            if not self._outbox.is_settled(push_index):
                break
            self._finished.popleft()
            refused = self._outbox.not_applied.pop(unit.lease, None)
            if refused is None and not words:
                applied.append(unit)
                continue
            # Not held any more: it is offered again, and by another lease, also where nobody is to
            # blame: some of it may have been applied, and by one lease that is once at most.
            self._held.discard(unit.lease)
            words = words or refused or ""
            if not words:
                in_doubt.append(unit.lease)
                log.info(
                    "unit %d of pass %d is given back, to be lent again under another lease: not "
                    "all of it is surely applied, and nobody is to blame",
                    unit.unit, unit.pass_index + 1,
                )  # fmt: skip
            else:
                failures.append(
                    UnitFailure(
                        pass_index=unit.pass_index,
                        unit=unit.unit,
                        lease=unit.lease,
                        words=clip(words),
                    )
                )
        return applied, failures, in_doubt
