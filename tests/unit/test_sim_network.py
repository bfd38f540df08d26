"""The simulated network: how long bytes take, in which order, and what a broken path shows."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.machines.process import ProcessState, SimProcess
from pydownpour.sim.network.network import SYN_RETRY_S
from tests.fakes.network import LATENCY_S, PORT, STEADY, Net, code, made

NARROW = LinkModel(latency_s=LATENCY_S, jitter=0.0, bytes_per_s=1024)
NARROW_IN = LinkModel(LATENCY_S, jitter=0.0, bytes_per_s=math.inf, down_bytes_per_s=1024)


@pytest.fixture
def net() -> Iterator[Net]:
    with made() as one:
        yield one


def fails(call: Callable[[], object]) -> str:
    """The errno's name a call fails with."""
    with pytest.raises(OSError, match=r".") as raised:
        call()
    return code(raised.value)


def test_a_connection_takes_a_round_trip_and_knows_its_ends(net: Net) -> None:
    client, server = net.connect()
    assert net.loop.now == 2 * LATENCY_S
    assert client.transport.get_extra_info("peername") == (net.there.host.address, PORT)
    names = [end.transport.get_extra_info("sockname") for end in (client, server)]
    assert names[1] == (net.there.host.address, PORT)
    assert server.transport.get_extra_info("peername") == names[0]
    assert client.transport.path == "here>there"
    by_address = net.run(net.here, net.open(net.there.host.address))
    assert by_address.transport.get_extra_info("sockname") != names[0]
    now = net.loop.now
    own = net.run(net.there, net.open())  # within a host there is no way to go
    own.transport.write(b"x")
    net.wait()
    assert net.accepted[-1].pieces == [(now, b"x")]


def test_whom_nobody_can_connect_to(net: Net) -> None:
    assert fails(lambda: net.run(net.here, net.open(port=81))) == "ECONNREFUSED"
    with pytest.raises(socket.gaierror):
        net.run(net.here, net.open("nowhere"))
    elsewhere = net.loop.sock_connect(cast(Any, None), ("192.0.2.1", PORT))
    assert fails(lambda: net.run(net.here, elsewhere)) == "EHOSTUNREACH"
    net.connect()
    net.network.is_closed = True
    assert fails(net.connect) == "ECONNREFUSED"
    net.network.is_closed = False
    net.server.close()
    assert not net.server.is_serving()
    assert fails(net.connect) == "ECONNREFUSED"


def test_a_port_serves_one_listener(net: Net) -> None:
    def listen(port: int, process: SimProcess = net.there) -> Any:
        return net.run(process, net.loop.create_server(asyncio.Protocol, port=port))

    assert fails(lambda: listen(PORT)) == "EADDRINUSE"
    assert listen(PORT, net.here).is_serving()  # another host's ports are its own
    drawn = {listen(0).sockets[0].getsockname() for _ in range(3)}
    assert len(drawn) == 3
    net.server.close()
    assert listen(PORT).sockets[0].getsockname() == (net.there.host.address, PORT)


def test_a_listener_that_dies_refuses_afterwards(net: Net) -> None:
    net.connect()
    net.there.state = ProcessState.DEAD
    net.network.end_process(net.there, silently=False)
    assert fails(net.connect) == "ECONNREFUSED"


@pytest.mark.parametrize("links", [(NARROW, STEADY), (STEADY, NARROW), (STEADY, NARROW_IN)])
def test_bytes_take_the_latency_and_their_time_on_the_narrow_link(
    links: tuple[LinkModel, LinkModel],
) -> None:
    with made(*links) as net:
        one, _ = net.connect()
        other, _ = net.connect()
        start = net.loop.now
        one.transport.write(bytes(512))
        other.transport.write(bytes(256))  # the host's link carries it behind the first
        net.wait(0.5)
        one.transport.write(bytes(1024))
        net.wait()
        arrived = [[at - start for at, _ in end.pieces] for end in net.accepted]
        assert arrived == [[0.5 + LATENCY_S, 1.75 + LATENCY_S], [0.75 + LATENCY_S]]


