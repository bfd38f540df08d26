"""What the simulated loop answers to aiohttp and to plain asyncio: ports, names and paths."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pydownpour.errors import ConfigError
from pydownpour.sim.loop.loop import SimLoop
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.network.network import Network
from pydownpour.sim.trace import Trace
from pydownpour.sim.world.processes import Processes

Main = Callable[[], Coroutine[Any, Any, object]]
LATENCY_S = 0.5


def run(**mains: Main) -> float:
    """Run each as a process, on the host before its name's underscore, until "client" ends."""
    loop = SimLoop(events_max=100_000, virtual_s_max=100.0)
    network = Network(loop, random.Random(1), Trace())
    processes = Processes(network)
    failed: list[BaseException] = []

    async def world() -> None:
        done = asyncio.Event()
        for name, main in mains.items():
            known = network.hosts.get(name.partition("_")[0])
            host = known or network.add_host(name.partition("_")[0], LinkModel(LATENCY_S, 0.0))

            def ended(process: Any, error: BaseException | None) -> None:
                if error is not None:
                    failed.append(error)
                if error is not None or process.name.endswith("client"):
                    done.set()

            processes.start(name, host, main, ended)
        await done.wait()

    try:
        loop.run_until_complete(world())
        seconds = loop.now
        loop.run_until_complete(processes.unwind())
    finally:
        loop.close()
    if failed:
        raise failed[0]
    return seconds


async def hello(request: web.Request) -> web.Response:
    """Echo."""
    return web.Response(text=f"hello {await request.text()}")


def serving(site: Callable[[web.AppRunner], web.BaseSite]) -> Main:
    """aiohttp's own application server."""

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/", hello)
        runner = web.AppRunner(app)
        await runner.setup()
        await site(runner).start()
        await asyncio.Event().wait()

    return main


def test_aiohttp_serves_at_a_port_and_is_found_by_name() -> None:
    async def client() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post("http://server:80/", data="world") as answer,
        ):
            assert await answer.text() == "hello world"

    seconds = run(server=serving(lambda r: web.TCPSite(r, "0.0.0.0", 80)), client=client)
    assert seconds >= 4 * LATENCY_S, "a connection and a question, there and back"


def test_aiohttp_serves_at_a_path_of_its_own_host_without_a_network() -> None:
    async def client() -> None:
        connector = aiohttp.UnixConnector("/run/service.sock")
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post("http://anything/", data="x" * 300_000) as answer,
        ):
            assert await answer.text() == "hello " + "x" * 300_000

    unix = serving(lambda r: web.UnixSite(r, "/run/service.sock"))
    assert run(one_server=unix, one_client=client) == 0.0


def test_a_path_of_another_host_is_not_there() -> None:
    async def client() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection("/run/service.sock")

    run(server=serving(lambda r: web.UnixSite(r, "/run/service.sock")), client=client)


def test_a_path_or_port_that_is_taken_is_refused() -> None:
    async def client() -> None:
        listens: list[Callable[[], Coroutine[Any, Any, asyncio.AbstractServer]]] = [
            lambda: asyncio.start_unix_server(_nobody, "/run/a"),
            lambda: asyncio.start_server(_nobody, port=7),
        ]
        for listen in listens:
            server = await listen()
            with pytest.raises(OSError, match="in use") as error:
                await listen()
            assert error.value.errno == errno.EADDRINUSE
            server.close()
            (await listen()).close()

    run(client=client)


def test_asyncio_s_own_streams_work() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())  # until the other half is closed
        await writer.drain()
        writer.close()

    async def server() -> None:
        await asyncio.start_server(shout, port=99)
        await asyncio.Event().wait()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("server", 99)
        writer.write(b"quiet " * 50_000)
        writer.write_eof()
        assert await reader.read() == b"QUIET " * 50_000
        writer.close()

    run(server=server, client=client)


def test_tls_is_refused_rather_than_left_out() -> None:
    async def client() -> None:
        loop = asyncio.get_running_loop()
        for attempt in (
            loop.create_connection(asyncio.Protocol, "client", 1, ssl=True),
            loop.create_server(asyncio.Protocol, port=1, ssl=True),
            loop.create_unix_connection(asyncio.Protocol, "/a", ssl=True),
            loop.create_unix_server(asyncio.Protocol, "/a", ssl=True),
        ):
            with pytest.raises(ConfigError, match="leave TLS out"):
                await attempt

    run(client=client)


async def _nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never called."""
