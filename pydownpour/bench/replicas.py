"""Row: two replicas, each a process, push into one shard at once."""

from __future__ import annotations

import asyncio

from pydownpour.bench import cluster
from pydownpour.bench.children import Child
from pydownpour.bench.meter import take_turns
from pydownpour.bench.plain import PlainClient
from pydownpour.bench.rows import Goal, Row, row
from pydownpour.bench.scale import Scale
from pydownpour.layout import raw
from pydownpour.optimizers import SGD

REPLICAS = 2
PUSHES = 2
"""Of each replica in one repetition, so that both are under way for most of it."""


async def replicas(scale: Scale) -> list[Row]:
    """The sum of both against one pair of plain sockets."""
    layout = cluster.one_array(scale.big_len)
    size = scale.big_len * 4
    async with (
        cluster.running(layout, SGD(lr=1e-6)) as up,
        Child("pusher", coordinator=up.url, length=scale.big_len) as one,
        Child("pusher", coordinator=up.url, length=scale.big_len) as two,
        cluster.pushing(up.url, layout) as here,
        Child("sockets", size_max=1) as sockets,
    ):
        plain = PlainClient(sockets.ready["port"])

        async def ours() -> float:
            answers = await asyncio.gather(one.ask(count=PUSHES), two.ask(count=PUSHES))
            began = min(answer["began"] for answer in answers)
            ended = max(answer["ended"] for answer in answers)
            return float(REPLICAS * PUSHES * size / (ended - began) / 1e9)

        async def reference() -> float:
            return size / plain.push(raw(here.gradient)) / 1e9

        figures = await take_turns(
            {"ours": ours, "plain": reference}, rounds=scale.rounds, patience_s=scale.patience_s
        )
        plain.close()
    note = "one pair of plain sockets; ours is the sum of both replicas"
    return [
        row(
            "two replicas push",
            figures,
            "ours",
            "plain",
            unit="GB/s",
            goal=Goal(0.9),
            note=note,
        )
    ]
