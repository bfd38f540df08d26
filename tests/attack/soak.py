"""A long siege: four replicas, one of them over a slow link, and acts in turn for minutes.

    python -m tests.attack.soak --minutes 10

Prints a line a minute, and at the end whether every push was counted once and whose memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydownpour.limits import KIB, MIB
from pydownpour.testing import FaultProxy, Faults
from tests.attack import hostile
from tests.attack.siege import Siege

SLOW_BYTES_PER_S: Final = 100 * KIB
REPLICAS: Final = 4


@contextlib.contextmanager
def slow_link(coordinator: str, shards: tuple[str, ...]) -> Iterator[str]:
    """The job as it is seen over a slow link: a coordinator's URL whose shards are slow, too.

    The coordinator tells its joiners where the shards are. On this link it names the slow doors to
    them instead: ports of as many digits, so that no length changes.
    """
    ready: threading.Event = threading.Event()
    url: list[str] = []
    end: list[Callable[[], object]] = []

    async def serve() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        end.append(functools.partial(loop.call_soon_threadsafe, over.set))
        slow = Faults(bytes_per_s=SLOW_BYTES_PER_S)
        async with contextlib.AsyncExitStack() as stack:
            doors = [await stack.enter_async_context(FaultProxy(s, slow)) for s in shards]
            names = {
                str(urlsplit(shard).port).encode(): str(urlsplit(door.url).port).encode()
                for shard, door in zip(shards, doors, strict=True)
            }
            assert all(len(real) == len(door) for real, door in names.items())
            url.append(await stack.enter_async_context(renaming(coordinator, names)))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield url[0]
    finally:
        end[0]()
        thread.join(30)


@contextlib.asynccontextmanager
async def renaming(target: str, names: dict[bytes, bytes]) -> AsyncIterator[str]:
    """A relay to ``target`` that puts other ports into what it answers."""
    parts = urlsplit(target)

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, renamed: dict[bytes, bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                for old, new in renamed.items():
                    chunk = chunk.replace(b":" + old, b":" + new)
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(pump(reader, back, {}), pump(there, writer, names))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def soak(folder: Path, minutes: float, say: Callable[[str], None], seed: int = 7) -> dict[str, Any]:
    """Run it; returns the report. Raises AssertionError when something honest suffered."""
    rng = random.Random(seed)
    with Siege(folder, replicas=REPLICAS - 1, pace_s=0.02) as siege:
        target = siege.target()
        with slow_link(target.coordinator, target.shards) as url:
            siege.start_replica(coordinator=url)
            began = time.monotonic()
            settled: dict[str, int] = {}
            rounds = 0
            while time.monotonic() - began < minutes * 60:
                acts = sorted(hostile.ACTS)
                rng.shuffle(acts)
                for act in acts:
                    asyncio.run(hostile.ACTS[act](siege.target()))  # type: ignore[arg-type]
                    siege.check(after=act)
                    if time.monotonic() - began > minutes * 60:
                        break
                rounds += 1
                memory = siege.memory()
                settled = settled or memory  # after the first round every limit was reached
                pushes = [siege.acked(i + 1) for i in range(REPLICAS)]
                say(
                    f"{(time.monotonic() - began) / 60:5.1f} min, round {rounds}: pushes {pushes}; "
                    + ", ".join(f"{name} {size / MIB:.0f}" for name, size in memory.items())
                    + " MiB"
                )
            report = siege.end()
    growth = {name: (memory[name] - settled[name]) / MIB for name in settled}
    say("exact: every push was counted once")
    say(
        "grown since the first round, MiB: " + ", ".join(f"{n} {g:+.1f}" for n, g in growth.items())
    )
    assert max(growth.values()) < 16, growth
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(
            Path(folder), options.minutes, lambda line: print(line, flush=True), options.seed
        )
    print({key: report[key] for key in ("state", "seconds", "pushes", "staleness")})


if __name__ == "__main__":
    main()
