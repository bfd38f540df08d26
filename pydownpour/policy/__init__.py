"""Policies: when a replica pushes and fetches, who waits for whom, how pushes combine.

All of it is pure: no asyncio, clock, random or I/O. docs/policies.md shows how to write one.

    base.py        what a policy is, and what its two halves answer
    pieces/        what policies are composed of; each decides one thing
    pieces/scale.py       what a gradient is multiplied by, and what it weighs in a round
    pieces/payload.py     what a push carries, and how a replica's copy moves
    pieces/schedule.py    when a replica pushes and fetches; who has work before the others
    pieces/gate.py        what a replica waits for after a step, and a replica's whole half
    pieces/combine.py     what becomes of pushes at a shard: a shard's whole half
    reductions/    who sends what to whom, where replicas add up among themselves; by name
    reductions/base.py    a member's place in its group, as data
    reductions/tree.py    a binary tree: one member has the sum of all
    reductions/ring.py    a ring: every member has the sum of a share
    phases.py      policies one after the other, as a job may declare them
    check.py       whether one can work, said before a job begins; back from the wire form
    table.py       those that ship, by name
    averaging.py   rounds of deltas: what the three that average have in common
    bfasgd.py      B-FASGD: pushes and fetches by chance, where likely to be worth their bytes
    block_momentum.py     replicas train alone for a block; the mean of how far is filtered (BMUF)
    diloco.py      the same with AdamW inside, and Nesterov momentum outside
    downpour.py    Downpour SGD: asynchronous, no barrier, no gate
    hard_sync.py   rounds: every live replica gives one gradient, their mean is one update
    model_averaging.py    replicas train alone for a block, and go on from their mean
    softsync.py    n-softsync: every few gradients are one update, and nobody waits
    staleness_aware.py    the same, each gradient divided by its staleness
    ssp.py         stale synchronous parallel: wait only for who is more than a slack behind
    strom.py       Strom: what is not yet large enough to be said waits at the replica

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
    Reduction,
    Refuse,
    ReplicaRule,
    ShardRule,
    Wait,
)
from pydownpour.policy.check import (
    UsersPolicies,
    check,
    check_codec,
    check_known,
    check_together,
    from_wire,
    is_ours,
)
from pydownpour.policy.pieces.scale import Scale
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
    "Reduction",
    "Refuse",
    "ReplicaRule",
    "Scale",
    "ShardRule",
    "UsersPolicies",
    "Wait",
    "check",
    "check_codec",
    "check_known",
    "check_together",
    "from_wire",
    "is_ours",
]
