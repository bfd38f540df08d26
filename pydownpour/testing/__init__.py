"""For tests of what is built on pydownpour, and of anything else that speaks TCP.

    proxy.py   FaultProxy: a network that misbehaves, in front of a real socket
    faults.py  Faults: how, for one direction
    relay.py   one connection through the proxy

A whole job under faults on virtual time is ``dp.simulate(job, faults="swarm")``.
"""

from pydownpour.testing.faults import Faults
from pydownpour.testing.proxy import FaultProxy, ProxyStatistics

__all__ = ["FaultProxy", "Faults", "ProxyStatistics"]
