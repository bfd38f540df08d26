"""Block momentum (BMUF): the mean of how far replicas went in a block is filtered by a momentum.

Chen and Huo 2016, blockwise model-update filtering; CNTK's BlockMomentumSGD. N workers train a
block each from the same W_g, and with G(t) = mean of their models - W_g(t-1)::

    Delta(t) = eta * Delta(t-1) + zeta * G(t)
    W(t)     = W(t-1) + Delta(t)
    classical:  W_g(t) = W(t)
    Nesterov:   W_g(t) = W(t) + eta * Delta(t)    the next block starts from the look-ahead

A mean of N workers moves as far as one does, where N blocks one after the other would have moved N
times as far. In the long run each G counts zeta / (1 - eta) times: for that to be N, eta = 1 - 1/N
and zeta = 1, at the rate that suits one worker. Those are Microsoft's defaults, and here, with
``replicas=N``.

Three traps, and where we stand:
    * CNTK multiplies the *sum* of the deltas by (1 - eta) * eps; with eta = 1 - 1/N that is
      zeta = eps on the mean. Here zeta (``rate``) is on the mean.
    * There are two Nesterovs. The exact one is above, W_g <- W_g + zeta * G + eta * Delta, which is
      that of PyTorch and of DiLoCo. CNTK's code (and fairseq's) takes its look-ahead for W the next
      time, W_g <- W_g + (1 + eta) * Delta: ``nesterov="cntk"``.
    * The workers' own momentum begins anew with each block (``keeps_state=False``): otherwise
      CNTK often saw it diverge.

Deviations, beside those of ``policy/averaging.py``: the parameters that shards hold, and that are
kept and evaluated, are W_g(t), with Nesterov the look-ahead; the paper's final model is W(t).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, final

from pydownpour import config
from pydownpour.config import fraction, positive
from pydownpour.errors import ConfigError
from pydownpour.optimizers import Momentum, Nesterov
from pydownpour.policy.averaging import Averaging


@final
@dataclasses.dataclass(frozen=True)
class BlockMomentum(Averaging):
    """Blockwise model-update filtering (Chen and Huo 2016).

    Args:
        every: Steps in a block, >= 1.
        momentum: Block momentum, eta in the paper, 0 <= momentum < 1. None: 1 - 1 / replicas.
        rate: Block learning rate on the mean, zeta in the paper, > 0.
        nesterov: "exact", "no" (the classical form) or "cntk", as above.
        combine: "mean" of a round's deltas, or their "sum".
        by_samples: Weigh each replica by its samples. False: each counts the same.
        replicas: How many there are, N in the paper, >= 1; the first round waits for them.
        keeps_state: The state of a replica's own optimizer goes on from block to block.

    Raises:
        ConfigError: a setting is out of range.
    """

    momentum: float | None = None
    rate: float = 1.0
    nesterov: Literal["exact", "no", "cntk"] = "exact"
    keeps_state: bool = False
    name: ClassVar[str] = "blockmomentum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov not in ("exact", "no", "cntk"):
            raise ConfigError(f"nesterov={self.nesterov!r}: choose exact, no or cntk")
        rate = config.real("rate", self.rate, positive, "it must be above 0")
        object.__setattr__(self, "rate", rate)
        if self.momentum is not None:
            words = "it must be at least 0 and below 1"
            momentum = config.real("momentum", self.momentum, fraction, words)
            object.__setattr__(self, "momentum", momentum)

    @property
    def eta(self) -> float:
        """The block momentum, whoever chose it."""
        return 1.0 - 1.0 / self.replicas if self.momentum is None else self.momentum

    def outer(self) -> Momentum | Nesterov:
        """The filter, as momentum on the deltas: b = -Delta / zeta."""
        if self.nesterov == "exact":
            return Nesterov(lr=self.rate, momentum=self.eta)
        ahead = 1.0 + self.eta if self.nesterov == "cntk" else 1.0
        return Momentum(lr=self.rate * ahead, momentum=self.eta)
