"""The policies that ship, by the names they have on the wire."""

from __future__ import annotations

from pydownpour.policy.base import Policy
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.block_momentum import BlockMomentum
from pydownpour.policy.diloco import DiLoCo
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.model_averaging import ModelAveraging
from pydownpour.policy.softsync import Softsync
from pydownpour.policy.ssp import SSP
from pydownpour.policy.staleness_aware import StalenessAware
from pydownpour.policy.strom import Strom

_OURS: tuple[type[Policy], ...] = (
    BFASGD,
    BlockMomentum,
    DiLoCo,
    Downpour,
    HardSync,
    ModelAveraging,
    SSP,
    Strom,
    Softsync,
    StalenessAware,
)
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _OURS}
"""What every process can build by itself from a name and settings."""
