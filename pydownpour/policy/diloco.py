"""DiLoCo: replicas train alone for hundreds of steps; Nesterov momentum on the mean of how far.

Douillard et al. 2023. k workers repeat, with H steps of AdamW inside::

    theta_i <- theta;  H steps
    g       <- theta - (1/k) sum of theta_i          the outer gradient
    b       <- momentum * b + g
    theta   <- theta - rate * (g + momentum * b)     as in PyTorch

It is block momentum with the exact Nesterov form (``policy/block_momentum.py``) to the bit; what
differs are the numbers, that the inner optimizer is AdamW (the job's ``optimizer``), and that its
state goes on from block to block. With one replica, rate 1 and momentum 0 it is local training.

Deviations: those of ``policy/averaging.py``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

from pydownpour.optimizers import Nesterov
from pydownpour.policy.averaging import Averaging


@final
@dataclasses.dataclass(frozen=True)
class DiLoCo(Averaging):
    """DiLoCo (Douillard et al. 2023): long blocks, and an outer step with Nesterov momentum.

    Args:
        every: Steps in a block, H in the paper, >= 1.
        rate: Of the outer step, > 0. 0.7 is the authors' and OpenDiLoCo's.
        momentum: Of the outer step, 0 <= momentum < 1.
        combine: "mean" of a round's deltas, or their "sum".
        by_samples: Weigh each replica by its samples. False: each counts the same.
        replicas: The first round waits for so many replicas, >= 1.
        keeps_state: The state of a replica's own optimizer goes on from block to block.

    Raises:
        ConfigError: a setting is out of range.
    """

    every: int = 500
    rate: float = 0.7
    momentum: float = 0.9
    name: ClassVar[str] = "diloco"

    def __post_init__(self) -> None:
        super().__post_init__()
        outer = self.outer()
        object.__setattr__(self, "rate", outer.lr)
        object.__setattr__(self, "momentum", outer.momentum)

    def outer(self) -> Nesterov:
        """The outer step, which checks its own numbers."""
        return Nesterov(lr=self.rate, momentum=self.momentum)
