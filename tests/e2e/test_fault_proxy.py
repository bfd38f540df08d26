"""The fault proxy on real sockets, and a job through it that ends exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.errors import ClosedError, ConfigError
from pydownpour.testing import FaultProxy, Faults
from tests.e2e.stage import Stage, free_port, ones

PATIENCE_S = 20.0
"""Only a fault of the proxy takes so long."""
TEXT = bytes(range(256)) * 400


class Echo:
    """Sends everything back, and remembers how connections ended."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[str] = asyncio.Queue()
        self.heard = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.heard += len(data)
                writer.write(data)
                await writer.drain()
            self.ends.put_nowait("end")
        except ConnectionError:
            self.ends.put_nowait("reset")
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, str]]:
    """An echo server and its address."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    yield echo, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def connect(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.address.split(":")
    return await asyncio.open_connection(host, int(port))


async def talk(proxy: FaultProxy, text: bytes = TEXT) -> bytes:
    """Send a text, half-close, and read the answer to its end."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await connect(proxy)
        try:
            writer.write(text)
            writer.write_eof()
            return await reader.read()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(slice_max=700),
        Faults(latency_s=0.005, jitter=1.0),
        Faults(bytes_per_s=5e6),
        Faults(latency_s=0.002, jitter=0.5, bytes_per_s=2e7, slice_max=5000),
    ],
    ids=["none", "slices", "latency", "rate", "all"],
)
async def test_bytes_arrive_whole_and_in_order(echo: tuple[Echo, str], faults: Faults) -> None:
    async with FaultProxy(echo[1], faults) as proxy:
        assert await talk(proxy) == TEXT
        assert await echo[0].ends.get() == "end"
        counts = proxy.statistics()
    assert (counts.connections, counts.unreachable, counts.resets) == (1, 0, 0)
    assert counts.bytes_to_target == counts.bytes_to_client == len(TEXT)
    assert counts.pieces >= (2 * len(TEXT) / 700 if faults.slice_max == 700 else 2)


async def test_latency_and_rate_take_their_time(echo: tuple[Echo, str]) -> None:
    loop = asyncio.get_running_loop()
    async with FaultProxy(echo[1], Faults(latency_s=0.05)) as proxy:
        began = loop.time()
        await talk(proxy, b"x")
        # There and back; a lower bound, whatever the machine. uvloop's clock counts whole ms.
        assert loop.time() - began >= 0.098
    async with FaultProxy(echo[1], to_target=Faults(bytes_per_s=1e6)) as proxy:
        began = loop.time()
        await talk(proxy)
        assert loop.time() - began >= len(TEXT) / 1e6 - 0.002


async def test_each_connection_breaks_where_its_faults_say(echo: tuple[Echo, str]) -> None:
    def faults(number: int) -> Faults:
        return Faults(reset_after=(1000, 1000)) if number == 1 else Faults()

    async with FaultProxy(echo[1], to_target=faults) as proxy:
        with pytest.raises(ConnectionResetError):
            await talk(proxy)
        assert await echo[0].ends.get() == "reset"
        assert echo[0].heard <= 1000
        assert await talk(proxy) == TEXT
        assert proxy.statistics().resets == 1


async def test_bits_flip_behind_what_is_spared(echo: tuple[Echo, str]) -> None:
    async with FaultProxy(
        echo[1], to_target=Faults(corrupt_every=2000, spare=5000), seed=3
    ) as proxy:
        got = await talk(proxy)
        counts = proxy.statistics()
    assert len(got) == len(TEXT)
    changed = [i for i, (a, b) in enumerate(zip(got, TEXT, strict=True)) if a != b]
    assert all((got[i] ^ TEXT[i]).bit_count() == 1 for i in changed)
    assert min(changed) >= 5000
    assert len(changed) == counts.corrupted > 10


async def test_half_open_means_that_nobody_is_told(echo: tuple[Echo, str]) -> None:
    async with FaultProxy(echo[1], to_client=Faults(silent_after=(10, 10))) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"0123456789abc")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(10) == b"0123456789"
            while not proxy.statistics().silenced:
                await asyncio.sleep(0)
        writer.write(b"more")
        writer.write_eof()
        # Another connection makes the whole way: this one's bytes had every chance to do so.
        proxy.to_client = Faults()
        assert await talk(proxy) == TEXT
        assert not reader.at_eof()
        assert echo[0].heard == 13 + len(TEXT)
        assert proxy.statistics().open >= 1
        writer.transport.abort()


