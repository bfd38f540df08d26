"""What a push carries, and how a replica's own copy moves: names of what trainer and core do."""

from __future__ import annotations

import dataclasses
from typing import Final, final

PAYLOADS: Final = {"accrued": "the sum of the gradients since the last push"}
"""Kernels that make a push's payload, by the names a ReplicaRule has for them."""
LANDS: Final = {
    "replace": "what was fetched takes the place of the replica's copy",
    "redo": "what was fetched, then the copy's own steps since it was asked for; no push of the "
    "replica is on its way meanwhile, so that none is in both, and none in neither",
    "keep": "local += fetched - base: what the copy gained by itself since the last fetch stays",
}
"""How a fetch lands; base is what the last one brought."""


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
