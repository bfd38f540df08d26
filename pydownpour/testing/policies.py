"""What holds for every policy, as checks: for ours, and for one of your own.

    from pydownpour.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy(share=0.5))

The checks play it in a tiny world of one shard and some replicas: no bytes, no sockets, no time.
The world says what the services do with a policy's two rules. Each turn one replica or the shard
moves, whichever the given chance picks; so a policy is asked for many orders of events. What it
does to real pushes under faults, ``dp.simulate(job, faults="swarm")`` shows.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, final

from pydownpour.policy import (
    Accumulate,
    Apply,
    ClusterView,
    NotYet,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    Wait,
    check,
    from_wire,
)

SEEDS: Final = 8
"""Orders of events that each check tries."""
TURNS_MAX: Final = 100_000


def check_policy(policy: Policy, seeds: int = SEEDS) -> None:
    """Check that a policy keeps what every policy must.

    Args:
        policy: With the settings that are to be tried.
        seeds: Orders of events that each check tries.

    Raises:
        ConfigError: it cannot work at all; ``dp.Job(...)`` says the same.
        AssertionError: what it broke, in words, and in which order of events.

    Example:
        >>> import pydownpour as dp
        >>> check_policy(dp.HardSync(ordered=True))
    """
    for name, promise in CONTRACT.items():
        for seed in range(seeds):
            try:
                promise(policy, seed)
            except AssertionError as error:
                raise AssertionError(f"{policy!r}, {name}, seed {seed}: {error}") from error


def _must(holds: bool, words: str) -> None:
    """Also where assertions are switched off."""
    if not holds:
        raise AssertionError(words)


@final
@dataclasses.dataclass
class Member:
    """A replica: how far it is, and what it waits for."""

    id: int
    steps: int
    rule: ReplicaRule
    clock: int = 0
    base: int = 0
    """Rounds closed when its parameters were fetched."""
    copy_clock: int = 0
    """The least clock then."""
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
        self.clocks = {m.id: 0 for m in self.members}
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
            _must(bool(self.open), "due() closes a round without a gradient")
            self.updates.append(self.open)
            self.open = []
            before = self.rule.round
            self.rule.closed()
            _must(self.rule.round == before + 1, "closed() must count the round (super().closed())")
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
            m.copy_clock = self.view().least_clock
        else:
            view = ClusterView(
                1,
                least_clock=self.view().least_clock,
                copy_clock=m.copy_clock,
                deviation=self.rng.random(),
                draws=tuple(self.rng.random() for _ in range(m.rule.draws)),
            )
            actions = m.rule.after_step(m.clock, view)
            m.clock += 1
            # At the end of its work a replica pushes what it has accrued, whatever the rule says.
            if actions.push or m.clock == m.steps:
                m.open_push = PushInfo(m.id, m.clock, 8, 1.0, m.base)
            else:  # a step counts when its push has its answer, or else at once
                self.clocks[m.id] = m.clock
            if actions.fetch:
                m.fetches = True
                m.needs_round = m.base + 1 if actions.after_round else 0
                m.needs_clock = actions.least_clock or 0

    def _settle(self, push: PushInfo) -> None:
        decision = self.rule.announce(push, self.view())
        who = (push.replica, push.clock)
        if isinstance(decision, Apply):
            self.updates.append([who])
        elif isinstance(decision, Accumulate):
            open_now = self.rule.round
            words = f"announce() accumulates into round {decision.round}, open is {open_now}"
            _must(decision.round == open_now, words)
            self.open.append(who)
            self.stale.append(self.rule.round - push.round)
        else:
            _must(isinstance(decision, Refuse), f"announce() answers {decision!r}")
            self.refused.append(who)
        self.rule.arrived(push)
        self.clocks[push.replica] = push.clock

    def run(self) -> None:
        """To the end; a world that stands still is a failure of the policy."""
        for _ in range(TURNS_MAX):
            if all(m.is_done or not m.is_live for m in self.members):
                break
            _must(self.turn(), self.words())
        else:
            _must(False, f"it does not end within {TURNS_MAX:,} turns")
        while self.rule.due(self.view(), 0.0) is None:
            self.turn()

    def words(self) -> str:
        due = self.rule.due(self.view(), 0.0)
        return f"nobody can move: {due.whom if isinstance(due, Wait) else due}"


# -- the contract ----------------------------------------------------------------------------------


def _survives_the_wire(policy: Policy, seed: int) -> None:
    check(policy)
    settings = json.loads(json.dumps(policy.to_wire()))
    again = from_wire(settings, lambda: (type(policy),))
    _must(again == policy, f"made again from {settings} it is {again!r}")


def _each_push_counts_once(policy: Policy, seed: int) -> None:
    play = Play(policy, members=4, steps=7, rng=random.Random(seed))
    play.run()
    told = Counter(who for update in [*play.updates, play.refused] for who in update)
    twice = sorted(who for who, count in told.items() if count > 1)
    _must(not twice, f"counted more than once, as (replica, step): {twice}")
    _must(not play.open, f"in a round that nobody closes, as (replica, step): {play.open}")
    heard = {replica for replica, _ in told}
    _must(heard == {1, 2, 3, 4}, f"of four replicas only {sorted(heard)} were ever heard")


def _says_for_whom(answer: object, view: ClusterView) -> None:
    """In words, and whoever is named by id is live."""
    if isinstance(answer, Wait | NotYet):
        _must(bool(answer.whom), f"{type(answer).__name__} says for whom it waits")
        gone = sorted(set(answer.on) - set(view.live))
        _must(not gone, f"it waits for {gone}, and live are {list(view.live)}")
        _must(list(answer.on) == sorted(set(answer.on)), f"on={answer.on} must be ascending")


def _nobody_waits_for_the_dead(policy: Policy, seed: int) -> None:
    """Whoever dies, with a push on its way or not: nobody names it, and the others end."""
    rng = random.Random(seed)
    play = Play(policy, members=4, steps=9, rng=rng)
    for victim in rng.sample(play.members, 2):
        for _ in range(rng.randint(0, 30)):
            play.turn()
        victim.is_live = False
    while play.turn():
        _says_for_whom(play.rule.due(play.view(), 0.0), play.view())
        for push in (one.open_push for one in play.members):
            if push is not None:
                _says_for_whom(play.rule.announce(push, play.view()), play.view())
    _must(all(one.is_done or not one.is_live for one in play.members), play.words())
    _must(not play.open, f"in a round that nobody closes, as (replica, step): {play.open}")


def _a_loaded_rule_goes_on(policy: Policy, seed: int) -> None:
    """Exported between any two events, and through JSON."""
    one = Play(policy, members=3, steps=6, rng=random.Random(seed))
    two = Play(policy, members=3, steps=6, rng=random.Random(seed))
    moving = True
    while moving:
        moving = one.turn()
        same = two.turn() == moving
        _must(same, "one that loaded what another exported decides otherwise")
        fresh = policy.shard()
        fresh.load(json.loads(json.dumps(two.rule.export())))
        two.rule = fresh
        state, loaded = one.rule.export(), two.rule.export()
        _must(state == loaded, f"export() gives {state}; loaded, it gives {loaded}")
    _must(one.updates == two.updates, "one that loaded what another exported decides otherwise")


def _asking_changes_nothing(policy: Policy, seed: int) -> None:
    """However often it is asked; and who waits says for whom."""
    play = Play(policy, members=3, steps=6, rng=random.Random(seed))
    while True:
        before = json.dumps(play.rule.export())
        for member in play.members:
            for made_for in range(play.rule.round + 1):
                push = PushInfo(member.id, member.clock, 8, 1.0, made_for)
                _says_for_whom(play.rule.announce(push, play.view()), play.view())
        _says_for_whom(play.rule.due(play.view(), 0.0), play.view())
        after = json.dumps(play.rule.export())
        _must(after == before, f"announce() and due() change nothing: {before} became {after}")
        if not play.turn():
            break


def _halves_share_nothing(policy: Policy, seed: int) -> None:
    one, other = policy.shard(), policy.shard()
    fresh = other.export()
    push, view = PushInfo(1, 1, 8, 1.0), ClusterView(1, (1,))
    one.announce(push, view)
    one.arrived(push)
    if one.due(view, 0.0) is None:
        one.closed()
    _must(other.export() == fresh, "two rules that shard() made share their state")


CONTRACT: Final[dict[str, Callable[[Policy, int], None]]] = {
    "it passes the check and survives the wire": _survives_the_wire,
    "every push counts once and everybody ends": _each_push_counts_once,
    "nobody waits for the dead": _nobody_waits_for_the_dead,
    "a rule that is loaded goes on as the other": _a_loaded_rule_goes_on,
    "asking changes nothing and waiting says for whom": _asking_changes_nothing,
    "halves share nothing": _halves_share_nothing,
}
"""What every policy must keep, by its name in words: called with the policy and a seed."""
