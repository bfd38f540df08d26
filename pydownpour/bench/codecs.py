"""Rows: a codec's loops against the same in C, and what a push gains by it over the real stream.

The loops in C do exactly what ours do, for blocks of 256 elements: the largest magnitude, then the
codes and what they leave. Where there is no compiler, a plain copy of the elements stands in.
Figures are bytes of float32 a second, fragment by fragment, one thread.

A push is encoded, sent over the stream, checked and applied before it is acknowledged; its figure
is bytes of the float32 gradient a second, whatever travels. The sockets are of this machine's
loopback, as fast as memory: what a codec saves in bytes it must first earn there in time. On a link
of B bytes a second a push takes at least its bytes on the wire / B, which the rows' notes say.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from pydownpour import limits
from pydownpour.bench import cluster
from pydownpour.bench.children import Child
from pydownpour.bench.compiled import library
from pydownpour.bench.meter import take_turns
from pydownpour.bench.plain import PlainClient
from pydownpour.bench.rows import Goal, Row, row
from pydownpour.bench.scale import Scale
from pydownpour.codecs import Codec, Int8, Threshold, compiled
from pydownpour.layout import raw
from pydownpour.optimizers import SGD

LOOPS = """
#include <math.h>
void encode(const float *restrict g, float *restrict r, float *restrict scales,
            signed char *restrict codes, long n) {
    for (long b = 0; b < n / 256; b++) {
        const float *gb = g + 256 * b;
        float *rb = r + 256 * b, most = 0;
        for (int i = 0; i < 256; i++) {
            float x = fabsf(gb[i] + rb[i]);
            most = x > most ? x : most;
        }
        float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
        scales[b] = scale;
        for (int i = 0; i < 256; i++) {
            float x = gb[i] + rb[i], q = rintf(x * inverse);
            codes[256 * b + i] = (signed char)q;
            rb[i] = x - q * scale;
        }
    }
}
void decode(const float *restrict scales, const signed char *restrict codes, float *restrict d,
            long n) {
    for (long b = 0; b < n / 256; b++)
        for (int i = 0; i < 256; i++) d[256 * b + i] = codes[256 * b + i] * scales[b];
}
"""
FRAGMENT_LEN = limits.DEFAULT.fragment_size // 4
Loop = Callable[[int], None]
"""Works on the fragment that begins at an element."""


async def codecs(scale: Scale) -> list[Row]:
    """int8, encoding with error feedback and decoding; and pushes with each codec."""
    length = scale.big_len // FRAGMENT_LEN * FRAGMENT_LEN or FRAGMENT_LEN
    gradient = np.random.default_rng(1).laplace(size=length).astype(np.float32)
    codec = compiled(Int8().entry())
    assert codec is not None
    residual, theirs = np.zeros(length, np.float32), np.zeros(length, np.float32)
    data = np.zeros(codec.size_max(FRAGMENT_LEN), np.uint8)
    decoded = np.zeros(FRAGMENT_LEN, np.float32)

    def encode(start: int) -> None:
        stop = start + FRAGMENT_LEN
        codec.encode(gradient[start:stop], residual[start:stop], data)

    def decode(start: int) -> None:
        codec.decode(data, decoded)

    encode_c, decode_c, what = _loops(gradient, theirs)
    found = []
    for name, ours, reference in (("encode", encode, encode_c), ("decode", decode, decode_c)):
        figures = await take_turns(
            {"ours": _sweep(ours, length), "C": _sweep(reference, length)},
            rounds=scale.rounds,
            patience_s=scale.patience_s,
        )
        found.append(
            row(f"int8 {name}", figures, "ours", "C", unit="GB/s", goal=Goal(0.8), note=what)
        )
    return [*found, *await _pushes(scale)]


QUIET: Final = 100.0
"""A threshold that about one element in a hundred exceeds with each push."""


async def _pushes(scale: Scale) -> list[Row]:
    """Whole pushes against the same without a codec, and against plain sockets, in one run."""
    layout = cluster.one_array(scale.big_len)
    size = 4 * scale.big_len
    kinds: dict[str, Codec | None] = {
        "float32": None,
        "int8": Int8(),
        "threshold": Threshold(QUIET),
    }
    gradient = np.random.default_rng(2).laplace(size=scale.big_len).astype(np.float32)
    async with contextlib.AsyncExitStack() as stack:
        pushers: dict[str, cluster.Pusher] = {}
        for name, codec in kinds.items():
            up = await stack.enter_async_context(cluster.running(layout, SGD(lr=1e-6), codec))
            pusher = await stack.enter_async_context(cluster.pushing(up.url, layout))
            np.copyto(pusher.gradient, gradient)
            pushers[name] = pusher
        sockets = await stack.enter_async_context(Child("sockets", size_max=size))
        plain = PlainClient(sockets.ready["port"])
        stack.callback(plain.close)
        residual = pushers["threshold"].encoder.residual
        assert residual is not None
        # As after many pushes: what each element lacks may be anything.
        residual[:] = np.random.default_rng(3).uniform(-QUIET, QUIET, scale.big_len)
        before = {name: pusher.bytes_sent() for name, pusher in pushers.items()}
        for pusher in pushers.values():
            await pusher.push_anew()
        wire = {name: pusher.bytes_sent() - before[name] for name, pusher in pushers.items()}

        async def push_plain() -> None:
            plain.push(raw(gradient))

        work = {name: pusher.push_anew for name, pusher in pushers.items()}
        figures = await take_turns(
            {name: _rate(size, push) for name, push in {**work, "plain": push_plain}.items()},
            rounds=scale.rounds,
            patience_s=scale.patience_s,
        )
    found = []
    for name, goal in (("int8", 1.6), ("threshold", 2.0)):
        note = f"{wire[name]:,} bytes a push on the wire; float32 has {wire['float32']:,}"
        found += [
            row(
                f"{name} push, against {what}",
                figures,
                name,
                reference,
                unit="GB/s",
                goal=Goal(least),
                note=f"{words}; {note}",
            )
            for what, reference, least, words in (
                ("float32", "float32", 1.0, "the same push without a codec"),
                ("plain sockets", "plain", goal, "float32 from process to process, no check"),
            )
        ]
    return found


def _rate(size: int, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        began = time.perf_counter()
        await work()
        return size / (time.perf_counter() - began) / 1e9

    return measure


def _sweep(loop: Loop, length: int) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        began = time.perf_counter()
        for start in range(0, length, FRAGMENT_LEN):
            loop(start)
        return 4 * length / (time.perf_counter() - began) / 1e9

    return measure


def _loops(
    gradient: np.ndarray[tuple[int], np.dtype[np.float32]],
    residual: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> tuple[Loop, Loop, str]:
    """The references for encoding and decoding, and what they are."""
    scales = np.zeros(FRAGMENT_LEN // 256, np.float32)
    codes = np.zeros(FRAGMENT_LEN, np.int8)
    decoded = np.zeros(FRAGMENT_LEN, np.float32)
    loops = library(LOOPS)
    if loops is None:

        def copy(start: int) -> None:
            np.copyto(decoded, gradient[start : start + FRAGMENT_LEN])

        return copy, copy, "a copy of the elements, there is no C compiler"
    pointer, long = ctypes.c_void_p, ctypes.c_long
    loops.encode.argtypes, loops.encode.restype = [pointer, pointer, pointer, pointer, long], None
    loops.decode.argtypes, loops.decode.restype = [pointer, pointer, pointer, long], None
    s, c, d = (array.ctypes for array in (scales, codes, decoded))

    def encode(start: int) -> None:
        g, r = gradient[start:].ctypes, residual[start:].ctypes
        loops.encode(g.data, r.data, s.data, c.data, FRAGMENT_LEN)

    def decode(start: int) -> None:
        loops.decode(s.data, c.data, d.data, FRAGMENT_LEN)

    return encode, decode, "the same loop in C, -O3 -march=native"
