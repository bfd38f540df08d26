"""Names for the numbers that identify things, so that a type checker tells them apart."""

from __future__ import annotations

from typing import NewType

ReplicaId = NewType("ReplicaId", int)
"""Given by the coordinator at the first join, >= 1, never reused in a job."""

Incarnation = NewType("Incarnation", int)
"""Restart count of one replica id, >= 1: a newer one fences the older."""

ShardIndex = NewType("ShardIndex", int)
"""0 .. shards-1, in the order of the elements they own."""

Epoch = NewType("Epoch", int)
"""Number of a shard configuration, >= 1."""

Seq = NewType("Seq", int)
"""A replica's record number at one shard, >= 1, one per fragment record."""

Lsn = NewType("Lsn", int)
"""A shard's log sequence number: records applied so far."""

UnitId = NewType("UnitId", int)
"""A work unit's number within a pass."""

LeaseId = NewType("LeaseId", int)
"""Names one lending of one unit; completing needs it."""
