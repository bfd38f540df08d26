"""A shard's rule at work: it is told what happens here, asked what is due, and obeyed.

The rule decides; this knows the replicas that the coordinator calls live, the clocks that
announcements named, who waits for the round to move, and how a round is closed: fragment by
fragment, each sum as one update, as many in a turn of the loop as its budget allows (``turns``);
heartbeats and fetches go on meanwhile, and no push is taken. Whoever waits is woken when anything
has changed that a rule may look at, in the loop's next turn, and asks again; nobody asks in
between.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, final

from pydownpour import _core
from pydownpour.errors import ConfigError, LimitExceeded, NonFiniteGradient
from pydownpour.policy import (
    Accumulate,
    ClusterView,
    Decision,
    NotYet,
    PushInfo,
    Refuse,
    UsersPolicies,
    Wait,
)
from pydownpour.shard.switching import Ruling
from pydownpour.shard.turns import Share, Turns
from pydownpour.waits import Waits
from pydownpour.wire.frames import View
from pydownpour.wire.messages import LiveIds, PolicyEntry

log = logging.getLogger(__name__)

Event: TypeAlias = Literal["taken", "arrived", "closing", "switching", "switched"]


@final
class Clocks:
    """Who is live, how many steps each has finished, the fewest of them and the most.

    A clock only grows, and so does the least one. Who has told none is not waited for; who begins,
    or takes part again, begins at the least clock: nobody waits for steps it was not here for.

    Asked at every push, so that each answer stands ready until something changes it.
    """

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        """Steps by live replica that has told any."""
        self._ids: list[int] = []
        self._members: set[int] = set()
        """The same ids."""
        self.live: tuple[int, ...] = ()
        """Ids of who is waited for, ascending."""
        self._holders: dict[int, int] = {}
        """How many live replicas have each clock: few clocks, however many replicas."""
        self.least = 0
        """The fewest steps of a live replica; while none has told any, as it was before."""
        self.most = 0
        """The most steps of a live replica; while none has told any, the least clock."""
        self.spread_max = 0
        """The largest difference there was, whenever somebody got ahead of all others."""

    def reached(self, replica: int, clock: int) -> bool:
        """A replica's pushes of so many steps have all their answers; True if its clock moved."""
        before = self.of.get(replica)
        if replica not in self._members or (before is not None and clock <= before):
            return False
        if clock < self.least:
            clock = self.least
        self.of[replica] = clock
        self._holders[clock] = self._holders.get(clock, 0) + 1
        if before is not None:
            self._drop(before)
        if before is None or (before == self.least and before not in self._holders):
            self.least = min(self._holders)
        if clock > self.most:
            self.most = clock
            self.spread_max = max(self.spread_max, clock - self.least)
        return True

    def begins(self, replica: int) -> None:
        """Another life of a replica: it begins at the least clock of the others."""
        before = self.of.pop(replica, None)
        if before is not None:
            self._drop(before)
            self._counted_anew()

    def joined(self, replica: int) -> None:
        """It is live from now on."""
        bisect.insort(self._ids, replica)
        self._members.add(replica)
        self.live = tuple(self._ids)

    def heard(self, live: Iterable[int]) -> None:
        """These are live, ascending, and nobody else: the others have no clock any more."""
        self._ids = list(live)
        self._members = set(self._ids)
        self.live = tuple(self._ids)
        for gone in self.of.keys() - self._members:
            del self.of[gone]
        self._holders = dict(Counter(self.of.values()))
        self._counted_anew()

    def load(self, least: int, of: Iterable[tuple[int, int]]) -> None:
        """As another process knew them; who is live is heard by and by."""
        self.least, self.of = least, dict(of)
        self._holders = dict(Counter(self.of.values()))
        self.most = max(self._holders, default=least)

    def behind(self, clock: int) -> tuple[int, ...]:
        """Live replicas that have told fewer steps."""
        if clock <= self.least:
            return ()  # nearly always: most fetches wait for nobody
        return tuple(one for one in self._ids if self.of.get(one, clock) < clock)

    def _drop(self, clock: int) -> None:
        self._holders[clock] -= 1
        if not self._holders[clock]:
            del self._holders[clock]

    def _counted_anew(self) -> None:
        self.least = max(self.least, min(self._holders, default=0))
        self.most = max(self._holders, default=self.least)


