"""Many seeds under every fault plan; and the ones that once failed, for ever.

A failure prints one line that runs the world again. ``DOWNPOUR_SEED`` and ``DOWNPOUR_FAULTS``
(default swarm) choose a world for ``-k replay``; ``DOWNPOUR_SEEDS`` sets how many seeds each plan
gets, ``DOWNPOUR_SEED_FIRST`` where they begin (CI: the same ones every time).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pydownpour.sim.checks import table
from pydownpour.sim.faults.plans import PLANS
from pydownpour.sim.trace import Trace
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from tests.fakes.policies import EveryFew

SEEDS = int(os.environ.get("DOWNPOUR_SEEDS", "60"))
FIRST = int(os.environ.get("DOWNPOUR_SEED_FIRST", "0"))
BLOCK = 10
"""Seeds in one test: enough to be worth a process's turn, few enough to share among cores."""
EVIDENCE_MIN = 0.5
"""A plan whose worlds are mostly idle or calm proves nothing (see ``Checks.is_evidence``)."""
CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())


def failures(world: World, seed: int, plan: str) -> str:
    """Why a world failed, and how to see it again; "" if it did not."""
    found = world.checks.violations
    return "\n".join([*found, f"replay: {swarm.replay(seed, plan)}"]) if found else ""


def blocks() -> list[tuple[str, int]]:
    """Each plan's seeds in blocks; a plan without faults gets a few, for the evidence."""
    return [
        (plan.name, first)
        for plan in PLANS.values()
        for first in range(FIRST, FIRST + (SEEDS if plan.doses else -(-SEEDS // 5)), BLOCK)
    ]


@pytest.mark.parametrize(("plan", "first"), blocks())
def test_seeds(plan: str, first: int) -> None:
    evidence = 0
    for seed in range(first, first + BLOCK):
        world = swarm.world(seed, plan).run()
        assert not failures(world, seed, plan), failures(world, seed, plan)
        evidence += world.checks.is_evidence
    assert evidence >= BLOCK * EVIDENCE_MIN or PLANS[plan].is_doom


@pytest.mark.parametrize("plan", ["swarm", "reset", "zombie", "pause"])
def test_seeds_looked_at_after_every_moment(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CHEAP_EVERY", 1)
    monkeypatch.setattr(table, "FULL_EVERY", 1)
    for seed in range(FIRST, FIRST + 5):
        world = swarm.world(seed, plan).run()
        assert not failures(world, seed, plan), failures(world, seed, plan)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: f"{case['faults']}-{case['seed']}")
def test_what_once_failed(case: dict[str, str]) -> None:
    seed, plan = int(case["seed"]), case["faults"]
    world = swarm.world(seed, plan).run()
    assert not failures(world, seed, plan), f"{case['reason']}\n{failures(world, seed, plan)}"


COUNTED = max(1, SEEDS // 5)
"""Seeds of the sample oracle's worlds in each plan."""


@pytest.mark.parametrize("plan", [name for name in PLANS if not PLANS[name].is_doom])
def test_what_is_recorded_was_applied(plan: str) -> None:
    recorded = 0
    for seed in range(FIRST, FIRST + COUNTED):
        world = swarm.counted(seed, plan).run()
        assert not world.checks.violations, (
            f"counted seed {seed}, {plan}: {world.checks.violations}"
        )
        recorded += world.report["units"]
    assert recorded >= COUNTED


@pytest.mark.parametrize("plan", [name for name in PLANS if not PLANS[name].is_doom])
def test_pushes_that_leave_fragments_out(plan: str) -> None:
    left_out = silent = 0
    for seed in range(FIRST, FIRST + 3 * COUNTED):
        if seed >= FIRST + COUNTED and silent:
            break  # the rest is for plans of which none so far was silent
        world = swarm.sparse(seed, plan).run()
        assert not world.checks.violations, f"sparse seed {seed}, {plan}: {world.checks.violations}"
        left_out += world.report["gradients"]["fragments_left_out"]
        silent += world.report["pushes"]["silent"]
    assert left_out >= 10 * COUNTED
    assert silent > 0


def a_users_own(seed: int, plan: str) -> World:
    """A world with a policy that is none of ours, and one of the two oracles."""
    world = swarm.world if seed % 2 else swarm.counted
    return world(
        seed, plan, policy=EveryFew(count=2 + seed % 4, slack=1 + seed % 3, staleness_power=0.0)
    )


@pytest.mark.parametrize("plan", [name for name in PLANS if not PLANS[name].is_doom])
@pytest.mark.parametrize("world", [swarm.synced, a_users_own], ids=["synced", "a users own"])
def test_rounds_are_whole_and_exact(world: Callable[[int, str], World], plan: str) -> None:
    """Policies that combine: synchronous rounds, and a few gradients each within a slack."""
    closed = 0
    for seed in range(FIRST, FIRST + COUNTED):
        done = world(seed, plan).run()
        assert not done.checks.violations, f"seed {seed}, {plan}: {done.checks.violations}"
        closed += sum(shard.rounds.closed for shard in done.serving())
    assert closed >= COUNTED


def test_a_round_that_is_closed_without_a_record_has_its_place_in_the_order() -> None:
    """A seed in which fragments have nothing of a round: the books counted updates only."""
    done = a_users_own(12000037, "links").run()
    assert not done.checks.violations, done.checks.violations


def test_replay(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("DOWNPOUR_SEED", "0"))
    plan = os.environ.get("DOWNPOUR_FAULTS", "swarm")
    trace = Trace(print if "DOWNPOUR_SEED" in os.environ else None)
    with capsys.disabled():
        world = swarm.world(seed, plan, trace).run()
    assert not failures(world, seed, plan), failures(world, seed, plan)
