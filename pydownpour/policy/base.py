"""What every policy answers, and the values the answers are made of."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, final

from pydownpour.errors import ConfigError


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Actions:
    """What a replica does after a step: push what it has accrued, fetch, neither or both."""

    push: bool
    fetch: bool


@final
@dataclasses.dataclass(frozen=True, slots=True)
class PushInfo:
    """What a shard knows of a push when it decides: all from its announcement.

    Attributes:
        replica: Who pushes.
        clock: Steps that replica has finished.
        samples: Samples the gradient was summed or averaged over.
        norm: L2 norm of the whole push over all shards, as the replica measured it.
    """

    replica: int
    clock: int
    samples: int
    norm: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """A shard's decision about a push, with the reason in words."""

    accept: bool
    scale: float = 1.0
    reason: str = ""


class Policy(abc.ABC):
    """A frozen description of one published system. Subclasses are frozen dataclasses."""

    name: ClassVar[str]

    @abc.abstractmethod
    def after_step(self, clock: int) -> Actions:
        """What to do after step number ``clock`` (the first step is 0)."""

    @abc.abstractmethod
    def admit(self, push: PushInfo) -> Admission:
        """Whether a shard takes a push, and by what factor it scales it."""

    @abc.abstractmethod
    def may_lease(self, replica: int, members: tuple[int, ...], samples_done: int) -> str:
        """Why a replica may not have work now and for whom it waits; empty if it may.

        Args:
            replica: Who asks.
            members: All live replicas, ascending.
            samples_done: Samples completed by the job so far.
        """

    def to_wire(self) -> dict[str, Any]:
        """JSON form: the settings plus the policy's name."""
        return {"name": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload]


def policy_from(table: Mapping[str, type[Policy]], settings: Mapping[str, object]) -> Policy:
    """Look a policy up in a table and build it from its JSON form."""
    values = dict(settings)
    name = values.pop("name", None)
    kind = table.get(str(name))
    if kind is None:
        raise ConfigError(f"unknown policy {name!r}; known are {', '.join(sorted(table))}")
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := values.keys() - known:
        raise ConfigError(f"policy {name}: unknown settings {', '.join(sorted(unknown))}")
    return kind(**values)
