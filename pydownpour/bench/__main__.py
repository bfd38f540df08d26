"""``python -m pydownpour.bench [ROW ...] [--json] [--quick]``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from pydownpour.bench.apply import apply
from pydownpour.bench.codecs import codecs
from pydownpour.bench.imports import imports
from pydownpour.bench.latency import latency
from pydownpour.bench.machine import machine
from pydownpour.bench.memory import memory
from pydownpour.bench.replicas import replicas
from pydownpour.bench.rows import Row, dump, table
from pydownpour.bench.scale import FULL, QUICK, Scale
from pydownpour.bench.sim_vs_real import sim_vs_real
from pydownpour.bench.simulator import simulator
from pydownpour.bench.stream import fallback, stream
from pydownpour.bench.tensors import tensors
from pydownpour.cli.loop import loop_factory

MEASURES: dict[str, Callable[[Scale], Awaitable[list[Row]]]] = {
    "stream": stream,
    "fallback": fallback,
    "replicas": replicas,
    "apply": apply,
    "codecs": codecs,
    "latency": latency,
    "tensors": tensors,
    "memory": memory,
    "import": imports,
    "simulator": simulator,
}
ONLY_BY_NAME: dict[str, Callable[[Scale], Awaitable[list[Row]]]] = {"sim-vs-real": sim_vs_real}
"""Not about speed, and minutes long."""
FOOTER = (
    "Figures are medians (smallest..largest) of rounds taken in turn; a ratio is the median of the "
    "rounds' ratios.\nSizes count parameters' bytes once; headers and checksums come on top. "
    "Inconclusive: other processes used\nmore than 10 % of the CPU all the time."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or one JSON object."""
    known = MEASURES | ONLY_BY_NAME
    parser = argparse.ArgumentParser(
        prog="python -m pydownpour.bench",
        description="Ratios against what this machine can do without us, both sides in one run.",
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(known))
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only that it works")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.rows if name not in known]:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(known)}")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    scale = QUICK if options.quick else FULL
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(_measure(options.rows or list(MEASURES), scale))
    if options.json:
        print(dump(found, machine()))
        return
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    print(table(found))
    for note in dict.fromkeys(row.note for row in found):
        print(f"  {', '.join(row.name for row in found if row.note == note)}: {note}")
    print(FOOTER)


async def _measure(names: Sequence[str], scale: Scale) -> list[Row]:
    found: list[Row] = []
    for name in names:
        if sys.stderr.isatty():
            print(f"measuring {name} ...", file=sys.stderr)
        found += await (MEASURES | ONLY_BY_NAME)[name](scale)
    return found


if __name__ == "__main__":
    main()
