"""Model averaging: replicas train alone for some steps, and go on from the mean of their models.

As in Su and Chen 2015 and much before, and since then called local SGD. N replicas repeat::

    x_i <- x;  every steps of the own optimizer
    x   <- (1/N) sum of x_i      =  x - 1.0 * (1/N) sum of (x - x_i)

With ``every=1`` and plain SGD it is synchronous SGD. On data that every replica draws alike the
interval hardly matters; where each has data of its own kind, accuracy falls with it. Each step of
the mean moves as far as one replica does, so the rate that suits N replicas is up to N times that
of one (Kaldi's convention); or see :class:`~pydownpour.BlockMomentum`.

Deviations, beside those of ``policy/averaging.py``: ``combine="sum"`` adds deltas up instead, which
is that factor N.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from pydownpour.optimizers import SGD, Part
from pydownpour.policy.averaging import Averaging


@final
@dataclasses.dataclass(frozen=True)
class ModelAveraging(Averaging):
    """Model averaging, or local SGD: train alone for ``every`` steps, go on from the mean.

    Args:
        every: Steps between averagings, >= 1. In the paper few: 10 to 20 is acceptable.
        combine: "mean" of a round's deltas, or their "sum".
        by_samples: Weigh each replica by its samples. False: each counts the same.
        replicas: The first round waits for so many replicas, >= 1.
        keeps_state: The state of a replica's own optimizer goes on from block to block.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "modelaveraging"

    def outer(self) -> Part:
        """Go all of the way."""
        return SGD(lr=1.0)
