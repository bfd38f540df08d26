"""Who may hold a connection, what is said of strangers, and by what name a server is called."""

from __future__ import annotations

import random

import pytest

from pydownpour import limits
from pydownpour.errors import OriginRefused
from pydownpour.net import process
from pydownpour.net.access import Access, Bind
from pydownpour.net.gate import Gate, capacity, neighbourhood
from pydownpour.net.noise import OTHERS, Noise, one_line


def test_the_address_with_most_strangers_gives_up_its_oldest() -> None:
    gate: Gate[int] = Gate(20)
    assert [gate.enter(i, "10.0.0.1") for i in range(7)] == [None] * 7
    assert [gate.enter(i, "10.0.0.2") for i in range(7, 10)] == [None] * 3
    assert gate.strangers == gate.strangers_max == 10
    assert [gate.enter(i, "10.0.0.2") for i in range(10, 13)] == [0, 1, 2]
    gate.prove(3)
    assert gate.enter(13, "10.0.0.3") is None


def test_one_address_has_its_share_and_no_more() -> None:
    gate: Gate[int] = Gate(100, limits.Limits(strangers_per_address_max=3))
    assert [gate.enter(i, "fe80::1:2:3:4") for i in range(3)] == [None] * 3
    assert gate.enter(3, "fe80::1:2:3:5%eth0") == 0, "64 bits are one host's"
    assert gate.enter(4, "10.0.0.1") is None


def test_a_server_full_of_peers_at_work_takes_nobody() -> None:
    gate: Gate[int] = Gate(2)
    for i in range(2):
        assert gate.enter(i, "10.0.0.1") is None
        gate.prove(i)
    assert gate.enter(2, "10.0.0.1") == 2
    gate.rest(0)
    assert gate.enter(3, "10.0.0.1") == 0
    gate.prove(2)  # was refused: cannot come back
    assert len(gate) == 2


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_counts_are_true_and_within_their_bounds(seed: int) -> None:
    rng, gate = random.Random(seed), Gate[int](30)
    inside: set[int] = set()
    for i in range(3000):
        goes = gate.enter(i, f"10.0.0.{rng.randrange(5)}")
        inside.add(i)
        inside.discard(-1 if goes is None else goes)
        for _ in range(3):
            who = rng.randrange(i + 1)
            rng.choice([gate.prove, gate.rest, gate.prove])(who)
        if rng.random() < 0.3:
            gate.leave(who)
            inside.discard(who)
        assert len(gate) == len(inside) <= gate.capacity
        assert gate.strangers <= gate.strangers_max


def test_a_process_keeps_descriptors_for_itself() -> None:
    assert capacity(1024, 30, reserved=200) == 1024 - 30 - 200
    assert capacity(100, 40, reserved=200) == 30, "half of what is free, where there is little"
    assert Gate[int](capacity(10**6, 0, 200)).capacity == limits.DEFAULT.connections_max
    assert Gate[int](capacity(10, 20, 200)).capacity >= 2


def test_mapped_addresses_are_the_ones_they_map() -> None:
    assert neighbourhood("::ffff:10.0.0.1") == neighbourhood("10.0.0.1")
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff")
    assert neighbourhood("2001:db8:0:1::1") != neighbourhood("2001:db8::1")


# -- noise -------------------------------------------------------------------------------------


def test_one_line_an_address_and_minute_and_the_rest_is_counted() -> None:
    noise = Noise()
    assert noise.count("a", 0.0) == 0
    assert [noise.count("a", t) for t in (0.0, 1.0, 59.9)] == [None] * 3
    assert noise.count("b", 59.9) == 0
    assert noise.count("a", 60.0) == 3
    assert noise.count("a", 60.1) is None


def test_addresses_without_end_share_one_line_and_no_memory() -> None:
    noise = Noise()
    said = [noise.count(f"address {i}", 0.0) for i in range(10_000)]
    assert sum(more is not None for more in said) == limits.DEFAULT.noise_addresses_max + 1
    assert len(noise._quiet_until) == limits.DEFAULT.noise_addresses_max + 1
    assert noise.count("one more", 0.0) is None
    assert noise.count("one more", limits.DEFAULT.noise_s) == 0, "old ones are forgotten"
    assert OTHERS not in noise._quiet_until


def test_a_log_line_is_one_line_whatever_it_quotes() -> None:
    assert one_line("a\nb\x1b[2J\udc80", 240) == "a\\nb\\x1b[2J\\udc80"
    assert len(one_line("x" * 10**6, 240)) == 240


# -- names -------------------------------------------------------------------------------------

TOKEN, OPEN = Access(token="open sesame"), Access()
LOOPBACK, LAN = Bind(), Bind("10.0.0.5", 7000)


@pytest.mark.parametrize(
    ("access", "bind", "host"),
    [
        (OPEN, LOOPBACK, "localhost:7000"),
        (OPEN, LOOPBACK, "127.0.0.1"),
        (OPEN, LOOPBACK, "127.8.9.1:80"),
        (OPEN, LOOPBACK, "[::1]:7000"),
        (OPEN, LOOPBACK, "10.9.9.9"),  # what the connection was made to
        (OPEN, Bind("trainer", 7000), "Trainer:7000"),
        (OPEN, LAN, "10.0.0.5:7000"),
        (OPEN, LAN, "192.168.1.1"),  # forwarded: an address cannot be rebound
        (TOKEN, LAN, "train.example"),
        (Access(allow_hosts=("train.example",)), LOOPBACK, "train.example:443"),
        (OPEN, LOOPBACK, ""),
        (Access(insecure=True), Bind("0.0.0.0"), process.host_name()),
        (Access(insecure=True), Bind("0.0.0.0"), process.host_name().partition(".")[0].upper()),
    ],
)
def test_a_server_answers_to_its_names(access: Access, bind: Bind, host: str) -> None:
    access.check_caller(bind, "10.9.9.9", {"Host": host})
    origin = {"Host": host, "Origin": f"https://{host}", "Sec-Fetch-Site": "same-origin"}
    access.check_caller(bind, "10.9.9.9", origin)


@pytest.mark.parametrize(
    ("access", "bind", "host"),
    [
        (OPEN, LOOPBACK, "rebound.example:7000"),
        (TOKEN, LOOPBACK, "rebound.example:7000"),
        (OPEN, LOOPBACK, "10.0.0.5"),
        (OPEN, LOOPBACK, "0.0.0.0:7000"),
        (OPEN, LOOPBACK, "127.0.0.1.rebound.example"),
        (OPEN, LAN, "rebound.example"),
        (OPEN, LOOPBACK, "localhost@rebound.example"),
    ],
)
def test_a_name_that_was_rebound_to_us_is_refused_with_the_way_out(
    access: Access, bind: Bind, host: str
) -> None:
    with pytest.raises(OriginRefused, match=r"not called .* needs --allow-host"):
        access.check_caller(bind, "10.9.9.9", {"Host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:7000"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_pages_of_other_sites_are_refused_with_and_without_sec_fetch_site(
    headers: dict[str, str],
) -> None:
    with pytest.raises(OriginRefused, match="another site"):
        OPEN.check_caller(LOOPBACK, "127.0.0.1", {"Host": "localhost:7000", **headers})
