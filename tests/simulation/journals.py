"""Worlds whose shards' journals are read, and what they must say of where gradients came from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.policy import Policy
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.softsync import Softsync
from pydownpour.policy.staleness_aware import StalenessAware
from pydownpour.replica.pushes import Push
from pydownpour.shard.gate import AckGate
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check, Watched, one_policy
from pydownpour.sim.checks.oracle import Life
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from tests.reference import journal
from tests.reference import optimizers as twins

SIZE_MAX = 1 << 26
Values = NDArray[np.float32]
Given = tuple[int, bytes]
"""Of a push and a fragment: the version it was computed from, and what travels of it."""


class StalenessIsTrue(Check):
    """Each gradient is scaled by the updates between the parameters it is of and itself.

    From books of its own: each fragment's updates, made again from the journals, give every version
    it ever had. A replica that pushes must hold the values of the versions it names; the record
    must name the same ones at the shard, be as stale as the updates since, and be scaled as the
    policy promises. What stands for an earlier gradient is of that one's version.
    """

    name = "staleness is true"
    journals: ClassVar[dict[AckGate, _core.Journal]]
    """Of every process of a shard, by its gate."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        policy = one_policy(watched.world)
        self._n, self._power = 1.0, 0.0
        if isinstance(policy, StalenessAware):
            self._power = policy.power
        elif isinstance(policy, Softsync) and policy.divide_rate:
            self._n = float(policy.n)
        self._past: dict[int, list[Values]] = {}
        """By fragment: its values in each version."""
        self._sums: dict[int, Values] = {}
        """By fragment: what the open round has."""
        self._given: dict[tuple[int, int, int], list[Given]] = {}
        """By replica, incarnation and push: of each fragment, what was pushed."""
        self._kept: dict[tuple[int, int, int], Given] = {}
        """By replica, incarnation and fragment: the last one that came whole."""
        self.seen = self.stale = self.repeated = 0
        self._wrong: list[str] = []

    def shard_loaded(self, shard: Shard) -> None:
        store, size = shard.store, shard.store.fragment_len
        for place in range(store.fragments):
            length = min(size, store.len - place * size)
            self._past[store.first_fragment + place] = [np.zeros(length, np.float32)]

    def pushed(self, life: Life, push: Push) -> None:
        """Its copy is what it was when the gradient was computed."""
        self._read()
        frames = _core.scan_frames(push.encoded.frames(0, push.encoded.fragments))
        self._given[life.replica, life.incarnation, push.index] = [
            (int(version), bytes(frame.payload))
            for version, frame in zip(push.base.versions, frames, strict=True)
        ]
        pieces = np.split(life.trainer.copy.flat, self._cuts)
        for fragment, (values, version) in enumerate(zip(pieces, push.base.versions, strict=True)):
            past = self._past[fragment]
            if version >= len(past) or not np.array_equal(past[int(version)], values):
                self._wrong.append(
                    f"push {push.index} of {life} is said to be of version {version} of fragment "
                    f"{fragment}, and its copy is not"
                )

    @property
    def _cuts(self) -> NDArray[np.int64]:
        """Where fragments end, but for the last one."""
        return np.cumsum([len(self._past[f][0]) for f in sorted(self._past)])[:-1]

    def _read(self) -> None:
        for core in self.journals.values():
            for data in core.take():
                self._happened(journal.decode(data))

    def _happened(self, entry: journal.Entry) -> None:
        fragment, past = entry.fragment, self._past[entry.fragment]
        factor = np.float32(entry.factor)
        if entry.change == journal.CLOSED:
            if (total := self._sums.pop(fragment, None)) is not None:
                past.append(past[-1] - factor * total)
            return
        self._look_at(entry, len(past) - 1)
        gradient = factor * np.frombuffer(entry.payload, "<f4")
        if entry.change == journal.APPLIED:
            past.append(past[-1] - gradient)
        else:
            known = self._sums.get(fragment)
            self._sums[fragment] = gradient if known is None else known + gradient

    def _look_at(self, entry: journal.Entry, version: int) -> None:
        life, fragment = (entry.replica, entry.incarnation), entry.fragment
        given, kept = self._given[*life, entry.push][fragment], self._kept.get((*life, fragment))
        is_whole = (entry.base_version, entry.payload) == given
        if kept is not None and entry.payload == kept[1] and not is_whole:
            given, self.repeated = kept, self.repeated + 1
        self._kept[*life, fragment] = given
        base = given[0]
        where = f"push {entry.push} of {life[0]}.{life[1]} at fragment {fragment}"
        if entry.base_version != base:
            self._wrong.append(f"{where} is of version {base}, not {entry.base_version}")
        stale = max(0, version - base)
        if entry.staleness != stale:
            self._wrong.append(f"{where} is {stale} updates stale, not {entry.staleness}")
        weight = entry.weight if entry.change == journal.ACCUMULATED else 1.0
        scale = twins.factor(1.0 / self._n, weight=weight, staleness=stale, power=self._power)
        if np.float32(entry.factor) != scale:
            self._wrong.append(f"{where}, {stale} stale, is scaled by {entry.factor}, not {scale}")
        self.seen += 1
        self.stale += stale > 1

    def look(self) -> Iterator[str]:
        self._read()
        yield from self._wrong
        self._wrong.clear()


def read(seed: int, plan: str, policy: Policy) -> World:
    """A world of the oracle's job whose journals are read; gradients are scaled as they may be."""

    class Ours(StalenessIsTrue):
        journals: ClassVar[dict[AckGate, _core.Journal]] = {}

    drawn = swarm.world(seed, plan, policy=policy)
    drawn.loop.close()  # only its job and its settings are wanted
    made = World(drawn.job, drawn.settings, checks=(Ours,))

    def gate_of(index: int) -> AckGate:
        core = _core.Journal(size_max=SIZE_MAX)
        gate = AckGate("memory", core)
        Ours.journals[gate] = core
        return gate

    made.gate_of = gate_of
    return made


def divided(seed: int, plan: str) -> World:
    """A world whose gradients are divided by their staleness, one by one or in rounds."""
    rng = random.Random(f"{seed}/divided")
    policy = StalenessAware(
        n=rng.choice((None, None, 1, 2)),
        power=rng.choice((0.5, 1.0, 2.0)),
        combine=rng.choice(("mean", "sum")),
        overlap=rng.random() < 0.5,
    )
    return read(seed, plan, policy)


def repeating(seed: int, plan: str) -> World:
    """A world in which half of all gradients are not sent, and the last one is taken again."""
    return read(seed, plan, BFASGD(c_fetch=1.0, c_push=1.0, deviation=1.0))


def check_of(world: World) -> StalenessIsTrue:
    """What it has seen."""
    found = [one for one in world.checks._checks if isinstance(one, StalenessIsTrue)]
    return found[0]
