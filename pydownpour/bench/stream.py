"""Rows: a large push and a large fetch, over the stream and over POST and GET."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import numpy as np

from pydownpour.bench import cluster
from pydownpour.bench.children import Child
from pydownpour.bench.meter import take_turns
from pydownpour.bench.plain import PlainClient
from pydownpour.bench.rows import Goal, Row, row
from pydownpour.bench.scale import Scale
from pydownpour.layout import raw
from pydownpour.optimizers import SGD

PLAIN = "two processes, blocking sockets, the same congestion control; no check, no apply"


async def stream(scale: Scale) -> list[Row]:
    """Push (checked and applied before the ack, SGD) and fetch over the upgraded stream."""
    return await _both_ways(scale, fallback=False, names=("stream push", "stream fetch"), goal=0.95)


async def fallback(scale: Scale) -> list[Row]:
    """The same frames in POST and GET bodies."""
    return await _both_ways(scale, fallback=True, names=("POST push", "GET fetch"), goal=0.80)


async def _both_ways(
    scale: Scale, *, fallback: bool, names: tuple[str, str], goal: float
) -> list[Row]:
    layout = cluster.one_array(scale.big_len)
    size = scale.big_len * 4
    target = raw(np.ones(size, np.uint8))
    async with (
        cluster.running(layout, SGD(lr=1e-6)) as up,
        cluster.pushing(up.url, layout, fallback=fallback) as pusher,
        Child("sockets", size_max=size) as sockets,
    ):
        plain = PlainClient(sockets.ready["port"])
        source = raw(pusher.gradient)
        # Every fetch follows a push, so that no checksum of a stripe is known from the one before.
        figures = await take_turns(
            {
                "push": _rate(size, pusher.push),
                "plain push": _rate(size, _blocking(lambda: plain.push(source))),
                "fetch": _rate(size, pusher.fetch_all),
                "plain fetch": _rate(size, _blocking(lambda: plain.fetch(target))),
            },
            rounds=scale.rounds,
            patience_s=scale.patience_s,
        )
        plain.close()
    return [
        row(name, figures, way, f"plain {way}", unit="GB/s", goal=Goal(goal), note=PLAIN)
        for name, way in zip(names, ("push", "fetch"), strict=True)
    ]


def _rate(size: int, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    """Gigabytes a second of some work on so many bytes."""

    async def measure() -> float:
        began = time.perf_counter()
        await work()
        return size / (time.perf_counter() - began) / 1e9

    return measure


def _blocking(work: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def run() -> object:
        return work()

    return run
