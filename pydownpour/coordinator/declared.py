"""What the coordinator needs of a job, whatever class declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from pydownpour.codecs import Codec
from pydownpour.layout import Layout
from pydownpour.optimizers import Part
from pydownpour.policy.phases import Declared as DeclaredPolicy
from pydownpour.wire.messages import Level, WorkEntry


class DeclaredWork(Protocol):
    """The samples of a job, by their numbers 0 .. len - 1."""

    @property
    def len(self) -> int:
        """Samples in a pass."""

    @property
    def unit(self) -> int:
        """Samples in a unit; the last of a pass may have fewer."""

    @property
    def passes(self) -> int:
        """How often each sample comes."""

    @property
    def shuffle(self) -> bool:
        """Whether each pass has its own order."""

    @property
    def seed(self) -> int:
        """What the passes' orders are drawn from."""

    @property
    def backup(self) -> float:
        """How many times longer than usual a unit is held before it is lent once more."""


class Declared(Protocol):
    """A job as a user declared it."""

    @property
    def name(self) -> str:
        """Begins the name of the run folder."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The arrays that the shards begin with."""

    @property
    def layout(self) -> Layout:
        """Their names, shapes and places."""

    @property
    def optimizer(self) -> Part | None:
        """What shards do with gradients, or replicas where they train by themselves.

        None: there the users' loops step.
        """

    @property
    def shard_optimizer(self) -> Part:
        """What shards do with what comes: the same, or with deltas what the policy says."""

    @property
    def policy(self) -> DeclaredPolicy:
        """When replicas push and fetch; maybe one policy after the other."""

    @property
    def data(self) -> DeclaredWork | None:
        """The work, or None when replicas find their own."""

    @property
    def on_error(self) -> Literal["stop", "skip"]:
        """What to do about a unit at which the user's code raised again and again."""

    @property
    def wire_dtype(self) -> str:
        """What gradients travel as."""

    @property
    def max_norm(self) -> float | None:
        """The L2 norm above which no push is applied."""

    @property
    def codec(self) -> Codec | None:
        """How they are encoded; None: not at all."""

    @property
    def durability(self) -> Level:
        """What an acknowledged push survives, at least."""

    @property
    def evaluation(self) -> Callable[[dict[str, Any]], Any] | None:
        """The user's evaluate function."""


def work_entry(work: DeclaredWork | None) -> WorkEntry | None:
    """The work in the form messages carry it."""
    if work is None:
        return None
    return WorkEntry(
        len=work.len,
        unit=work.unit,
        passes=work.passes,
        shuffle=work.shuffle,
        seed=work.seed,
        backup=work.backup,
    )
