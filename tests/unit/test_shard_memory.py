"""What a shard reserves for its connections, and what its acknowledgements are worth."""

from __future__ import annotations

import pytest

from pydownpour import limits
from pydownpour.errors import ConfigError, LimitExceeded
from pydownpour.layout import partition
from pydownpour.optimizers import SGD
from pydownpour.policy import Policy
from pydownpour.policy.downpour import Downpour
from pydownpour.shard.gate import AckGate
from pydownpour.shard.state import Shard
from pydownpour.wire.messages import LEVELS, Level, ShardAssigned


def shard(
    length: int,
    durability: Level = "memory",
    gate: AckGate | None = None,
    policy: Policy | None = None,
) -> Shard:
    cut = partition(length, 1)
    return Shard(
        gate=gate,
        assigned=ShardAssigned(
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
            policy=(policy or Downpour()).to_wire(),
            heartbeat_s=1.0,
            job="test",
            durability=durability,
        ),
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


@pytest.mark.parametrize("asked", LEVELS)
@pytest.mark.parametrize("has", LEVELS)
def test_a_shard_that_cannot_keep_what_the_job_asks_for_never_serves(
    asked: Level, has: Level
) -> None:
    if LEVELS.index(has) < LEVELS.index(asked):
        with pytest.raises(ConfigError, match=f"asks for the level {asked} .* has {has}"):
            shard(1000, asked, AckGate(has))
    else:
        assert shard(1000, asked, AckGate(has)).statistics().durability == has
