"""What a shard reserves for its connections: enough for a fragment each, and no more in all."""

from __future__ import annotations

import pytest

from pydownpour import limits
from pydownpour.errors import LimitExceeded
from pydownpour.layout import partition
from pydownpour.optimizers import SGD
from pydownpour.policy.downpour import Downpour
from pydownpour.shard.state import Shard
from pydownpour.wire.messages import ShardAssigned


def shard(length: int) -> Shard:
    cut = partition(length, 1)
    return Shard(
        ShardAssigned(
            index=0,
            incarnation=1,
            secret="",
            key="00" * 32,
            shards=1,
            epoch=1,
            start=0,
            len=length,
            stripe_len=cut.stripe_len,
            fragment_len=cut.fragment_len,
            fingerprint="",
            optimizer=SGD(lr=1.0).parts(),
            policy=Downpour().to_wire(),
            heartbeat_s=1.0,
            job="test",
        )
    )


def test_connections_of_a_large_shard_are_bounded_by_their_memory() -> None:
    large = shard(1 << 20)
    size = large.assigned.fragment_len * 8  # float64 is the widest
    inlets = [large.inlet() for _ in range(limits.DEFAULT.in_flight_size_max // size)]
    assert large.reserved_bytes == len(inlets) * size
    with pytest.raises(LimitExceeded, match="in_flight_size_max"):
        large.inlet()
    large.release_inlet()
    assert large.inlet() is not None


def test_a_small_shard_has_room_for_as_many_as_may_connect() -> None:
    small = shard(1000)
    inlets = [small.inlet() for _ in range(limits.DEFAULT.connections_max)]
    assert small.reserved_bytes == len(inlets) * small.assigned.fragment_len * 8