def test_latencies_are_drawn_around_the_mean_of_both_links() -> None:
    here = LinkModel(latency_s=0.1, jitter=0.5, bytes_per_s=math.inf)
    with made(here, LinkModel(latency_s=0.3, jitter=0.2, bytes_per_s=math.inf)) as net:
        client, server = net.connect()
        sent = []
        for _ in range(200):
            sent.append(net.loop.now)
            client.transport.write(b"x")
            net.wait(1.0)
        took = [at - then for (at, _), then in zip(server.pieces, sent, strict=True)]
        assert 0.1 <= min(took) < 0.12
        assert 0.28 < max(took) <= 0.3


MESSAGES = st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([0.0, 0.01, 0.3])))


@given(messages=MESSAGES, seed=st.integers(0, 2**32), slices=st.integers(1, 9))
def test_bytes_arrive_whole_and_in_order(
    messages: list[tuple[bytes, float]], seed: int, slices: int
) -> None:
    link = LinkModel(latency_s=0.1, jitter=1.0, bytes_per_s=1e3, slices_max=slices)
    with made(link, link, seed) as net:
        client, server = net.connect()
        for payload, pause_s in messages:
            client.transport.write(payload)
            server.transport.writelines([payload[:3], bytearray(payload[3:])])
            if pause_s:
                net.wait(pause_s)
        net.wait()
        for end in (client, server):
            assert end.got == b"".join(payload for payload, _ in messages)
            assert b"" not in [piece for _, piece in end.pieces]


def test_what_is_written_in_one_go_is_one_message_unless_the_link_slices() -> None:
    for slices, counts in ((1, {1}), (4, {1, 2, 3, 4})):
        link = LinkModel(jitter=0.0, slices_max=slices)
        seen = set()
        for seed in range(60):
            with made(link, link, seed) as net:
                client, server = net.connect()
                buffer = bytearray(b"abcd")
                client.transport.write(buffer)
                buffer[:] = b"????"  # it was taken as it was
                client.transport.write(b"efgh" * 20)
                net.wait()
                assert server.got == b"abcd" + b"efgh" * 20
                seen.add(len(server.pieces))
        assert seen == counts


def test_a_cut_path_holds_one_direction_and_heals_in_order(net: Net) -> None:
    client, server = net.connect()
    client.transport.write(b"on its way ")
    net.wait(0.0)
    net.network.cut_path("here", "there")
    for word in (b"held ", b"back"):
        client.transport.write(word)
        net.wait(1.0)
    client.transport.write_eof()
    server.transport.write(b"the other way")
    net.wait()
    assert (server.got, server.told) == (b"on its way ", [])
    assert client.got == b"the other way"
    net.network.heal_path("here", "there")
    healed = net.loop.now
    net.wait()
    assert server.got == b"on its way held back"
    assert {at for at, _ in server.pieces[1:]} == {healed + LATENCY_S}
    assert server.told[0] == (healed + LATENCY_S, "eof")


@given(
    moments=st.lists(st.sampled_from(["write", "cut", "heal", "clog", "wait"])),
    seed=st.integers(0, 99),
)
def test_cuts_and_clogs_neither_lose_nor_reorder(moments: list[str], seed: int) -> None:
    link = LinkModel(latency_s=0.2, jitter=0.9, bytes_per_s=1e3)
    with made(link, link, seed) as net:
        client, server = net.connect()
        written = b""
        for number, what in enumerate(moments):
            if what == "write":
                text = b"%d " % number * 600  # some are more than a packet
                written += text
                client.transport.write(text)
            elif what == "cut":
                net.network.cut_path("here", "there")
            elif what == "heal":
                net.network.heal_all()
            elif what == "clog":
                net.network.clog(net.here.host, net.loop.now + 0.3)
            net.wait(0.1 if what == "wait" else 0.0)
        net.network.heal_all()
        net.wait(1000.0)
        assert server.got == written


@pytest.mark.parametrize("path", [("here", "there"), ("there", "here")])
def test_who_connects_over_a_cut_path_tries_until_it_heals(net: Net, path: tuple[str, str]) -> None:
    net.network.cut_path(*path)
    net.loop.at(9.5, net.network.heal_path, *path)
    net.connect()
    assert 9.5 < net.loop.now <= 9.5 + SYN_RETRY_S + 2 * LATENCY_S


