"""Worlds whose shards' journals are late, and the check that nothing is acknowledged before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from pydownpour.shard.gate import AckGate
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from tests.fakes.late_journal import LateJournal
from tests.reference import codecs


class AcknowledgedIsDurable(Check):
    """What replicas were told is applied would be there if every shard died now."""

    name = "acknowledged is durable"
    journals: ClassVar[dict[AckGate, LateJournal]]
    """Of every process of a shard, by its gate."""

    def shard_loaded(self, shard: Shard) -> None:
        """A journal may have to begin with what a shard has."""
        self.journals[shard.gate].shard = shard

    def look(self) -> Iterator[str]:
        """Compare what was acknowledged with the durable prefixes of all journals."""
        oracle = self.watched.oracle
        assert oracle is not None
        oracle.absorb()
        durable = np.zeros(len(oracle.low))
        for shard in self.shards():
            durable += self.journals[shard.gate].sums
        for e in np.flatnonzero(oracle.low > durable)[:3]:
            yield f"element {e}: {oracle.low[e]:g} acknowledged, {durable[e]:g} are safe"

    def end(self) -> Iterator[str]:
        """The journals are all that is needed."""
        for shard in self.shards():
            start, values = shard.assigned.start, np.empty(shard.assigned.len, np.float32)
            shard.store.read(values)
            kept = self.journals[shard.gate].sums[start : start + len(values)]
            if (values != kept).any():
                yield f"shard {shard.assigned.index} is not what its journal says"


def late(seed: int, plan: str) -> World:
    """A world of the oracle whose shards' journals are late, as its job asks."""
    rng = random.Random(f"{seed}/late")

    class Ours(AcknowledgedIsDurable):
        journals: ClassVar[dict[AckGate, LateJournal]] = {}

    made = swarm.world(seed, plan, checks=(Ours,))
    made.job.durability = "logged"
    late_s = 10 ** rng.uniform(-3, -0.5)

    def gate_of(index: int) -> AckGate:
        assert made.coordinator is not None
        cut = made.coordinator.job.partition
        known = made.job.codec
        codec = None if known is None else codecs.of(*known.entry())
        journal = LateJournal(made.job.layout.len, cut.fragment_len, late_s / 4, late_s, codec)
        Ours.journals[journal.gate] = journal
        return journal.gate

    made.gate_of = gate_of
    return made
