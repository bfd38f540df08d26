"""All HTTP routes of coordinator and shard against requests that are wrong in every way we know.

The real services over the simulated network: each request arrives in pieces, from many connections,
with and without the token. Whatever it is, the answer has a status that is meant, no traceback is
logged, nothing that it made stays, and an honest request gets its answer within a few turns of the
loop. Seeds are few and fixed; DOWNPOUR_SEEDS and DOWNPOUR_SEED_FIRST look for more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from pydownpour import _core, limits
from pydownpour.errors import LocalProtocolError
from pydownpour.net.access import Access
from pydownpour.net.server import Route, Server, UpgradeRoute
from pydownpour.shard.service import ShardService
from pydownpour.wire import messages
from tests.fakes.network import End
from tests.fakes.serving import HEAD, Serving, serving
from tests.unit.test_coordinator_service import House
from tests.unit.test_shard_memory import shard as make_shard

SEEDS = int(os.environ.get("DOWNPOUR_SEEDS", "3"))
FIRST = int(os.environ.get("DOWNPOUR_SEED_FIRST", "0"))
REQUESTS = 250
TURNS_MAX = 60
"""Turns of the loop an honest request takes at most while all that goes on; alone it takes ten."""
MEANT = re.compile(rb"HTTP/1\.[01] (101|200|4\d\d|503) ")

WORDS = (
    "", "0", "1", "-1", "\u00b2", "\uff11\uff12", "1_0", " 1", "1e3", "9" * 25, "9" * 5000, "NaN",
    "null", "\x00", "%00", "../../etc/passwd", "\u00e9", "\udcff", "a" * 300, "{}", "[]", "true",
    "0x10", "18446744073709551616",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, "", "x", "x" * 70_000, [], {},
    [[]] * 50, {"a": 1}, list(range(2000)), "\ud800", {str(i): i for i in range(500)},
)  # fmt: skip
"""What may stand in any field."""


class Fuzz:
    """Makes requests for some routes."""

    def __init__(self, seed: int, routes: Sequence[Route | UpgradeRoute], own: bytes) -> None:
        self.rng = random.Random(seed)
        self.routes, self.own = routes, own
        self.kinds = [kind for kind in vars(messages).values() if is_message(kind)]

    def stream(self) -> tuple[bytes, bytes]:
        """An upgrade as it should be, and what is said on the stream then."""
        upgrade = f"Connection: Upgrade\r\nUpgrade: {messages.UPGRADE}\r\n\r\n".encode()
        return b"GET /v1/stream HTTP/1.1\r\n" + HEAD + self.own + upgrade, self._frames()

    def request(self) -> bytes:
        """One, whole or not."""
        rng = self.rng
        data = self._line() + self._headers() + b"\r\n"
        if rng.random() < 0.1:
            data = data * rng.randrange(2, 40)  # pipelined
        if rng.random() < 0.2:
            data = self._damaged(data)
        return data

    def _line(self) -> bytes:
        rng, route = self.rng, self.rng.choice(self.routes)
        method = route.method if isinstance(route, Route) else "GET"
        if rng.random() < 0.1:
            method = rng.choice(
                ["HEAD", "PUT", "OPTIONS", "CONNECT", "get", "TRACE", "POST", "X" * 99]
            )
        path = route.path
        if rng.random() < 0.5:
            key = rng.choice(["since", "shard", "x", "since&since", "%ff"])
            path += f"?{key}={rng.choice(WORDS)}"
        if rng.random() < 0.05:
            path = rng.choice(["*", "/", "//", "http://10.0.0.2/v1/status", "/" + "a" * 9000, "?"])
        version = (
            "HTTP/1.1" if rng.random() < 0.95 else rng.choice(["HTTP/1.0", "HTTP/2", "HTTP/1.9"])
        )
        return f"{method} {path} {version}\r\n".encode("utf-8", "surrogateescape")

    def _headers(self) -> bytes:
        rng = self.rng
        body = self._body()
        known = [
            (messages.HEADER_REPLICA, WORDS), (messages.HEADER_INCARNATION, WORDS),
            (messages.HEADER_EPOCH, WORDS), (messages.HEADER_FINGERPRINT, WORDS),
            (messages.HEADER_SECRET, WORDS),
            ("Content-Type", (*WORDS, "text/plain", "application/json")),
            ("Origin", ("null", "http://evil.example", "http://10.0.0.2")), ("Host", WORDS),
            ("Upgrade", (messages.UPGRADE, "websocket", "h2c", "pydownpour/99")),
            ("Connection", ("upgrade", "close", "keep-alive")), ("Expect", ("100-continue",)),
            ("Sec-Fetch-Site", ("cross-site", "none")), ("Authorization", WORDS),
            ("Content-Encoding", ("gzip", "br")), ("Range", ("bytes=0-",)),
        ]  # fmt: skip
        lines = [HEAD] if rng.random() < 0.8 else [b"Host: 10.0.0.2\r\n"]
        lines += [self.own] if rng.random() < 0.5 else []
        lines += [b"Content-Type: application/json\r\n"] if rng.random() < 0.7 else []
        for name, values in rng.sample(known, rng.randrange(4)):
            lines.append(f"{name}: {rng.choice(values)}\r\n".encode("utf-8", "surrogateescape"))
        framing = rng.random()
        if framing < 0.7:
            lines.append(b"Content-Length: %d\r\n" % len(body))
        elif framing < 0.8:
            lines.append(b"Content-Length: %d\r\n" % rng.choice([0, 1, 10**6, 10**12, 10**30]))
        elif framing < 0.9:
            lines.append(b"Transfer-Encoding: chunked\r\n")
            body = b"".join(b"1\r\n%c\r\n" % byte for byte in body[:2000]) + b"0\r\n\r\n"
        return b"".join(lines) + b"\r\n" + body

    def _body(self) -> bytes:
        rng = self.rng
        shape = rng.random()
        if shape < 0.2:
            return b""
        if shape < 0.3:
            return rng.randbytes(rng.randrange(3000))
        if shape < 0.4:
            return rng.choice([b"[", b'{"a":', b"[[{}"]) * rng.randrange(1, 50_000)
        if shape < 0.6:
            return self._frames()
        kind = rng.choice(self.kinds)
        fields = [*kind.__struct_fields__, "unknown"]
        chosen = rng.sample(fields, rng.randrange(len(fields) + 1))
        return json.dumps({name: rng.choice(JSON_VALUES) for name in chosen}).encode()

    def _frames(self) -> bytes:
        rng = self.rng
        pieces = []
        for _ in range(rng.randrange(1, 40)):
            numbers = [rng.choice([0, 1, 2, 10**6, 2**31, 2**32 - 1]) for _ in range(4)]
            with contextlib.suppress(LocalProtocolError):  # the core refuses to encode some
                frame = _core.encode_frame(
                    kind=rng.choice([1, 2, 5, 8, 9, 11]),
                    replica=numbers[0],
                    incarnation=numbers[1],
                    fragment=numbers[2],
                    count=numbers[3],
                    seq=rng.choice([0, 1, 2**40, 2**64 - 1]),
                    payload=rng.randbytes(rng.choice([0, 24, 100])),
                    dtype=rng.choice([0, 1]),
                )
                pieces.append(frame)
        data = b"".join(pieces) or b"PDP1"
        return self._damaged(data) if rng.random() < 0.3 else data

    def _damaged(self, data: bytes) -> bytes:
        rng, damaged = self.rng, bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(damaged))
            how = rng.random()
            if how < 0.4:
                damaged[place] = rng.randrange(256)
            elif how < 0.7:
                del damaged[place:]
            else:
                damaged[place:place] = rng.choice([b"\r\n", b"\x00", b"\n", b" ", b":"])
            damaged = damaged or bytearray(b"\r")
        return bytes(damaged)

    def pieces(self, data: bytes) -> list[bytes]:
        """As a network may cut them."""
        cuts = sorted(self.rng.randrange(len(data)) for _ in range(self.rng.randrange(4)))
        bounds = [0, *cuts, len(data)]
        return [data[a:b] for a, b in itertools.pairwise(bounds) if b > a]


def is_message(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, messages.Message)
        and kind is not messages.Message
    )


class Target(Protocol):
    """What is fuzzed, and what it must not have kept."""

    net: Serving
    own: bytes

    def kept(self) -> dict[str, int]:
        """Things that must be gone when all connections are."""


class ShardTarget:
    """A loaded shard of a kilobyte or four, and replica 1's headers."""

    def __init__(self, net: Serving, service: ShardService) -> None:
        self.net, shard = net, service.shard
        assert shard is not None
        self.shard = shard
        mine = {
            messages.HEADER_REPLICA: "1",
            messages.HEADER_INCARNATION: "1",
            messages.HEADER_EPOCH: str(shard.assigned.epoch),
            messages.HEADER_SECRET: shard.keeper.secret("replica", 1, 1),
        }
        self.own = "".join(f"{name}: {value}\r\n" for name, value in mine.items()).encode()

    def kept(self) -> dict[str, int]:
        return {"streams": len(self.shard.streams), "reserved bytes": self.shard.reserved_bytes}