@final
class Rounds:
    """One shard's rule, what it is told, and those who wait for what it says.

    Args:
        rule: The policy's.
        store: Where rounds are closed.
        turns: What may be done in one turn of the loop.
        users: Gives the classes that the job declares, for newer versions.

    Attributes:
        policy: By whose rule it goes.
        epoch: Of the newest shard map that was heard of.
        live_version: Of the ``LiveIds`` heard last; 0 before the first.
        closed: Rounds closed by this process.
        dropped: Fragments' rounds whose update would not have been finite, and changed nothing.
        waiting: Who is to be woken when something has moved, and how.
        on_event: An observer: told of pushes that are taken and that have arrived, and of rounds
            that are about to be closed, and of a newer policy. Checks count on it.
        switches: Newer policies that this process went over to.
    """

    def __init__(
        self,
        ruling: Ruling,
        store: _core.Shard,
        turns: Turns,
        users: UsersPolicies | None = None,
    ) -> None:
        self._go_by(ruling)
        self._store, self._limits, self._users = store, turns.limits, users
        self._share = Share(turns)
        self._next_ruling: Ruling | None = None
        """It is gone over to as soon as what is open is closed."""
        self._awaits_any = False
        """A push is to be added to the open round."""
        self.switches = 0
        self._tells = store.tells
        self.epoch = 0
        self._clocks = Clocks()
        self._view = ClusterView()
        """The one that was made last; its clocks are ours, and move."""
        self._shown = View()
        self.live_version = 0
        self._next_id = 1
        self._newcomers: set[int] = set()
        """Those that the coordinator has not named yet."""
        self.waits = Waits(turns.limits)
        """Who has waited here for whom, and how long."""
        self.group = 0
        """The newest group of replicas that reduce: sums of older ones are void."""
        self.closed = self.dropped = 0
        self.waiting: dict[object, Callable[[], None]] = {}
        self.on_event: Callable[[Event, PushInfo | None], object] = lambda event, push: None
        self._is_closing = False
        """A round is being closed, and some of its fragments are still open."""
        self._goes_on = False
        """In a turn to come."""
        self._next = store.first_fragment
        """The first fragment of it that is still open."""
        self._is_stopped = False
        """The shard moves: what is due is due elsewhere."""
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keep_gradients()

    def _go_by(self, ruling: Ruling) -> None:
        self._ruling, self._rule, self.policy = ruling, ruling.rule, ruling.entry

    @property
    def is_closing(self) -> bool:
        """A round is due, and some of its fragments found no room yet."""
        return self._is_closing

    @property
    def round(self) -> int:
        """Rounds closed before the open one."""
        return self._rule.round

    @property
    def closings(self) -> int:
        """Rounds of single fragments that were closed."""
        return self.round * self._store.fragments + self._next - self._store.first_fragment

    @property
    def clocks(self) -> Clocks:
        """Of the live replicas."""
        return self._clocks

    @property
    def shown(self) -> View:
        """What replicas are told."""
        shown, least, round = self._shown, self._clocks.least, self._rule.round
        is_new = shown.least_clock != least or shown.round != round or shown.epoch != self.epoch
        if is_new or shown.policy != self.policy.version:
            shown = self._shown = View(self.epoch, least, round, self.policy.version)
        if self._tells:
            return shown._replace(deviation=self._store.deviation)
        return shown

    @property
    def view(self) -> ClusterView:
        """What the rule is told of the others."""
        clocks, view = self._clocks, self._view
        live, least = clocks.live, clocks.least
        if view.live is not live or view.least_clock != least or view.epoch != self.epoch:
            view = self._view = ClusterView(self.epoch, live, clocks.of, least)
        return view

    # -- what happens ----------------------------------------------------------------------------

    def announced(self, push: PushInfo) -> Decision:
        """What becomes of a push."""
        decision = self.decide(push)
        if isinstance(decision, Accumulate):
            self._awaits_any = True
            self.on_event("taken", push)
        return decision

    def decide(self, push: PushInfo) -> Decision:
        """The same, of one that was announced before."""
        if self._is_closing:
            return NotYet(f"round {self.round} to be applied")
        if self._rule.reduces and push.round != self.group:
            return Refuse(f"it is of group {push.round}, and the newest here is {self.group}")
        return self._rule.announce(push, self.view)

    def heard_group(self, group: int) -> None:
        """Somebody has shown that it is in that group; it has given no gradient to its sums yet."""
        self.group = max(self.group, group)

    def is_void(self, push: PushInfo) -> bool:
        """It is the sum of a group that another has taken the place of."""
        return self._rule.reduces and push.round < self.group

    def arrived(self, push: PushInfo) -> None:
        """All of its records have their answer."""
        self._rule.arrived(push)
        self.on_event("arrived", push)
        if self._rule.combines or self.waiting:
            self._look_soon()

    def finished(self, replica: int, clock: int) -> None:
        """Every push of a replica's first ``clock`` steps has its answers here."""
        if self._clocks.reached(replica, clock) and self.waiting:
            self._look_soon()

    def joined(self, replica: int, *, anew: bool) -> None:
        """A replica is here; one that the coordinator's last word could not know of is live.

        ``anew``: it is another life of it than was here before.
        """
        if anew:
            self._clocks.begins(replica)
            self._look_soon()
        if replica >= self._next_id and replica not in self._newcomers:
            self._newcomers.add(replica)
            self._clocks.joined(replica)

    def heard(self, live: LiveIds) -> None:
        """The coordinator says who takes part."""
        if live.version == self.live_version:
            return
        self.live_version, self._next_id = live.version, live.next
        known = {one for start, stop in live.ranges for one in range(start, stop)}
        self._newcomers = {one for one in self._newcomers if one >= live.next}
        self._clocks.heard(sorted(known | self._newcomers))
        self._look_soon()

    def waits_for(
        self, round: int, clock: int, *, policy: int = 0, replica: int = 0
    ) -> Wait | None:
        """For whom a fetch of ``replica`` waits; None if for nobody.

        It shall find ``round`` rounds closed, and every live replica at ``clock`` at least, if it
        is of who obeys the same ``policy`` (0: whatever it is). A rule that does not combine closes
        no rounds, and nobody waits for that. Nor does a replica wait for a round that waits for it:
        its last gradient was another rule's, and it has to give one more.
        """
        if policy not in (0, self.policy.version):
            return None
        if self._rule.combines and self.round < round:
            wait = self._rule.due(self.view, self.now())
            if wait is not None and replica in wait.on:
                return None
            return wait or Wait(f"round {self.round} to be applied")
        behind = self._clocks.behind(clock)
        return Wait(f"{{on}} to finish {clock} steps", on=behind) if behind else None

    def held(self, owner: object, replica: int, wait: Wait | NotYet) -> None:
        """An answer to a replica waits, or still does; ``owner`` is the connection it is for."""
        self.waits.held(owner, replica, wait.on, wait.whom, self.now())

    def let_go(self, owner: object, replica: int) -> None:
        """It waits no more."""
        self.waits.let_go(owner, replica, self.now())

    async def reached(
        self, replica: int, round: int, clock: int, within_s: float, policy: int = 0
    ) -> str:
        """Wait until that is so, for a while; for whom it still waits then, or ""."""
        moved = asyncio.Event()
        try:
            async with asyncio.timeout(within_s):
                while wait := self.waits_for(round, clock, policy=policy, replica=replica):
                    self.held(moved, replica, wait)
                    self.waiting[moved] = moved.set
                    await moved.wait()
                    moved.clear()
        except TimeoutError:
            return wait.whom if wait is not None else ""
        finally:
            if self.waiting.pop(moved, None) is not None:
                self.let_go(moved, replica)
        return ""

    # -- another policy --------------------------------------------------------------------------

    def go_over(self, entry: PolicyEntry) -> None:
        """Obey a newer version of the job's policy as soon as what is open is closed.

        One that cannot be obeyed is said; the next heartbeat tries again.
        """
        newest = (self._next_ruling or self._ruling).entry
        if self._is_stopped or entry.version <= newest.version:
            return
        try:
            ruling = Ruling.of(entry, self._users)
            if ruling.rule.combines:
                self._store.start_accumulating()
        except (ConfigError, LimitExceeded) as error:
            log.error("version %d of the job's policy is not obeyed: %s", entry.version, error)
            return
        self._next_ruling = ruling
        self._look_soon()

    def _went_over(self) -> bool:
        """Go over to the next rule, if there is one; False if what is open cannot be closed now."""
        if self._next_ruling is None:
            return True
        if self._goes_on:
            return False
        self.on_event("switching", None)
        if self._is_closing or self._holds_any:
            if not self._close():
                return False  # who goes on with it looks again
        elif self._awaits_any:
            self._use_up()
        before = self._ruling
        self._go_by(self._next_ruling)
        self._next_ruling = None
        self._rule.round = before.rule.round
        self._keep_gradients()
        self.switches += 1
        log.info(
            "policy %s, version %d, from round %d on; before: %s",
            self.policy.settings,
            self.policy.version,
            self.round,
            before.entry.settings,
        )
        self.on_event("switched", None)
        return True

    def _keep_gradients(self) -> None:
        """Keep the last one of each replica, or none, as the rule says."""
        size_max = self._limits.kept_size_max if self._rule.repeats else 0
        self._store.keep_gradients(size_max)

    def _use_up(self) -> None:
        """Close the open round, which is empty: records that were to be added to it come again."""
        first = self._store.first_fragment
        for fragment in range(first, first + self._store.fragments):
            self._store.close_round(fragment, self.round)
        self._rule.closed()
        self._awaits_any = False

    # -- the shard moves -------------------------------------------------------------------------

    def stop(self) -> None:
        """Close nothing any more, or not yet: another process does, or did."""
        self._is_stopped = True

    def go_on(self) -> None:
        """The shard is this process's own."""
        if self._is_stopped:
            self._is_stopped = False
            self._look_soon()

    def export(self) -> dict[str, Any]:
        """Everything that another process needs to go on, as JSON has it."""
        return {
            **self._ruling.export(),
            "clocks": list(self._clocks.of.items()),
            "least_clock": self._clocks.least,
            "closing": self._is_closing,
            "next": self._next,
            "group": self.group,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`export` gave.

        Raises:
            ConfigError: this process cannot build the policy.
        """
        self._go_by(Ruling.load(state, self._users))
        if self._rule.combines:
            self._store.start_accumulating()
        self._keep_gradients()
        self._is_closing, self._next = bool(state["closing"]), int(state["next"])
        self.group = int(state["group"])
        clocks = [(int(replica), int(clock)) for replica, clock in state["clocks"]]
        self._clocks.load(int(state["least_clock"]), clocks)

    # -- what is due -----------------------------------------------------------------------------

    async def finish(self) -> None:
        """Nobody will push any more: close what is open, whatever it waits for."""
        moved = asyncio.Event()
        try:
            while not self._is_stopped and (self._is_closing or self._holds_any):
                if not self._is_closing and self._close():
                    continue
                self.waiting[moved] = moved.set
                await moved.wait()
                moved.clear()
        finally:
            self.waiting.pop(moved, None)

    @property
    def _holds_any(self) -> bool:
        """Something was added to the open round of a fragment."""
        first = self._store.first_fragment
        fragments = range(first, first + self._store.fragments)
        return any((self._store.accumulated(f) or (0, 0))[1] for f in fragments)

    def _look_soon(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Close what is due, and wake whoever waits."""
        self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stopped:
            return
        if not self._went_over():
            return
        # Before the coordinator's first word nobody knows who is to be waited for.
        while self._rule.combines and self.live_version and not self._goes_on:
            wait = None if self._is_closing else self._rule.due(self.view, self.now())
            if wait is not None:
                if math.isfinite(wait.look_at):
                    self._look_at(wait.look_at)
                break
            _ = self._close()
        for wake in list(self.waiting.values()):
            wake()

    def _look_at(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _close(self) -> bool:
        """Apply the open round's sums, fragment by fragment; False: another turn goes on."""
        if not self._is_closing:
            self.on_event("closing", None)
        self._is_closing = True
        factor = None if self._rule.mean else 1.0
        while self._next < self._store.first_fragment + self._store.fragments:
            if not self._share.take(self._limits.fragment_size):
                self._goes_on = True
                self._share.turns.later(self._go_on)
                return False
            try:
                self._store.close_round(self._next, self.round, factor=factor)
            except NonFiniteGradient as error:
                self.dropped += 1
                log.warning("round %d, fragment %d: %s", self.round, self._next, error)
            except LimitExceeded as error:
                log.info("round %d, fragment %d: %s; trying again", self.round, self._next, error)
                self._goes_on = True
                loop = asyncio.get_running_loop()
                loop.call_later(self._limits.backoff_min_s, self._go_on)
                return False
            self._next += 1
        self._is_closing, self._next = False, self._store.first_fragment
        self._rule.closed()
        self._awaits_any = False
        self.closed += 1
        return True

    def _go_on(self) -> None:
        """Close more of the round; what waits for it is looked at when it is closed."""
        self._goes_on = False
        if self._is_closing and not self._is_stopped and self._close():
            self._look()

    def now(self) -> float:
        """The time, of the running loop."""
        return asyncio.get_running_loop().time()
