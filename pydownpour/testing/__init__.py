"""For tests of what is built on pydownpour, and of anything else that speaks TCP.

    proxy.py     FaultProxy: a network that misbehaves, in front of a real socket
    faults.py    Faults: how, for one direction
    relay.py     one connection through the proxy
    policies.py  check_policy: what holds for every policy, checked for one of your own

A whole job under faults on virtual time is ``dp.simulate(job, faults="swarm")``; ``Dose`` and
``FaultPlan`` make faults of your own, ``Check`` is what a run must hold beyond the table
``CHECKS``, and ``audit_report`` says what is wrong with the report of any run, simulated or real.
"""

from pydownpour.coordinator.report import audit_report
from pydownpour.sim.checks.base import Check
from pydownpour.sim.checks.table import CHECKS
from pydownpour.sim.faults.kinds import FAULTS
from pydownpour.sim.faults.plans import PLANS, Dose, FaultPlan
from pydownpour.testing.faults import Faults
from pydownpour.testing.policies import check_policy
from pydownpour.testing.proxy import FaultProxy, ProxyStatistics

__all__ = [
    "CHECKS",
    "FAULTS",
    "PLANS",
    "Check",
    "Dose",
    "FaultPlan",
    "FaultProxy",
    "Faults",
    "ProxyStatistics",
    "audit_report",
    "check_policy",
]
