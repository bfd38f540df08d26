"""Rows: an optimizer's update of every parameter, against a loop in C.

The loop is ``p[i] -= r * g[i]`` over as many elements, compiled here with the machine's own C
compiler for this processor. Where there is none, the core's own such loop stands in for it.
Compared are bytes moved: parameters and state are read and written, the gradient is read.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Awaitable, Callable

import numpy as np

from pydownpour import _core, limits
from pydownpour.bench.compiled import library
from pydownpour.bench.meter import take_turns
from pydownpour.bench.rows import Goal, Row, row
from pydownpour.bench.scale import Scale
from pydownpour.layout import Flat, raw
from pydownpour.optimizers import SGD, Adagrad, Adam, Part

TRIAD_BYTES = 12
TRIAD_RATE = 1e-6
TRIAD = """
void triad(float *restrict p, const float *restrict g, float r, long n) {
    for (long i = 0; i < n; i++) p[i] -= r * g[i];
}
"""
RULES: tuple[tuple[Part, int], ...] = (
    (SGD(lr=1e-6), 12),
    (Adagrad(lr=1e-6, initial=0.1), 20),
    (Adam(lr=1e-6), 28),
)
"""Each rule, and the bytes it moves for each element."""

Triad = Callable[[Flat, Flat], None]


async def apply(scale: Scale) -> list[Row]:
    """One thread, the whole store once, fragment by fragment as pushes come."""
    triad, what = _triad()
    gradient = np.full(scale.big_len, 1e-3, np.float32)
    target = np.ones(scale.big_len, np.float32)

    async def reference() -> float:
        began = time.perf_counter()
        triad(target, gradient)
        return TRIAD_BYTES * scale.big_len / (time.perf_counter() - began) / 1e9

    found = []
    for rule, size in RULES:
        figures = await take_turns(
            {"ours": _sweep(rule, gradient, size), "triad": reference},
            rounds=scale.rounds,
            patience_s=scale.patience_s,
        )
        name = f"apply {rule.name}"
        found.append(row(name, figures, "ours", "triad", unit="GB/s", goal=Goal(0.97), note=what))
    return found


def _sweep(rule: Part, gradient: Flat, size: int) -> Callable[[], Awaitable[float]]:
    store = _core.Shard(
        len=len(gradient),
        stripe_len=limits.STRIPE_LEN_MAX,
        fragment_len=limits.DEFAULT.fragment_size // 4,
        optimizer=_core.Optimizer(rule.parts()),
    )
    store.load(0, np.ones(len(gradient), np.float32))
    data, step = raw(gradient), limits.DEFAULT.fragment_size
    parts = [data[i * step : (i + 1) * step] for i in range(store.fragments)]

    async def measure() -> float:
        began = time.perf_counter()
        for fragment, part in enumerate(parts):
            store.apply(fragment, part, 1)
        return size * len(gradient) / (time.perf_counter() - began) / 1e9

    return measure


def _triad() -> tuple[Triad, str]:
    """The reference, and what it is."""
    loops = library(TRIAD)
    if loops is not None:
        function = loops.triad
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_long]
        function.restype = None

        def compiled(p: Flat, g: Flat) -> None:
            function(p.ctypes.data, g.ctypes.data, TRIAD_RATE, len(p))

        return compiled, "p -= r * g in C, -O3 -march=native, by bytes moved"

    def core(p: Flat, g: Flat) -> None:
        _core.step(p, raw(g), 1, TRIAD_RATE)

    return core, "p -= r * g in the core, there is no C compiler; by bytes moved"
