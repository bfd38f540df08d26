"""What holds for every policy: ours, and one that a user might write.

A new policy is one more row in ``POLICIES``; settings of it that are worth their own run go into
``SETTINGS``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, Final

import pytest

from pydownpour.policy import (
    POLICIES,
    ClusterView,
    NotYet,
    Policy,
    PushInfo,
    Wait,
    check,
    from_wire,
)
from tests.fakes.policies import EveryFew
from tests.reference.rounds import Play

SETTINGS: Final[dict[str, list[dict[str, Any]]]] = {
    "hardsync": [{}, {"ordered": True}, {"combine": "sum", "replicas": 3}, {"by_samples": True}],
    "downpour": [{}, {"push_every": 3, "fetch_every": 2}, {"overlap": False, "land": "keep"}],
}
CASES: Final[list[Policy]] = [
    *(POLICIES[name](**case) for name in sorted(POLICIES) for case in SETTINGS.get(name, [{}])),
    EveryFew(),
]
every_policy = pytest.mark.parametrize("policy", CASES, ids=repr)


@every_policy
def test_it_passes_the_check_and_survives_the_wire(policy: Policy) -> None:
    check(policy)
    settings = json.loads(json.dumps(policy.to_wire()))
    assert from_wire(settings, lambda: type(policy)) == policy


@every_policy
@pytest.mark.parametrize("seed", range(8))
def test_every_gradient_is_in_one_update_and_everybody_ends(policy: Policy, seed: int) -> None:
    play = Play(policy, members=4, steps=7, rng=random.Random(seed))
    play.run()
    told = Counter(who for update in [*play.updates, play.refused] for who in update)
    assert set(told.values()) == {1}
    assert play.open == []
    assert {replica for replica, _ in told} == {1, 2, 3, 4}


def says_for_whom(answer: object, view: ClusterView) -> None:
    """In words, and whoever is named by id is live."""
    if isinstance(answer, Wait | NotYet):
        assert answer.whom
        assert set(answer.on) <= set(view.live)
        assert list(answer.on) == sorted(set(answer.on))


@every_policy
@pytest.mark.parametrize("seed", range(8))
def test_nobody_waits_for_the_dead(policy: Policy, seed: int) -> None:
    """Whoever dies, with a push on its way or not: nobody names it, and the others end."""
    rng = random.Random(seed)
    play = Play(policy, members=4, steps=9, rng=rng)
    for victim in rng.sample(play.members, 2):
        for _ in range(rng.randint(0, 30)):
            play.turn()
        victim.is_live = False
    while play.turn():
        says_for_whom(play.rule.due(play.view(), 0.0), play.view())
        for push in (one.open_push for one in play.members):
            if push is not None:
                says_for_whom(play.rule.announce(push, play.view()), play.view())
    assert all(one.is_done or not one.is_live for one in play.members), play.words()
    assert play.open == []


@every_policy
@pytest.mark.parametrize("seed", range(8))
def test_a_rule_that_is_loaded_goes_on_as_the_other(policy: Policy, seed: int) -> None:
    """Exported between any two events, and through JSON."""
    one = Play(policy, members=3, steps=6, rng=random.Random(seed))
    two = Play(policy, members=3, steps=6, rng=random.Random(seed))
    moving = True
    while moving:
        moving = one.turn()
        assert two.turn() == moving
        fresh = policy.shard()
        fresh.load(json.loads(json.dumps(two.rule.export())))
        two.rule = fresh
        assert one.rule.export() == two.rule.export()
    assert one.updates == two.updates


@every_policy
def test_asking_changes_nothing_and_waiting_says_for_whom(policy: Policy) -> None:
    play = Play(policy, members=3, steps=6, rng=random.Random(3))
    while True:
        before = json.dumps(play.rule.export())
        for member in play.members:
            for made_for in range(play.rule.round + 1):
                push = PushInfo(member.id, member.clock, 8, 1.0, made_for)
                decision = play.rule.announce(push, play.view())
                says_for_whom(decision, play.view())
        says_for_whom(play.rule.due(play.view(), 0.0), play.view())
        assert json.dumps(play.rule.export()) == before
        if not play.turn():
            break


@every_policy
def test_halves_share_nothing(policy: Policy) -> None:
    one, other = policy.shard(), policy.shard()
    fresh = other.export()
    push = PushInfo(1, 1, 8, 1.0)
    one.announce(push, ClusterView(1, (1,)))
    one.arrived(push)
    if one.due(ClusterView(1, (1,)), 0.0) is None:
        one.closed()
    assert other.export() == fresh
