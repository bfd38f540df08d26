"""A tiny world of one shard and some replicas, for policies alone: no bytes, no sockets, no time.

It says what the services must do with a policy's two rules. Each turn one replica or the shard
moves, whichever the given chance picks; so a policy can be asked for every order of events.
"""

from __future__ import annotations

import dataclasses
import random

from pydownpour.policy import Accumulate, Apply, ClusterView, NotYet, Policy, PushInfo, Refuse, Wait


@dataclasses.dataclass
class Member:
    """A replica: how far it is, and what it waits for."""

    id: int
    steps: int
    rule: object
    clock: int = 0
    base: int = 0
    """Rounds closed when its parameters were fetched."""
    open_push: PushInfo | None = None
    needs_round: int = 0
    needs_clock: int = 0
    fetches: bool = False
    is_live: bool = True

    @property
    def is_done(self) -> bool:
        return self.clock == self.steps and self.open_push is None and not self.fetches


class Play:
    """One run. ``updates`` lists each update as the (replica, clock) of the gradients in it."""

    def __init__(self, policy: Policy, members: int, steps: int, rng: random.Random) -> None:
        self.rng = rng
        self.members = [Member(i + 1, steps, policy.replica()) for i in range(members)]
        self.rule = policy.shard()
        self.clocks: dict[int, int] = {}
        self.updates: list[list[tuple[int, int]]] = []
        self.open: list[tuple[int, int]] = []
        self.refused: list[tuple[int, int]] = []
        self.stale: list[int] = []

    def view(self) -> ClusterView:
        live = tuple(m.id for m in self.members if m.is_live and not m.is_done)
        least = min((self.clocks[i] for i in live if i in self.clocks), default=0)
        return ClusterView(1, live, self.clocks, least)

    def turn(self) -> bool:
        """Let one of those that can move; False if nobody can and nothing is due."""
        movers = [m for m in self.members if m.is_live and not m.is_done and self._can(m)]
        is_due = self.rule.due(self.view(), 0.0) is None
        if not movers and not is_due:
            return False
        if is_due and (not movers or self.rng.random() < 0.5):
            assert self.open, "a round without a gradient is closed"
            self.updates.append(self.open)
            self.open = []
            before = self.rule.round
            self.rule.closed()
            assert self.rule.round == before + 1
        else:
            self._move(self.rng.choice(movers))
        return True

    def _can(self, m: Member) -> bool:
        if m.open_push is not None:
            return not isinstance(self.rule.announce(m.open_push, self.view()), NotYet)
        if m.fetches:
            least = self.view().least_clock
            return self.rule.round >= m.needs_round and least >= m.needs_clock
        return True

    def _move(self, m: Member) -> None:
        if m.open_push is not None:
            push, m.open_push = m.open_push, None
            self._settle(push)
        elif m.fetches:
            m.base, m.fetches = self.rule.round, False
        else:
            actions = m.rule.after_step(m.clock, ClusterView(1))  # type: ignore[attr-defined]
            m.clock += 1
            if actions.push:
                m.open_push = PushInfo(m.id, m.clock, 8, 1.0, m.base)
                self.clocks[m.id] = m.clock
            if actions.fetch:
                m.fetches = True
                m.needs_round = m.base + 1 if actions.after_round else 0
                m.needs_clock = actions.least_clock

    def _settle(self, push: PushInfo) -> None:
        decision = self.rule.announce(push, self.view())
        who = (push.replica, push.clock)
        if isinstance(decision, Apply):
            self.updates.append([who])
        elif isinstance(decision, Accumulate):
            assert decision.round == self.rule.round
            self.open.append(who)
            self.stale.append(self.rule.round - push.round)
        else:
            assert isinstance(decision, Refuse)
            self.refused.append(who)
        self.rule.arrived(push)

    def run(self) -> None:
        """To the end; a world that stands still is a failure of the policy."""
        for _ in range(100_000):
            if all(m.is_done or not m.is_live for m in self.members):
                break
            assert self.turn(), self.words()
        while self.rule.due(self.view(), 0.0) is None:
            self.turn()

    def words(self) -> str:
        due = self.rule.due(self.view(), 0.0)
        return f"nobody can move: {due.whom if isinstance(due, Wait) else due}"