async def test_pause_holds_everything_and_resume_lets_it_go(echo: tuple[Echo, str]) -> None:
    async with FaultProxy(echo[1]) as proxy:
        reader, writer = await connect(proxy)
        proxy.pause()
        writer.write(b"held")
        reading = asyncio.create_task(reader.readexactly(4))
        assert await asyncio.wait([reading], timeout=0.05) == (set(), {reading})
        proxy.resume()
        assert await asyncio.wait_for(reading, PATIENCE_S) == b"held"
        writer.close()


async def test_refusing_is_for_new_connections_only_and_ends_on_the_same_port(
    echo: tuple[Echo, str],
) -> None:
    async with FaultProxy(echo[1]) as proxy:
        before = proxy.url
        reader, writer = await connect(proxy)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await connect(proxy)
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        await proxy.accept()
        assert proxy.url == before
        assert await talk(proxy) == TEXT
        writer.close()


async def test_everything_can_be_broken_or_silenced_at_once(echo: tuple[Echo, str]) -> None:
    async with FaultProxy(echo[1]) as proxy:
        ends = [await connect(proxy) for _ in range(3)]
        for reader, writer in ends:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        proxy.reset_all()
        for reader, _ in ends:
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert proxy.statistics().resets == 3
        reader, writer = await connect(proxy)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        proxy.silence_all()
        assert proxy.statistics().silenced == 1
        for _, each in (*ends, (reader, writer)):
            each.transport.abort()


async def test_nobody_behind_the_proxy_is_a_closed_connection() -> None:
    async with FaultProxy(f"http://127.0.0.1:{free_port()}") as proxy:
        assert proxy.url.startswith("http://127.0.0.1:")
        try:
            heard = await talk(proxy, b"anybody?")
        except ConnectionError:  # whether it is broken before or behind our question is chance
            heard = b""
        assert heard == b""
        assert proxy.statistics().unreachable == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Faults(latency_s=-1),
        lambda: Faults(jitter=2),
        lambda: Faults(bytes_per_s=0),
        lambda: Faults(reset_after=(5, 1)),
        lambda: FaultProxy("localhost"),
        lambda: FaultProxy("localhost:http"),
    ],
)
def test_impossible_settings_are_named(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"latency_s|jitter|bytes_per_s|reset_after|target"):
        make()


def test_a_proxy_that_does_not_listen_has_no_address() -> None:
    with pytest.raises(ClosedError, match="async with"):
        _ = FaultProxy("127.0.0.1:1").url


async def test_a_job_through_a_bad_network_counts_every_push_once(tmp_path: Path) -> None:
    """Slices, bit flips and resets in both directions; then the parameters count the pushes."""
    proxies: list[FaultProxy] = []

    def before(target: str) -> FaultProxy:
        bad = Faults(slice_max=4000, corrupt_every=40_000, spare=2000, reset_after=(5000, 60_000))
        # What the client asks in one piece, HTTP headers included, is spared; and so are whole
        # answers once the training is over, when the coordinator reads the result.
        proxies.append(FaultProxy(target, bad, seed=len(proxies)))
        return proxies[-1]

    job = dp.Job(
        parameters={"w": np.zeros(3000, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        data=dp.Work(80, unit=8),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, -1.0))
        await replica.flush()
        for proxy in proxies:
            proxy.to_target = proxy.to_client = Faults()

    async with Stage(job, tmp_path / "run", before_shards=before) as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], 80.0)
    pushes = stage.report["pushes"]
    assert (pushes["sent"], pushes["acked"], pushes["refused"]) == (80, 80, 0)
    assert stage.report["replicas"][0]["reconnects"] >= 5
    counts = [proxy.statistics() for proxy in proxies]
    assert sum(c.resets for c in counts) >= 5
    assert sum(c.corrupted for c in counts) >= 5
