"""Rows: what a message costs in the simulator, and a thousand replicas' hundred pushes.

Both run in a fresh interpreter: a simulated loop cannot run inside the bench's own.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any, final

import numpy as np

from pydownpour.bench.meter import ForeignMeter
from pydownpour.bench.rows import Row, constant_row
from pydownpour.bench.scale import Scale
from pydownpour.job import Job, Work
from pydownpour.net.access import Bind
from pydownpour.net.client import Client
from pydownpour.net.server import Server, UpgradeRoute
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.optimizers import SGD
from pydownpour.sim.api import simulate
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.network.network import Network
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.cluster import ACCESS
from pydownpour.sim.world.processes import Processes

MESSAGE_BUDGET_US = 25.0
"""40,000 messages a second."""
RUN_BUDGET_S = 60.0
CLIENTS, MESSAGE_SIZE, PORT = 200, 1000, 7000


async def simulator(scale: Scale) -> list[Row]:
    """Microseconds a message over upgraded streams, and seconds for the run of a thousand."""
    quick = scale.trips < 100
    meter = ForeignMeter()
    messages = [_child("messages", scale.trips // 4) for _ in range(max(2, scale.rounds // 3))]
    replicas = 20 if quick else 1000
    disturbed = meter.read().of_all
    meter = ForeignMeter()
    run = _child("run", replicas)
    return [
        constant_row(
            "simulated message",
            messages,
            MESSAGE_BUDGET_US,
            unit="us",
            note=f"the budget; {CLIENTS} upgraded streams, {MESSAGE_SIZE} bytes a message",
            foreign=disturbed,
        ),
        constant_row(
            "simulated run",
            [run],
            RUN_BUDGET_S,
            unit="s",
            note=f"the budget; {replicas} replicas x 100 pushes x 2 shards, checked, one process",
            foreign=meter.read().of_all,
        ),
    ]


def _child(what: str, number: int) -> float:
    done = subprocess.run(
        [sys.executable, "-m", __name__, what, str(number)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout))


@final
class _End(StreamProtocol):
    """One end of an echoing stream."""

    def __init__(self, rounds: int = 0) -> None:
        super().__init__()
        self._scratch = bytearray(4 * MESSAGE_SIZE)
        self._left = rounds
        self.is_server = rounds == 0

    def get_buffer(self, sizehint: int) -> Any:
        """One scratch for all ends: nobody reads it."""
        return memoryview(self._scratch)

    def received(self, n: int) -> None:
        """The server answers, the client counts and goes on."""
        if not self.is_server:
            self._left -= 1
            if self._left == 0:
                self.close()
                return
        self.write(bytes(self._scratch[:n]))


def messages_us(rounds: int) -> float:
    """Seconds of wall time a delivered message takes, in microseconds."""
    loop = SimLoop(events_max=10**9, virtual_s_max=1e9)
    trace = Trace()
    network = Network(loop, random.Random(1), trace)
    processes = Processes(network)
    server_host = network.add_host("server", LinkModel())
    ended: list[str] = []

    async def serve() -> None:
        bind = Bind(server_host.address, PORT)
        route = UpgradeRoute("/v1/stream", lambda call: _End())
        async with Server([route], bind=bind, access=ACCESS, name="echo"):
            await asyncio.Event().wait()

    async def talk() -> None:
        async with Client(f"http://{server_host.address}:{PORT}", access=ACCESS) as client:
            end = _End(rounds)
            await client.upgrade("/v1/stream", {}, end)
            end.write(b"x" * MESSAGE_SIZE)
            await end.wait_closed()

    async def main() -> None:
        processes.start("server", server_host, serve, lambda process, error: None)
        for number in range(CLIENTS):
            name = f"client-{number}"
            host = network.add_host(name, LinkModel())
            processes.start(name, host, talk, lambda process, error: ended.append(process.name))
        while len(ended) < CLIENTS:
            await asyncio.sleep(0.01)

    began = time.perf_counter()
    loop.run_until_complete(main())
    seconds = time.perf_counter() - began
    trace.close()
    loop.run_until_complete(processes.unwind())
    loop.close()
    return seconds / trace.messages * 1e6


def run_s(replicas: int) -> float:
    """Seconds of wall time for 100 pushes of each replica to 2 shards, with all checks."""
    job = Job(
        parameters={"w": np.zeros(1000, np.float32)},
        optimizer=SGD(lr=1.0),
        data=Work(replicas * 100, unit=100),
        name="thousand",
    )
    zeros = {"w": np.zeros(1000, np.float32)}

    @job.replica
    async def train(replica: Any) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(zeros)

    began = time.perf_counter()
    report = simulate(job, replicas=replicas, shards=2, seed=1)
    if report["failure"] or report["violations"] or report["pushes"]["applied"] != replicas * 100:
        raise RuntimeError(f"the run failed: {report['failure']} {report['violations']}")
    return time.perf_counter() - began


if __name__ == "__main__":
    measure = {"messages": messages_us, "run": run_s}[sys.argv[1]]
    print(json.dumps(measure(int(sys.argv[2]))))
