"""What the simulated network once got wrong: closes, resets and power cuts at awkward moments."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from pydownpour.sim.machines.process import ProcessState, SimProcess
from tests.fakes.network import PORT, End, Net, made
from tests.fakes.processes import World


@pytest.fixture
def net() -> Iterator[Net]:
    """Two hosts and a server on one of them."""
    with made() as one:
        yield one


@pytest.fixture
def world() -> Iterator[World]:
    """Two hosts and nobody on them yet."""
    with contextlib.closing(World()) as one:
        yield one


def test_a_close_over_a_cut_path_is_seen_when_it_is_healed(net: Net) -> None:
    client, server = net.connect()
    net.network.cut_path("here", "there")
    client.transport.close()
    net.wait(1.0)
    net.network.heal_path("here", "there")
    net.wait()
    assert server.words == ["eof", "lost"]


@pytest.mark.parametrize("size", [6, 200_000])
def test_a_close_with_bytes_unread_resets_the_connection(net: Net, size: int) -> None:
    client, server = net.connect()
    client.half_open = True
    server.transport.pause_reading()
    client.transport.write(bytes(size))
    net.wait(1.0)
    server.transport.close()
    net.wait()
    assert client.words[-1] == "ECONNRESET"


def test_a_reset_does_not_pass_a_cut(net: Net) -> None:
    client, server = net.connect()
    net.network.cut_path("here", "there")
    client.transport.abort()
    net.wait()
    assert server.told == []
    net.network.heal_path("here", "there")
    net.wait()
    assert server.words == ["ECONNRESET"]


def test_a_reset_does_not_pass_a_clog(net: Net) -> None:
    client, server = net.connect()
    net.network.clog(net.here.host, net.loop.now + 100.0)
    client.transport.write(b"lost with it")
    client.transport.abort()
    net.wait(50.0)
    assert server.told == []
    net.wait(100.0)
    assert server.words == ["ECONNRESET"]


def test_what_a_killed_process_s_kernel_says_does_not_pass_a_cut(world: World) -> None:
    server = world.connected()
    world.net.network.cut_path("there", "here")
    world.processes.kill(server)
    world.wait()
    assert world.client.told == []
    world.net.network.heal_path("there", "here")
    world.wait()
    assert world.client.words == ["ECONNRESET"]


def test_to_stop_listening_twice_leaves_the_next_listener_alone(net: Net) -> None:
    net.server.close()
    again = net.run(net.there, net.loop.create_server(net._accept, port=PORT))
    net.server.close()
    assert again.is_serving()


def test_a_process_that_dies_leaves_a_port_it_gave_up_to_others(net: Net) -> None:
    net.server.close()
    other = SimProcess("other", 3, net.there.host)
    again = net.run(other, net.loop.create_server(net._accept, port=PORT))
    net.there.state = ProcessState.DEAD
    net.network.end_process(net.there, silently=False)
    assert again.is_serving()


async def late(net: Net) -> End:
    """Connect, and wait a while before the socket gets its protocol."""
    sock = socket.socket()
    await net.loop.sock_connect(sock, (net.there.host.address, PORT))
    await asyncio.sleep(5)
    _, end = await net.loop.create_connection(lambda: End(net.loop), sock=sock)
    assert isinstance(end, End)
    return end


def test_what_arrives_before_the_protocol_waits_for_it(net: Net) -> None:
    net.loop.at(0.6, lambda: net.accepted[0].transport.write(b"hello"))
    end = net.run(net.here, late(net))
    net.wait()
    assert end.got == b"hello"


def test_a_reset_before_the_protocol_waits_for_it(net: Net) -> None:
    net.loop.at(0.6, lambda: net.accepted[0].transport.abort())
    end = net.run(net.here, late(net))
    net.wait()
    assert end.words == ["ECONNRESET"]


def test_bytes_due_when_a_process_goes_on_come_behind_those_held_back(world: World) -> None:
    server = world.connected()
    world.processes.pause(server)
    now = world.loop.now
    world.client.transport.write(b"first ")
    world.wait(0.5)
    world.loop.at(now + 0.75, world.processes.resume, server)
    world.client.transport.write(b"second")
    world.wait()
    assert world.server.got == b"first second"


def test_nobody_hears_how_a_killed_process_ended(world: World) -> None:
    one = world.start(world.ticks)
    world.wait(0.5)
    world.processes.kill(one)
    world.loop.run_until_complete(world.processes.unwind())
    assert world.exits == []


def test_a_power_cut_takes_every_process_of_its_host(world: World) -> None:
    older = world.start(world.serve, "a", world.other)
    younger = world.start(world.ticks, "a", world.other)
    world.wait(1.0)
    world.processes.kill(younger, silently=True)
    assert older.state is ProcessState.DEAD
    assert not world.other.is_up


def test_bytes_on_their_way_when_the_power_goes_are_answered_when_it_is_back(world: World) -> None:
    server = world.connected()
    world.client.transport.write(b"x")
    world.wait(0.1)
    world.processes.kill(server, silently=True)
    world.wait(1.0)
    assert world.client.told == []
    world.start(world.serve, "server", world.other)
    world.wait(100.0)
    assert world.client.words == ["ECONNRESET"]


def test_a_low_mark_alone_raises_the_high_one(net: Net) -> None:
    client, _ = net.connect()
    client.transport.set_write_buffer_limits(low=1 << 20)
    assert client.transport.get_write_buffer_limits() == (1 << 20, 4 << 20)
