"""Rows: what a shard's process holds over its parameters and state."""

from __future__ import annotations

from pydownpour.bench import cluster
from pydownpour.bench.rows import Row, constant_row
from pydownpour.bench.scale import Scale
from pydownpour.optimizers import Adagrad

PER_CONNECTION = 1 << 20
EXCESS_MAX = 1.05
PUSHES = 8


async def memory(scale: Scale) -> list[Row]:
    """Adagrad: as much state as parameters. What an idle process holds is listed apart."""
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
            await pusher.session.wait_in_flight(0)
            peak = (await up.shard.ask())["rss_peak_bytes"]
    bound = EXCESS_MAX * held + PER_CONNECTION
    note = (
        f"{EXCESS_MAX} x (parameters + state) + 1 MiB; without the {idle / 1e6:.0f} MB of a "
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
