"""What a replica holds of its parameters: counted in buffers, while it works."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.limits import Limits
from pydownpour.policy import Policy
from tests.e2e.stage import Stage, ones

LEN = 300_000
SIZE = 4 * LEN
OURS = str(Path(dp.__file__).parent / "replica")
SMALL = 1.02
"""Headers, versions and a fragment of scratch come on top."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start(8)
    yield
    tracemalloc.stop()


def held() -> int:
    """Bytes that the replica's rooms have allocated, in blocks that may hold parameters."""
    traces = tracemalloc.take_snapshot().traces
    return sum(
        trace.size
        for trace in traces
        if trace.size > SIZE // 16 and any(OURS in frame.filename for frame in trace.traceback[-2:])
    )


@pytest.mark.parametrize(
    ("policy", "copies"),
    [
        (dp.Downpour(local_rate=0.1), 3),
        (dp.Downpour(local_rate=0.0, in_flight=2), 4),
        (dp.Downpour(push_every=3, local_rate=0.1), 4),
        (dp.ModelAveraging(every=3), 4),
    ],
    ids=["push every step", "two in flight", "accrue", "train"],
)
@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
async def test_a_replica_holds_the_copies_that_are_named(
    traced: None, tmp_path: Path, policy: Policy, copies: int, wire_dtype: str
) -> None:
    job = dp.Job(
        parameters={"w": np.zeros(LEN, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=policy,
        wire_dtype=wire_dtype,
    )
    seen: list[int] = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        gradient = ones(job, -1.0)
        replica._trainer.outbox.on_push = lambda push: seen.append(held())
        for _ in range(7):
            await replica.step(gradient)
            seen.append(held())

    # As a large model is treated, of which there is no spare push.
    limits = Limits(push_spare_size_max=0)
    async with Stage(job, tmp_path / "run", limits=limits) as stage:
        await stage.replica()
    pushes = policy.replica().in_flight
    narrow = pushes * SIZE // 2 if wire_dtype == "float16" else 0
    expected = copies * SIZE - narrow
    assert expected <= max(seen) < expected * SMALL, [size / SIZE for size in seen]
    np.testing.assert_array_equal(stage.parameters()["w"], 7.0)
