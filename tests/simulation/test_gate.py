"""Nothing is acknowledged before a shard's journal says that it is safe."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

from pydownpour.shard.gate import EVERY_LSN, AckGate
from pydownpour.sim.checks.base import Check
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from tests.fakes.late_journal import LateJournal
from tests.reference import codecs


class AcknowledgedIsDurable(Check):
    """What replicas were told is applied would be there if every shard died now."""

    name = "acknowledged is durable"
    journals: ClassVar[dict[int, LateJournal]]

    def look(self) -> Iterator[str]:
        """Compare what was acknowledged with the durable prefixes of all journals."""
        oracle = self.watched.oracle
        assert oracle is not None
        oracle.absorb()
        durable = sum((one.sums for one in self.journals.values()), np.zeros(len(oracle.low)))
        for e in np.flatnonzero(oracle.low > durable)[:3]:
            yield f"element {e}: {oracle.low[e]:g} acknowledged, {durable[e]:g} are safe"

    def end(self) -> Iterator[str]:
        """The journals are all that is needed."""
        for shard in self.shards():
            start, values = shard.assigned.start, np.empty(shard.assigned.len, np.float32)
            shard.store.read(values)
            kept = self.journals[shard.assigned.index].sums[start : start + len(values)]
            if (values != kept).any():
                yield f"shard {shard.assigned.index} is not what its journal says"


def world(seed: int, plan: str) -> World:
    """A world of the oracle whose shards' journals are late."""
    rng = random.Random(f"{seed}/late")

    class Ours(AcknowledgedIsDurable):
        journals: ClassVar[dict[int, LateJournal]] = {}

    made = swarm.world(seed, plan, checks=(Ours,))
    late_s = 10 ** rng.uniform(-3, -0.5)

    def gate_of(index: int) -> AckGate:
        assert made.coordinator is not None
        cut = made.coordinator.job.partition
        known = made.job.codec
        codec = None if known is None else codecs.of(*known.entry())
        journal = LateJournal(made.job.layout.len, cut.fragment_len, late_s / 4, late_s, codec)
        Ours.journals[index] = journal
        return journal.gate

    made.gate_of = gate_of
    return made


@pytest.mark.parametrize("plan", ["calm", "reset", "kill", "links"])
def test_what_is_acknowledged_is_durable(plan: str) -> None:
    for seed in range(4):
        assert world(seed, plan).run().checks.violations == [], f"seed {seed}"


def test_a_gate_that_holds_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    always = property(lambda self: EVERY_LSN, lambda self, lsn: None)
    monkeypatch.setattr(AckGate, "durable_lsn", always, raising=False)
    violations = [v for seed in range(4) for v in world(seed, "calm").run().checks.violations]
    assert any("acknowledged is durable" in violation for violation in violations)
