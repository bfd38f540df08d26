"""Readers that are slow, stuck or gone: they hold nobody up, and nothing of them stays."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.layout import partition
from pydownpour.net.access import Access, Bind
from pydownpour.net.server import Server
from pydownpour.optimizers import SGD
from pydownpour.policy.downpour import Downpour
from pydownpour.shard.service import ShardService
from pydownpour.shard.state import Shard
from pydownpour.wire import frames, messages
from pydownpour.wire.messages import ShardAssigned
from pydownpour.wire.proof import KEY_SIZE, Keeper
from tests.e2e.stage import Stage, ones
from tests.e2e.stranger import Stranger, dismiss

LENGTH = 1 << 20
"""16 fragments, 4 MiB: more than sockets hold."""
KEEPER = Keeper(bytes(KEY_SIZE))
PATIENCE_S = 20.0
"""Only a fault takes so long."""


def loaded_service() -> ShardService:
    cut = partition(LENGTH, 1)
    service = ShardService(Access())
    service._shard = Shard(
        ShardAssigned(
            index=0,
            incarnation=1,
            secret="",
            key=KEEPER.text(),
            shards=1,
            epoch=1,
            start=0,
            len=LENGTH,
            stripe_len=cut.stripe_len,
            fragment_len=cut.fragment_len,
            fingerprint="",
            optimizer=SGD(lr=1.0).parts(),
            policy=Downpour().to_wire(),
            heartbeat_s=1.0,
            job="test",
        )
    )
    service._shard.serve(1)
    return service


@pytest.fixture
async def serving() -> AsyncIterator[tuple[Server, Shard]]:
    """A shard's routes, without the rest of a job."""
    service = loaded_service()
    async with Server(service.routes(), bind=Bind(), access=Access(), name="shard") as server:
        assert service.shard is not None
        yield server, service.shard


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What stays in a cycle stays for good."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def headers_of(replica: int) -> dict[str, str]:
    return {
        messages.HEADER_EPOCH: "1",
        messages.HEADER_REPLICA: str(replica),
        messages.HEADER_INCARNATION: "1",
        messages.HEADER_SECRET: KEEPER.secret("replica", replica, 1),
    }


async def stuck_reader(url: str, headers: dict[str, str], transport: str = "get") -> socket.socket:
    """Asks for everything, and takes no more than the first bytes."""
    loop = asyncio.get_running_loop()
    host, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(sock, (host, int(port)))
    said = {"Host": f"{host}:{port}", **headers}
    if transport == "stream":
        said |= {"Connection": "Upgrade", "Upgrade": messages.UPGRADE}
    path = "/v1/fetch?since=0" if transport == "get" else "/v1/stream"
    head = "".join(f"{name}: {text}\r\n" for name, text in said.items())
    await loop.sock_sendall(sock, f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    status = b"HTTP/1.1 200" if transport == "get" else b"HTTP/1.1 101"
    assert (await loop.sock_recv(sock, len(status))) == status
    if transport == "stream":
        while not (await loop.sock_recv(sock, 4096)).endswith(b"\r\n\r\n"):
            pass
        await loop.sock_sendall(sock, frames.fetch(request=1, since=0))
        assert await loop.sock_recv(sock, 4) == b"PDP1"
    return sock


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def until_nothing_is_kept(shard: Shard) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while shard.store.kept:
            await asyncio.sleep(0.01)


def push_everywhere(shard: Shard) -> None:
    gradient = np.full(shard.assigned.fragment_len, -1.0, np.float32)
    for fragment in range(shard.store.fragments):
        shard.store.apply(fragment, gradient, 1)


@pytest.mark.parametrize("transport", ["get", "stream"])
async def test_readers_that_are_reset_leave_nothing_behind(
    transport: str, serving: tuple[Server, Shard], no_collector: None
) -> None:
    server, shard = serving
    for _ in range(3):
        readers = [await stuck_reader(server.url, headers_of(i), transport) for i in range(1, 9)]
        push_everywhere(shard)
        for reader in readers:
            reset(reader)
    await until_nothing_is_kept(shard)
    push_everywhere(shard)
    assert shard.store.memory()["pinned"] == 0


@pytest.mark.parametrize("transport", ["get", "stream"])
async def test_a_reader_that_takes_nothing_for_long_loses_its_connection(
    transport: str, serving: tuple[Server, Shard]
) -> None:
    server, shard = serving
    brief = dataclasses.replace(shard.limits, reader_window_s=0.2)
    shard.limits = server._limits = brief
    loop = asyncio.get_running_loop()
    reader = await stuck_reader(server.url, headers_of(1), transport)
    async with asyncio.timeout(PATIENCE_S):
        while reader.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != errno.ECONNRESET:
            assert await loop.sock_recv(reader, 1)  # a byte now and then is not enough
            await asyncio.sleep(0.02)
    reader.close()
    await until_nothing_is_kept(shard)


async def test_a_replica_reads_over_get_once_at_a_time(serving: tuple[Server, Shard]) -> None:
    server, shard = serving
    readers = [await stuck_reader(server.url, headers_of(1)) for _ in range(5)]
    async with asyncio.timeout(PATIENCE_S):
        for older in readers[:-1]:
            while older.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != errno.ECONNRESET:
                await asyncio.sleep(0.01)
    assert readers[-1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    for reader in readers:
        reset(reader)
    await until_nothing_is_kept(shard)


async def test_many_stuck_readers_do_not_hold_a_replica_up(tmp_path: Path) -> None:
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=SGD(lr=1.0),
        policy=Downpour(fetch_every=10, local_rate=0.0),
        data=dp.Work(30, unit=10),
    )
    readers: list[socket.socket] = []

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                if len(readers) < 20:
                    stranger = await Stranger.join(stage.url)
                    reader = await stuck_reader(stranger.shard.url, stranger.headers)
                    readers.append(reader)
                await replica.step(ones(job, -1.0))
        await replica.flush()
        for reader in readers:
            reset(reader)
        await dismiss(stage.url)

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica(name="fast")
    np.testing.assert_array_equal(stage.parameters()["w"], 30.0)
    assert len(readers) == 20
    (fast,) = (replica for replica in stage.report["replicas"] if replica["name"] == "fast")
    pushes = stage.report["pushes"]
    assert (pushes["acked"], pushes["refused"], fast["reconnects"]) == (30, 0, 0)