class CoordinatorTarget:
    """A coordinator whose job runs with two shards and a replica."""

    own = b""

    def __init__(self, net: Serving, house: House) -> None:
        self.net, self.house = net, house

    def kept(self) -> dict[str, int]:
        """A message that is well formed is a peer's, and a join adds a member; nothing else may."""
        places = [place for place in self.house.job.places if place.state != "ready"]
        return {"shards lost": len(places), "over": int(self.house.job.state != "running")}


class Watch:
    """Counts turns of the loop, and how many an honest request takes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.turn, self.most, self.served = 0, 0, 0
        self._arrived = 0
        self._patch = patch
        self.route = Route("GET", "/probe", self._probe)

    def follow(self, net: Serving) -> None:
        run_once = net.loop._run_once

        def next_turn() -> None:
            self.turn += 1
            run_once()

        self._patch.setattr(net.loop, "_run_once", next_turn)

    def arrives(self) -> None:
        self._arrived = self.turn

    async def _probe(self, call: Any) -> str:
        self.served += 1
        self.most = max(self.most, self.turn - self._arrived)
        return "ok"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture(params=["coordinator", "shard"])
def target(request: pytest.FixtureRequest, watch: Watch) -> Iterator[Target]:
    if request.param == "shard":
        service = ShardService(Access())
        loaded = service._shard = make_shard(1000)
        loaded.store.load(0, np.zeros(1000, np.float32))
        loaded.serve(loaded.assigned.epoch)
        with serving([*service.routes(), watch.route]) as net:
            watch.follow(net)
            yield ShardTarget(net, service)
        return
    with serving([watch.route]) as net:

        async def begin() -> House:
            house = House()
            await house.begin()
            return house

        house = net.run(net.there, begin())
        assert house.running is not None
        try:
            net.run(net.there, net.server_.stop())
            net.start([*house.service.routes(), watch.route])
            beating = net.loop.create_task(beats(house), context=net.there.context.copy())
            watch.follow(net)
            yield CoordinatorTarget(net, house)
            beating.cancel()
        finally:
            house.running.cancel()
            net.wait(10.0)


async def beats(house: House) -> None:
    """The shards live."""
    while True:
        for index in range(2):
            await house.shard_beat(index)
        await asyncio.sleep(limits.DEFAULT.heartbeat_s)


def routes_of(target: Target) -> list[Route | UpgradeRoute]:
    server: Server = target.net.server_
    routes: list[Route | UpgradeRoute] = [*server._routes.values(), *server._upgrades.values()]
    # Who has the token may stop the job: that would be obeyed.
    return [route for route in routes if route.path not in ("/probe", "/v1/stop")]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_whatever_is_asked_the_answer_is_meant_and_nothing_stays(
    target: Target, watch: Watch, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    net, fuzz = target.net, Fuzz(seed, routes_of(target), target.own)
    open_ends: list[End] = []
    for number in range(REQUESTS):
        probe = net.call()
        end = fuzz.rng.choice(open_ends) if open_ends and fuzz.rng.random() < 0.3 else net.call()
        open_ends = [*open_ends[-20:], end]
        if target.own and fuzz.rng.random() < 0.15:
            end = net.call()
            data, frames = fuzz.stream()
            net.say(end, data)
            net.wait(0.6)
            assert end.got.startswith(b"HTTP/1.1 101 "), end.got
            net.say(end, *fuzz.pieces(frames))
        else:
            data = fuzz.request()
            net.say(end, *fuzz.pieces(data))
        net.loop.at(net.loop.now + 0.25, watch.arrives)
        net.say(probe, b"GET /probe HTTP/1.1\r\n" + HEAD + b"\r\n")
        net.wait(0.6)
        probe.transport.abort()
        statuses = re.findall(rb"HTTP/1\.[01] (\d\d\d) ", end.got)
        wrong = [status for status in statuses if not MEANT.match(b"HTTP/1.1 %s " % status)]
        assert not wrong, (number, data[:300], end.got[:500])
        assert watch.served == number + 1, (number, data[:300])
        assert watch.most <= TURNS_MAX, (number, watch.most, data[:300])
        for record in caplog.records:
            assert not record.exc_info, (data[:300], record)
            assert record.levelno < logging.ERROR, (data[:300], record)
        caplog.clear()
        if number % 10 == 0:
            fuzz.rng.choice(open_ends).transport.abort()
    for transport in net.network.ends_of(net.here):
        transport.abort()
    net.wait(limits.DEFAULT.request_timeout_s)
    server: Any = net.server_
    http = server._runner.server
    kept = target.kept() | {
        "connections": len(http.gate),
        "bodies": server._bodies.used,
        "handlers": len(http.connections),
        "streams of the server": len(server._streams),
    }
    assert not any(kept.values()), kept
