"""Row: the round trip of a small push."""

from __future__ import annotations

import statistics
import time

from pydownpour.bench import cluster
from pydownpour.bench.children import Child
from pydownpour.bench.echo import EchoClient
from pydownpour.bench.meter import take_turns
from pydownpour.bench.rows import Goal, Row, row
from pydownpour.bench.scale import Scale
from pydownpour.optimizers import SGD

PUSH_LEN = 1024
"""Elements, one fragment: 4 KiB."""
REQUEST_SIZE = PUSH_LEN * 4 + 64


async def latency(scale: Scale) -> list[Row]:
    """4 KiB pushed, applied and acknowledged, one at a time."""
    layout = cluster.one_array(PUSH_LEN)
    async with (
        cluster.running(layout, SGD(lr=1e-6)) as up,
        cluster.pushing(up.url, layout) as pusher,
        Child("echo", request_size=REQUEST_SIZE) as child,
        EchoClient(child.ready["port"], REQUEST_SIZE) as echo,
    ):

        async def push() -> float:
            began = time.perf_counter()
            await pusher.push()
            return time.perf_counter() - began

        async def ours() -> float:
            return statistics.median([await push() for _ in range(scale.trips)]) * 1e6

        async def reference() -> float:
            return statistics.median([await echo.round_trip() for _ in range(scale.trips)]) * 1e6

        figures = await take_turns(
            {"ours": ours, "echo": reference}, rounds=scale.rounds, patience_s=scale.patience_s
        )
    note = "an upgraded aiohttp connection of the same loop: as many bytes up, 64 bytes down"
    goal = Goal(1.6, at_least=False)
    return [
        row("small push, p50", figures, "ours", "echo", unit="us", goal=goal, note=note),
    ]
