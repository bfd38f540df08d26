"""Every policy that ships, in worlds in which anything may happen, with both oracles.

``DOWNPOUR_POLICY_SEEDS`` says how many seeds each policy gets (4), ``DOWNPOUR_POLICY_FIRST`` where
they begin (0): CI begins elsewhere with each commit (``.ci/run``), and at the same place whenever
it runs for the same one. ``make policies`` runs 200 of each. A failure prints the line that runs
its world again.
"""

from __future__ import annotations

import os

import pytest

from pydownpour.policy import POLICIES
from pydownpour.sim.trace import Trace
from pydownpour.sim.world import swarm

SEEDS = int(os.environ.get("DOWNPOUR_POLICY_SEEDS", "4"))
FIRST = int(os.environ.get("DOWNPOUR_POLICY_FIRST", "0"))
BLOCK = 10
"""Seeds in one test, at most."""
PLAN = "swarm"
EVIDENCE_MIN = 0.5
"""Of the worlds in which every push is counted, so many must have been disturbed, and worked."""


def blocks() -> list[tuple[str, int, int]]:
    """Each policy's seeds in blocks: (policy, first, behind the last)."""
    stop = FIRST + SEEDS
    return [
        (policy, first, min(first + BLOCK, stop))
        for policy in sorted(POLICIES)
        for first in range(FIRST, stop, BLOCK)
    ]


def replay(policy: str, seed: int) -> str:
    return (
        f"DOWNPOUR_POLICY={policy} DOWNPOUR_SEED={seed} "
        "python -m pytest tests/simulation/test_policies.py -k replay"
    )


def violations(policy: str, seed: int, trace: Trace | None = None) -> tuple[list[str], bool]:
    """What was wrong in the two worlds of a seed, and whether the first is evidence."""
    one, other = (world.run() for world in swarm.of_policy(seed, PLAN, policy, trace))
    found = [f"pushes: {words}" for words in one.checks.violations]
    found += [f"samples: {words}" for words in other.checks.violations]
    return found, one.checks.is_evidence


def test_every_policy_has_a_row() -> None:
    assert set(swarm.DRAWN) == set(POLICIES), "add its settings to DRAWN in sim/world/swarm.py"


@pytest.mark.parametrize(("policy", "first", "stop"), blocks())
def test_a_policy_in_a_swarm_of_faults(policy: str, first: int, stop: int) -> None:
    evidence = 0
    for seed in range(first, stop):
        found, is_evidence = violations(policy, seed)
        assert not found, "\n".join([*found, f"replay: {replay(policy, seed)}"])
        evidence += is_evidence
    assert evidence >= (stop - first) * EVIDENCE_MIN or stop - first < BLOCK


ONCE_FAILED = [
    ("ssp", 15, "a replica that came back at the clock of one shard did not wait for another's"),
    ("ssp", 31, "the same, with updates that came late"),
    ("ssp", 1051, "the check: who was not waited for meanwhile was taken for one that was"),
    ("softsync", 1072, "the check: what came while a round was closed was counted in the next"),
    ("hardsync", 1062, "an answer that was cut off was taken for older than what its gate asks"),
]


@pytest.mark.parametrize(("policy", "seed", "reason"), ONCE_FAILED)
def test_what_once_failed(policy: str, seed: int, reason: str) -> None:
    found, _ = violations(policy, seed)
    assert not found, f"{reason}: {found}"


def test_replay(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("DOWNPOUR_SEED", "0"))
    policy = os.environ.get("DOWNPOUR_POLICY", "downpour")
    trace = Trace(print if "DOWNPOUR_POLICY" in os.environ else None)
    with capsys.disabled():
        found, _ = violations(policy, seed, trace)
    assert not found, found
