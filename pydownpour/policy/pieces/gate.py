"""What a replica waits for after a step; and a replica's whole half, which ends at a gate."""

from __future__ import annotations

import dataclasses
from typing import Protocol, final

from pydownpour.policy.base import Actions, ClusterView, ReplicaRule
from pydownpour.policy.pieces.payload import Payload
from pydownpour.policy.pieces.schedule import Schedule, Turn


class Gate(Protocol):
    """Says after each step what has to have happened before the next.

    Attributes:
        in_flight: Pushes that may be without an answer when the next is sent, >= 1.
    """

    @property
    def in_flight(self) -> int: ...

    def after(self, turn: Turn, clock: int, view: ClusterView) -> Actions:
        """What to do when it is time for ``turn``, behind step number ``clock``."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RunFree:
    """Nobody waits for others.

    Attributes:
        in_flight: As of :class:`Gate`.
        overlap: Push and fetch in the background. False: each is waited for before the next step.
    """

    in_flight: int = 1
    overlap: bool = True

    def after(self, turn: Turn, clock: int, view: ClusterView) -> Actions:
        """What it is time for, at once."""
        again, wait = turn.again, not self.overlap
        return Actions(push=turn.push, fetch=turn.fetch, wait=wait, again=again)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Barrier:
    """Each waits, at every shard, until the round is closed that its gradient is for."""

    in_flight: int = 1

    def after(self, turn: Turn, clock: int, view: ClusterView) -> Actions:
        """What it is time for, and behind a push wait for the round."""
        push, fetch = turn.push, turn.fetch
        return Actions(push=push, fetch=fetch, wait=push, after_round=push)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Slack:
    """Nobody computes from a copy that lacks what the slowest finished more than a slack ago.

    Behind c finished steps a copy must hold every live replica's updates of its first ``c - slack``
    steps. One that may not is fetched anew, and each shard answers when the slowest is so far.

    Attributes:
        slack: Steps, >= 0. None: never wait.
        in_flight: As of :class:`Gate`.
    """

    slack: int | None
    in_flight: int = 1

    def after(self, turn: Turn, clock: int, view: ClusterView) -> Actions:
        """What it is time for; and wait for a fetch if the copy would be too old."""
        if self.slack is None or view.copy_clock >= (oldest := clock + 1 - self.slack):
            return Actions(push=turn.push, fetch=turn.fetch)
        return Actions(push=turn.push, fetch=True, wait=True, least_clock=oldest)


@final
class Stepping(ReplicaRule):
    """A replica's half: it steps after a schedule, pushes a payload, and waits at a gate."""

    def __init__(self, schedule: Schedule, payload: Payload, gate: Gate) -> None:
        self._schedule, self._gate = schedule, gate
        self.payload, self.land = payload.payload, payload.land
        self.local_rate, self.keeps_state = payload.local_rate, payload.keeps_state
        self.in_flight = gate.in_flight
        self.draws = schedule.draws

    def after_step(self, clock: int, view: ClusterView) -> Actions:
        return self._gate.after(self._schedule.turn(clock, view), clock, view)

    def after_flush(self, clock: int, view: ClusterView) -> Actions:
        return self._gate.after(Turn(push=True, fetch=self.trains), clock, view)
