"""One end of a simulated connection: flow control, the ways it ends, and who has it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator

import pytest

from pydownpour.sim.machines.process import current
from pydownpour.sim.network.transport import HIGH_WATER
from tests.fakes.network import LATENCY_S, Net, made

HANDED_TO = contextvars.ContextVar("handed_to", default="nobody")


@pytest.fixture
def net() -> Iterator[Net]:
    with made() as one:
        yield one


def test_a_writer_is_paused_above_the_high_mark_and_resumed_at_the_low_one(net: Net) -> None:
    client, server = net.connect()
    server.transport.pause_reading()
    client.transport.write(bytes(HIGH_WATER))
    net.wait()
    assert (client.told, server.pieces) == ([], [])  # the mark itself is not above it
    client.transport.write(b"x")
    assert client.words == ["pause"]
    assert client.transport.get_write_buffer_size() == HIGH_WATER + 1
    server.transport.resume_reading()
    net.wait()
    assert client.words == ["pause", "resume"]
    assert client.transport.get_write_buffer_size() == 0
    client.transport.set_write_buffer_limits(high=10, low=4)
    assert client.transport.get_write_buffer_limits() == (4, 10)
    server.transport.pause_reading()
    server.pauses_after_each = True
    for _ in range(4):
        client.transport.write(b"four")
        net.wait()
    sizes = []
    for _ in range(4):
        sizes.append((client.transport.get_write_buffer_size(), len(client.told)))
        server.transport.resume_reading()
        net.wait()
    assert sizes == [(16, 3), (12, 3), (8, 3), (4, 4)]


def test_a_paused_reader_gets_everything_in_order_when_it_goes_on(net: Net) -> None:
    client, server = net.connect()
    server.transport.pause_reading()
    assert not server.transport.is_reading()
    for number in range(5):
        client.transport.write(b"%d" % number)
        net.wait(1.0)
    client.transport.write_eof()
    net.wait()
    assert (server.pieces, server.told) == ([], [])
    server.transport.resume_reading()
    net.wait()
    assert server.got == b"01234"
    assert server.told[0] == (server.pieces[0][0], "eof")


def test_half_a_connection_may_be_closed(net: Net) -> None:
    client, server = net.connect()
    server.half_open = True
    client.transport.write(b"question")
    assert client.transport.can_write_eof()
    client.transport.write_eof()
    client.transport.write(b"nothing any more")
    net.wait()
    assert (server.got, server.words) == (b"question", ["eof"])
    server.transport.write(b"answer")
    net.wait()
    assert (client.got, client.told) == (b"answer", [])
    server.transport.close()
    net.wait()
    assert client.words == ["eof", "lost"]
    assert server.words == ["eof", "lost"]
    assert net.network.connections == {}


def test_an_end_that_does_not_keep_half_a_connection_closes_with_the_other(net: Net) -> None:
    client, server = net.connect()
    client.transport.close()
    assert client.transport.is_closing()
    start = net.loop.now
    net.wait()
    assert client.told == [(start, "lost")]
    assert server.told == [(start + LATENCY_S, "eof"), (start + LATENCY_S, "lost")]
    assert net.network.connections == {}


def test_a_close_is_flushed(net: Net) -> None:
    client, server = net.connect()
    server.transport.pause_reading()
    payload = bytes(range(256)) * 1024
    client.transport.write(payload)
    client.transport.close()
    client.transport.write(b"nothing any more")
    net.wait()
    assert client.words == ["pause"]  # not over before everything was taken
    server.transport.resume_reading()
    net.wait()
    assert server.got == payload
    assert server.words == ["eof", "lost"]
    assert client.words == ["pause", "lost"]


def test_an_abort_loses_what_was_written_and_the_other_end_sees_a_reset(net: Net) -> None:
    client, server = net.connect()
    client.transport.write(b"lost")
    client.transport.abort()
    client.transport.abort()
    server.transport.write(b"nobody takes it")
    start = net.loop.now
    net.wait()
    assert client.told == [(start, "lost")]
    assert (server.got, server.told) == (b"", [(start + LATENCY_S, "ECONNRESET")])
    assert client.got == b""
    assert net.network.connections == {}
    server.transport.write(b"nobody is there")
    server.transport.close()
    server.transport.abort()
    net.wait()
    assert server.words == ["ECONNRESET"]


def test_what_an_end_does_not_read_any_more_is_taken(net: Net) -> None:
    """Else the other end could not close when it has sent all."""
    client, server = net.connect()
    client.transport.write(bytes(2 * HIGH_WATER))
    server.half_open = True
    server.transport.close()
    net.wait()
    assert server.got == b""
    assert "lost" in client.words
    assert net.network.connections == {}


class Filled(asyncio.BufferedProtocol):
    """Takes bytes through a buffer of three."""

    def __init__(self) -> None:
        self.buffer = bytearray(3)
        self.got: list[bytes] = []
        self.owners: set[tuple[object, str]] = set()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got.append(bytes(self.buffer[:nbytes]))
        self.owners.add((current(), HANDED_TO.get()))


def test_a_connection_is_handed_over_in_the_middle(net: Net) -> None:
    client, server = net.connect()
    filled = Filled()
    client.transport.write(b"head ")
    net.wait(1.0)
    server.transport.pause_reading()
    client.transport.write(b"body of ")
    net.wait(1.0)
    context = net.there.context.copy()
    context.run(HANDED_TO.set, "filled")
    context.run(server.transport.set_protocol, filled)
    assert server.transport.get_protocol() is filled
    server.transport.resume_reading()
    client.transport.write(b"two parts")
    net.wait()
    assert server.got == b"head "
    assert filled.got == [b"bod", b"y o", b"f ", b"two", b" pa", b"rts"]
    assert filled.owners == {(net.there, "filled")}


def test_a_protocol_that_closes_in_the_middle_gets_nothing_more(net: Net) -> None:
    client, server = net.connect()
    server.pauses_after_each = True
    for _ in range(2):
        client.transport.write(b"message")
        net.wait(1.0)

    class Closing(asyncio.Protocol):
        got = 0

        def data_received(self, data: bytes) -> None:
            self.got += 1
            server.transport.close()

    closing = Closing()
    server.transport.set_protocol(closing)
    client.transport.write(b"message")
    net.wait()
    server.transport.resume_reading()
    net.wait()
    assert closing.got == 1
