"""A request's time limit is a limit on silence: on virtual time, over links of 10 kB/s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from pydownpour import limits
from pydownpour.errors import DeadlineExceeded
from pydownpour.net.access import Access, Bind
from pydownpour.net.client import Client
from pydownpour.net.server import Call, FrameBody, Route, Server
from pydownpour.sim.machines.host import LinkModel
from pydownpour.wire.messages import HeartbeatAnswer, Stop
from tests.fakes.network import Net, made

T = TypeVar("T")

SLOW = LinkModel(latency_s=0.05, bytes_per_s=float(limits.DEFAULT.link_rate_min))
SIZE = 500_000
"""Bytes: most of a minute."""
LIMIT_S = 5.0
ACCESS = Access(insecure=True)


async def takes(call: Call) -> bytes:
    assert call.chunks is not None
    return b"%d" % sum([len(chunk) async for chunk in call.chunks])


async def gives(call: Call) -> FrameBody:
    pieces = iter([[bytes(SIZE // 10)]] * 10)
    return FrameBody(lambda: next(pieces, None))


@pytest.fixture
def net() -> Iterator[Net]:
    with made(SLOW, SLOW) as net:
        yield net


def ask(net: Net, question: Callable[[Client], Awaitable[T]]) -> T:
    """Ask a server that takes and gives."""

    async def serve() -> Server:
        routes = [
            Route("POST", "/take", takes, body_size_max=SIZE, streamed=True),
            Route("POST", "/give", gives),
        ]
        bind = Bind(host=net.there.host.address, port=0)
        server = Server(routes, bind=bind, access=ACCESS, name="test")
        await server.start()
        return server

    server = net.run(net.there, serve())

    async def run() -> T:
        async with Client(server.url, access=ACCESS) as client:
            return await question(client)

    try:
        return net.run(net.here, run())
    finally:
        net.run(net.there, server.stop())


def test_a_long_body_may_take_as_long_as_it_moves(net: Net) -> None:
    buffers = [bytes(SIZE // 2)] * 2
    answer = ask(
        net, lambda client: client.exchange("/take", buffers, {}, size_max=99, timeout_s=LIMIT_S)
    )
    assert answer == b"%d" % SIZE
    assert net.loop.now > SIZE / limits.DEFAULT.link_rate_min


def test_a_long_answer_may_take_as_long_as_it_moves(net: Net) -> None:
    answer = ask(net, lambda c: c.exchange("/give", [], {}, size_max=SIZE, timeout_s=LIMIT_S))
    assert len(answer) == SIZE
    assert net.loop.now > SIZE / limits.DEFAULT.link_rate_min


def test_a_body_that_does_not_move_is_given_up_in_time(net: Net) -> None:
    cut_at = 20.0
    net.loop.at(cut_at, net.network.cut_path, "here", "there")
    with pytest.raises(DeadlineExceeded, match="5 s"):
        ask(net, lambda c: c.exchange("/take", [bytes(SIZE)], {}, size_max=99, timeout_s=LIMIT_S))
    assert cut_at + LIMIT_S <= net.loop.now < cut_at + 3 * LIMIT_S


def test_a_small_question_without_an_answer_is_given_up_exactly(net: Net) -> None:
    async def twice(client: Client) -> float:
        await client.exchange("/take", [b"x"], {}, size_max=9)
        net.network.cut_path("there", "here")
        began = net.loop.time()
        with pytest.raises(DeadlineExceeded):
            await client.post("/take", Stop(reason="x"), HeartbeatAnswer, timeout_s=LIMIT_S)
        return net.loop.time() - began

    assert ask(net, twice) == pytest.approx(LIMIT_S)
