"""A heartbeat is as long after a year as after a second, however many pushed, and however late."""

from __future__ import annotations

import random
from typing import Any

from pydownpour import limits
from pydownpour.histogram import BUCKETS, HistogramEntry
from pydownpour.shard.state import PushTally, Refusals, Shard
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Heartbeat,
    RefusedEntry,
    ReplicaStats,
    ShardAssigned,
    ShardStats,
    WaitEntry,
    WaitsEntry,
)

HEARTBEAT_SIZE_MAX = 24 * limits.KIB
"""What one takes when every counter is at its end."""
FULL = HistogramEntry(
    count=limits.COUNT_MAX,
    sum=limits.COUNT_MAX,
    max=limits.COUNT_MAX,
    buckets=[limits.COUNT_MAX] * BUCKETS,
)


CONTROL = "\x01"
"""Takes six bytes of JSON."""


def make_shard() -> Shard:
    return Shard(
        ShardAssigned(
            index=0, incarnation=1, secret="", key="00" * 32, shards=1, epoch=1, start=0, len=64,
            stripe_len=16, fragment_len=16,
            fingerprint="f", optimizer=[("sgd", {"lr": 1.0})], policy={"name": "downpour"},
            heartbeat_s=0.5, job="sample",
        )
    )  # fmt: skip


def full(kind: type[messages.Message]) -> dict[str, Any]:
    """All counters of a message at their end."""
    counters = ("Count", "Word")
    return {n: limits.COUNT_MAX for n, of in kind.__annotations__.items() if of in counters}


def size(beat: Heartbeat) -> int:
    return len(messages.encode(beat))


def test_a_shard_s_heartbeat_does_not_grow_with_what_was_pushed_nor_with_who_pushed() -> None:
    shard, rng = make_shard(), random.Random(1)
    for _ in range(20_000):
        staleness = int(2 ** rng.uniform(0, 40))
        shard.staleness.add(staleness)
        shard.count_refused(rng.randrange(1, 2**32), 1, PushTally())
    stats = shard.statistics()
    assert size(Heartbeat(role="shard", id=0, shard=stats)) < 4 * limits.KIB
    assert stats.records_refused == 20_000
    assert stats.staleness.count == 20_000


def test_no_heartbeat_is_longer_than_its_bound_when_every_counter_is_at_its_end() -> None:
    most = [RefusedEntry(replica=2**32 - 1, records=limits.COUNT_MAX)] * limits.REFUSERS_TOLD_MAX
    wait = WaitEntry(
        limits.COUNT_MAX, 2**32 - 1, [2**32 - 1] * limits.WAITED_FOR_NAMED_MAX,
        limits.SECONDS_MAX - 0.001, CONTROL * limits.WAIT_WORDS_LEN_MAX,
    )  # fmt: skip
    sums = [(2**32 - 1, limits.SECONDS_MAX - 0.001)] * limits.WAITS_TOLD_MAX
    waits = WaitsEntry(
        pairs=[(2**32 - 1, *one) for one in sums], waiters=sums, waited_for=sums,
        open=[wait] * limits.WAITS_OPEN_TOLD_MAX, ended=[wait] * limits.WAITS_ENDED_TOLD_MAX,
        **{name: limits.COUNT_MAX for name in ("count", "open_count")},
    )  # fmt: skip
    memory = dict.fromkeys(make_shard().store.memory(), limits.COUNT_MAX)
    long = "\u20ac" * limits.WORDS_LEN_MAX
    replica = ReplicaStats(**full(ReplicaStats), staleness=FULL, waiting_for=long)
    shard = ShardStats(
        **full(ShardStats), staleness=FULL, refused_by=most, memory=memory, waits=waits
    )
    beats = (
        Heartbeat(role="replica", id=2**32 - 1, incarnation=2**32 - 1, replica=replica),
        Heartbeat(role="shard", id=2**32 - 1, shard=shard),
    )
    for beat in beats:
        assert size(beat) < HEARTBEAT_SIZE_MAX < limits.JSON_SIZE_MAX


def test_the_worst_refused_replicas_are_named_and_all_others_counted() -> None:
    refusals = Refusals()
    for replica in range(1, limits.DEFAULT.refusers_kept_max + 500):
        refusals.add(replica, 1)
    refusals.add(7, 5)
    refusals.add(3, 2)
    most = [(one.replica, one.records) for one in refusals.most()]
    assert most[:3] == [(7, 6), (3, 3), (1, 1)]
    assert len(most) == limits.REFUSERS_TOLD_MAX
    assert refusals.records == limits.DEFAULT.refusers_kept_max + 499 + 7
