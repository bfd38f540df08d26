"""What a simulation is run with."""

from __future__ import annotations

import dataclasses
import re
from typing import Final, final

from pydownpour import config
from pydownpour.errors import ConfigError
from pydownpour.limits import DEFAULT, Limits
from pydownpour.policy import POLICIES, Policy
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import FaultPlan
from pydownpour.sim.machines.host import LinkModel

HOST: Final = re.compile(r"coordinator|(shard|replica)(-\d+)?")


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """What a simulation is run with; equal settings and code give equal traces.

    Attributes:
        seed: Of everything random.
        shards, replicas: How many of each.
        faults: What goes wrong, and when.
        link: Every host's network, but for
        own_links: those of some hosts or roles: ``(("replica-3", LinkModel(...)), ...)``.
        compute: What a step costs.
        proxied: Share of replicas whose way out does not pass Upgrade on: they POST and GET.
        policies: Those that are asked for while it runs, if its faults include that.
        timing_only: Compute nothing; push a gradient of zeros.
        limits: What all its processes wait for and keep at most: small worlds meet the edges that
            large ones would.
        events_max, virtual_s_max: Budgets: a run over them failed.
    """

    seed: int = 0
    shards: int = 2
    replicas: int = 4
    faults: FaultPlan = dataclasses.field(default_factory=FaultPlan)
    link: LinkModel = dataclasses.field(default_factory=LinkModel)
    own_links: tuple[tuple[str, LinkModel], ...] = ()
    compute: ComputeModel = dataclasses.field(default_factory=ComputeModel)
    proxied: float = 0.0
    policies: tuple[Policy, ...] = tuple(kind() for kind in POLICIES.values())
    timing_only: bool = False
    limits: Limits = DEFAULT
    events_max: int = 200_000_000
    virtual_s_max: float = 1e6

    def __post_init__(self) -> None:
        for field, least in (("shards", 1), ("replicas", 1), ("seed", 0), ("events_max", 1)):
            _ = config.whole(field, getattr(self, field), least=least)
        _ = config.real("virtual_s_max", self.virtual_s_max, config.positive, "it must be above 0")
        for name, _ in self.own_links:
            if not HOST.fullmatch(name):
                raise ConfigError(
                    f"links: no host is called {name!r}; there are coordinator, shard-0 and so on, "
                    "replica-0 and so on, and the roles shard and replica"
                )

    def link_of(self, host: str) -> LinkModel:
        """Its own, its role's, or everybody's."""
        own = dict(self.own_links)
        return own.get(host) or own.get(host.partition("-")[0]) or self.link