@pytest.mark.parametrize("clogged", ["here", "there"])
def test_a_clog_delays_also_what_was_on_its_way(net: Net, clogged: str) -> None:
    client, server = net.connect()
    client.transport.write(b"on its way")
    net.wait(0.125)
    until = net.loop.now + 5.0
    net.network.clog(net.network.hosts[clogged], until)
    net.network.clog(net.network.hosts[clogged], until - 3.0)  # a shorter one changes nothing
    client.transport.write(b"later")
    server.transport.write(b"back")
    net.connect()  # which waits as well
    assert until <= net.loop.now <= until + SYN_RETRY_S + LATENCY_S
    assert server.pieces == [(until, b"on its way"), (until, b"later")]
    assert client.pieces == [(until, b"back")]


def test_the_last_of_two_clogs_holds_and_may_end_early(net: Net) -> None:
    client, server = net.connect()
    net.network.clog(net.here.host, 100.0)
    net.network.clog(net.there.host, 50.0)
    client.transport.write(b"one ")
    net.wait()
    client.transport.write(b"two ")
    net.wait()
    net.network.unclog(net.here.host)
    client.transport.write(b"three")
    net.wait(1.0)
    assert server.got == b""
    net.wait(100.0)
    assert server.pieces == [(50.0, b"one "), (50.0, b"two "), (50.0, b"three")]
    net.network.clog(net.here.host, 1000.0)
    client.transport.write(b"four")
    net.wait()
    net.network.unclog(net.here.host)
    now = net.loop.now
    net.wait()
    assert server.pieces[3:] == [(now, b"four")]


def test_what_arrives_when_a_clog_ends_comes_behind_what_it_held(net: Net) -> None:
    client, server = net.connect()
    client.transport.write(b"one ")
    net.wait(0.125)
    client.transport.write(b"two")
    net.wait(0.0)
    net.network.clog(net.there.host, net.loop.now + LATENCY_S)
    net.wait()
    assert server.got == b"one two"


def test_both_ends_see_a_connection_break_in_the_middle(net: Net) -> None:
    client, server = net.connect()
    other, _ = net.connect()
    broken, _ = net.network.connections.values()
    client.transport.write(b"lost")
    net.network.reset_connection(broken)
    start = net.loop.now
    net.wait()
    reset = (start + LATENCY_S, "ECONNRESET")
    assert client.told == server.told == [reset]
    assert list(net.network.connections.values()) == [other.transport.connection]
    assert other.told == []


def test_the_fuse_breaks_the_connection_of_the_message_with_its_number(net: Net) -> None:
    client, server = net.connect()
    net.network.fuse = 2
    for word in (b"one ", b"two ", b"three"):
        client.transport.write(word)
        net.wait()
    assert server.got == b"one two "
    assert client.words == server.words == ["ECONNRESET"]


def test_a_proxy_takes_the_upgrade_out(net: Net) -> None:
    client, server = net.connect()
    net.here.host.passes_upgrade = False
    client.transport.write(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
    server.transport.write(b"HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\n\r\n")
    net.wait()
    assert b"Upgrade" not in server.got
    assert b"\r\nUpgrade: websocket" in client.got  # only what goes out through it


@pytest.mark.parametrize("links", [(NARROW, STEADY), (STEADY, NARROW), (STEADY, NARROW_IN)])
def test_what_takes_a_link_long_lets_other_connections_in_between(
    links: tuple[LinkModel, LinkModel],
) -> None:
    with made(*links) as net:
        one, _ = net.connect()
        other, _ = net.connect()
        start = net.loop.now
        text = bytes(range(256)) * 40  # ten seconds' worth
        one.transport.write(text)
        one.transport.write(b"and its end")
        net.wait(1.0)
        other.transport.write(bytes(64))
        net.wait(30.0)
        long, short = net.accepted
        assert long.got == text + b"and its end"
        whole_s = (len(long.got) + 64) / 1024 + LATENCY_S
        assert long.pieces[-1][0] - start == pytest.approx(whole_s)
        assert short.pieces[0][0] - start <= 1.0 + 1500 / 1024 + 0.0625 + LATENCY_S
