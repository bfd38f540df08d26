"""What a push carries, and how a replica's own copy moves: names of what trainer and core do."""

from __future__ import annotations

import dataclasses
from typing import Final, Protocol, final

PAYLOADS: Final = {
    "accrued": "the sum of the gradients since the last push",
    "delta": "base - local: what the replica's own steps have changed since the last push, with "
    "the sign of a gradient, so that an optimizer that descends goes where the replica went; the "
    "base is what the copy was when that push or the last fetch had ended, and is used once",
}
"""Kernels that make a push's payload, by the names a ReplicaRule has for them."""
LANDS: Final = {
    "replace": "what was fetched takes the place of the replica's copy",
    "redo": "what was fetched, then the copy's own steps since it was asked for; no push of the "
    "replica is on its way meanwhile, so that none is in both, and none in neither",
    "keep": "local += fetched - base: what the copy gained by itself since the last fetch stays; "
    "where pushes are deltas, what no push carries yet",
}
"""How a fetch lands; base is what the last one brought."""


class Payload(Protocol):
    """What of a replica's half is about its copy and its pushes; as ``ReplicaRule`` has them."""

    @property
    def payload(self) -> str: ...

    @property
    def land(self) -> str: ...

    @property
    def local_rate(self) -> float | None: ...

    @property
    def keeps_state(self) -> bool: ...


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Accrued:
    """A push carries the sum of the gradients since the last one.

    Attributes:
        local_rate: Step of the replica's own copy after each gradient, >= 0. None: the optimizer's
            lr if that is plain SGD, else 0.
        land: How a fetch lands; one of :data:`LANDS`.
    """

    local_rate: float | None = 0.0
    land: str = "replace"
    payload: str = dataclasses.field(default="accrued", init=False)
    keeps_state: bool = dataclasses.field(default=True, init=False)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """The replica trains its own copy by itself, and a push carries how far it went.

    Attributes:
        keeps_state: What its optimizer keeps (momentum, say) goes on behind a push. False: it
            begins anew.
    """

    keeps_state: bool = True
    local_rate: float | None = dataclasses.field(default=0.0, init=False)
    land: str = dataclasses.field(default="keep", init=False)
    payload: str = dataclasses.field(default="delta", init=False)
