"""Policies: when a replica pushes and fetches, who waits for whom, how pushes combine.

All of it is pure: no asyncio, clock, random or I/O. docs/policies.md shows how to write one.

    base.py        what a policy is, and what its two halves answer
    check.py       whether one can work, said before a job begins; back from the wire form
    table.py       those that ship, by name
    downpour.py    Downpour SGD: asynchronous, no barrier, no gate
    hard_sync.py   rounds: every live replica gives one gradient, their mean is one update

Each published system is one small module that says its equations, its source and its deviations.
"""

from __future__ import annotations

from pydownpour.policy.base import (
    Accumulate,
    Actions,
    Apply,
    ClusterView,
    Decision,
    NotYet,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    Scale,
    ShardRule,
    Wait,
)
from pydownpour.policy.check import UsersPolicy, check, from_wire, is_ours
from pydownpour.policy.table import POLICIES

__all__ = [
    "POLICIES",
    "Accumulate",
    "Actions",
    "Apply",
    "ClusterView",
    "Decision",
    "NotYet",
    "Policy",
    "PushInfo",
    "Refuse",
    "ReplicaRule",
    "Scale",
    "ShardRule",
    "UsersPolicy",
    "Wait",
    "check",
    "from_wire",
    "is_ours",
]
