"""Rows: what many small arrays cost over one large array of the same size."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from pydownpour.bench import cluster
from pydownpour.bench.meter import ForeignMeter, take_turns
from pydownpour.bench.rows import Goal, Row, constant_row, row
from pydownpour.bench.scale import Scale
from pydownpour.layout import ArrayEntry, Layout
from pydownpour.optimizers import SGD
from pydownpour.replica.joining import join
from pydownpour.replica.replica import Replica

SMALL_TENSORS, SMALL_LEN = 1_000, 1_000
SMALL_MS = 1.2
"""The goal for a push of 1,000 tensors of 1,000 elements."""


async def tensors(scale: Scale) -> list[Row]:
    """``Replica.step`` with a push each step and no overlap."""
    found = []
    for length in (scale.big_len, scale.tensors_len):
        found.append(await _many_against_one(scale, length))
    return [*found, *await _small(scale)]


async def _many_against_one(scale: Scale, length: int) -> Row:
    many_layout = _equal_arrays(scale.tensors, length // scale.tensors)
    one_layout = cluster.one_array(many_layout.len)
    async with _stepping(many_layout) as many, _stepping(one_layout) as one:
        figures = await take_turns(
            {"many": many.step, "one": one.step}, rounds=scale.rounds, patience_s=scale.patience_s
        )
    return row(
        f"{scale.tensors:,} tensors, {many_layout.len * 4 / 1e6:g} MB",
        figures,
        "many",
        "one",
        unit="ms",
        goal=Goal(1.5, at_least=False),
        note="one tensor of the same size, by the same calls",
    )


async def _small(scale: Scale) -> list[Row]:
    async with _stepping(_equal_arrays(SMALL_TENSORS, SMALL_LEN)) as stepping:
        for _ in range(3):
            await stepping.step()
        meter = ForeignMeter()
        times = [await stepping.step() for _ in range(scale.trips)]
        foreign = meter.read().of_all
    name = f"{SMALL_TENSORS:,} tensors of {SMALL_LEN:,}"
    p50 = statistics.median(times)
    p99 = sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]
    return [
        constant_row(
            f"{name}, step p50", [p50], SMALL_MS, unit="ms", note="the goal", foreign=foreign
        ),
        constant_row(
            f"{name}, step p99", [p99], 2 * p50, unit="ms", note="twice the p50", foreign=foreign
        ),
    ]


def _equal_arrays(count: int, length: int) -> Layout:
    return Layout.from_entries(
        ArrayEntry(name=f"w{i:05}", shape=(length,), dtype="float32") for i in range(count)
    )


class _Stepping:
    """A joined replica, and the gradients it pushes."""

    def __init__(self, replica: Replica, layout: Layout) -> None:
        self._replica = replica
        self._gradients: dict[str, NDArray[np.float32]] = {
            spec.name: np.full(spec.shape, 1e-3, np.float32) for spec in layout.arrays
        }

    async def step(self) -> float:
        """Milliseconds of one step: gathered, checked, pushed, applied, acknowledged."""
        began = time.perf_counter()
        await self._replica.step(self._gradients)
        return (time.perf_counter() - began) * 1e3


@contextlib.asynccontextmanager
async def _stepping(layout: Layout) -> AsyncIterator[_Stepping]:
    async with cluster.running(layout, SGD(lr=1e-6)) as up, join(up.url) as replica:
        yield _Stepping(replica, layout)
