"""Rows: what the processes of a job hold over its parameters, role by role."""

from __future__ import annotations

import tempfile

from pydownpour.bench import cluster
from pydownpour.bench.children import Child
from pydownpour.bench.rows import Row, constant_row
from pydownpour.bench.scale import Scale
from pydownpour.optimizers import Adagrad

PER_CONNECTION = 1 << 20
SHARD_MAX = 1.05
COORDINATOR_MAX = 1.3
REPLICA_MAX = 3.0
PUSHES = 8
PASSES = 3


async def memory(scale: Scale) -> list[Row]:
    """What an idle process holds is taken off, and so is what the user's own code holds."""
    return [*await _shard(scale), *await _job(scale)]


async def _shard(scale: Scale) -> list[Row]:
    """Adagrad: as much state as parameters."""
    layout = cluster.one_array(scale.big_len)
    held = scale.big_len * 4 * 2
    async with cluster.running(layout, Adagrad(lr=1e-6, initial=0.1)) as up:
        idle = up.shard.ready["idle_bytes"]
        async with cluster.pushing(up.url, layout) as pusher:
            rest = await up.shard.ask()
            rss = []
            for index in range(PUSHES):
                pusher.start_push()
                if index % 2:
                    await pusher.fetch_all()
                rss.append((await up.shard.ask())["rss_bytes"])
            await pusher.session.outbox.in_flight(0)
            peak = (await up.shard.ask())["rss_peak_bytes"]
    bound = SHARD_MAX * held + PER_CONNECTION
    note = (
        f"{SHARD_MAX} x (parameters + state) + 1 MiB; without the {idle / 1e6:.0f} MB of a "
        "process that has only imported the shard"
    )
    return [
        constant_row(name, [(value - idle) / 1e6], bound / 1e6, unit="MB", note=note)
        for name, value in (
            ("shard RSS at rest", rest["rss_bytes"]),
            ("shard RSS under load", max(rss)),
            ("shard RSS peak since start", peak),
        )
    ]


async def _job(scale: Scale) -> list[Row]:
    """One job from its start to its written parameters, an evaluation after each pass."""
    size = scale.memory_len * 4
    with tempfile.TemporaryDirectory() as folder:
        async with Child(
            "coordinator", length=scale.memory_len, passes=PASSES, run_folder=folder
        ) as coordinator:
            url = coordinator.ready["url"]
            async with (
                Child("shard", coordinator=url),
                Child("trainer", coordinator=url) as trainer,
            ):
                ended = await coordinator.last()
    if ended["state"] != "done" or not ended["evaluations"]:
        raise RuntimeError(f"the job that was weighed did not take its way: {ended}")
    replica = trainer.ready
    used = replica["rss_peak_bytes"] - replica["idle_bytes"] - replica["gradient_bytes"]
    return [
        constant_row(
            "coordinator RSS peak",
            [(ended["rss_peak_bytes"] - coordinator.ready["idle_bytes"]) / 1e6],
            COORDINATOR_MAX * size / 1e6,
            unit="MB",
            note=f"{COORDINATOR_MAX} x parameters: initial values sent, {PASSES} evaluations, the "
            "final parameters read and written",
        ),
        constant_row(
            "replica RSS peak",
            [used / 1e6],
            REPLICA_MAX * size / 1e6,
            unit="MB",
            note=f"{REPLICA_MAX:g} x parameters, beside the user's own gradient",
        ),
    ]
