"""Policies: when a replica pushes and fetches, who waits for whom, how pushes combine.

A policy is a frozen description. Each published system is one small module that says its
equations, its source and its deviations; :data:`POLICIES` is the table of them. All of it is pure:
no asyncio, clock, random or I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydownpour.policy.base import Actions, Admission, Policy, PushInfo
from pydownpour.policy.downpour import Downpour

POLICIES: dict[str, type[Policy]] = {"downpour": Downpour}
"""Wire name -> policy."""

__all__ = ["POLICIES", "Actions", "Admission", "Downpour", "Policy", "PushInfo", "from_wire"]


def from_wire(settings: Mapping[str, object]) -> Policy:
    """The policy that ``Policy.to_wire`` described.

    Raises:
        ConfigError: an unknown name or setting.
    """
    from pydownpour.policy.base import policy_from

    return policy_from(POLICIES, settings)
