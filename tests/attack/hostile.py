"""What a peer or a stranger can do to a running job with a socket and bad intentions.

Each act is one coroutine, bounded in count and time; it pushes no gradient that the job takes, so
whatever it changes in the parameters is a fault of ours. Acts know the job's URLs; those of a peer
know its token, too, and may have joined as themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import random
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from pydownpour import _core
from pydownpour.net.access import Access
from pydownpour.wire import frames
from pydownpour.wire.frames import Kind
from tests.e2e.stranger import Stranger

ANSWER_S = 20.0
"""An act waits so long for an answer, and goes on without."""
SHOUT_S = 2.0
"""A stream that is not closed on its peer is left after so long."""
U32, U64 = 2**32 - 1, 2**64 - 1
COLLIDING = 2**61 - 1
"""Python's hashes of integers repeat with this period."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The job under attack.

    Attributes:
        coordinator, shards: Their URLs.
        token: The job's; an act of a stranger does not use it.
        victims: Ids of honest replicas, each in its first incarnation.
        scale: How much of everything; 1 is the short form.
        seed: Of everything random.
    """

    coordinator: str
    shards: tuple[str, ...]
    token: str
    victims: tuple[int, ...]
    scale: int = 1
    seed: int = 7

    @property
    def urls(self) -> tuple[str, ...]:
        """Everybody who listens."""
        return self.coordinator, *self.shards

    @property
    def access(self) -> Access:
        """A peer's."""
        return Access(token=self.token)

    @property
    def headers(self) -> dict[str, str]:
        """The token, as a peer sends it."""
        return {"Authorization": f"Bearer {self.token}"}


@contextlib.asynccontextmanager
async def connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection that ends by a reset."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(method: str, path: str, headers: dict[str, str], *, host: str = "localhost") -> bytes:
    """The first lines of a request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


async def send(url: str, data: bytes | Iterable[bytes]) -> bytes:
    """Send bytes and read what comes back; a reset or silence is an answer, too."""
    heard = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S), connection(url) as (reader, writer):
            for piece in [data] if isinstance(data, bytes) else data:
                writer.write(piece)
                await writer.drain()
            while chunk := await reader.read(1 << 16):
                heard += chunk
    return heard


async def ask(
    target: Target, url: str, method: str, path: str, body: bytes = b"", **headers: str
) -> int:
    """One request of a peer; the status, or 0 if the connection brought none."""
    sent = {
        **target.headers,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    heard = await send(url, [head(method, path, sent), body])
    words = heard.split(b" ", 2)
    return int(words[1]) if len(words) > 2 and words[1].isdigit() else 0


async def together(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """All at once; what a hostile peer gets for it does not matter to it."""
    return await asyncio.gather(*work, return_exceptions=True)


def push_frame(stranger: Stranger, **fields: Any) -> bytes:
    """An announcement, with whatever numbers."""
    notice = frames.PUSH_NOTICE.pack(
        fields.pop("first_open", 1), fields.pop("clock", 1), fields.pop("samples", 1)
    )
    return _core.encode_frame(
        kind=Kind.PUSH,
        payload=notice,
        **{
            "replica": stranger.replica,
            "incarnation": stranger.incarnation,
            "seq": 1,
            "count": 1,
            **fields,
        },
    )


async def shout(stranger: Stranger, data: bytes) -> None:
    """Say it on a stream of one's own, and by POST."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(SHOUT_S), stranger.stream() as stream:
            stream.write(data)
            await stream.wait_closed()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ANSWER_S):
            await stranger.post(data)


async def enter(target: Target, name: str = "hostile") -> Stranger:
    """Join, as anybody may who has the token."""
    return await Stranger.join(target.coordinator, target.access, name=name)


# -- the acts --------------------------------------------------------------------------------------


async def silent_connections(target: Target) -> None:
    """A stranger opens far more connections than a process has descriptors, and says nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = min(400 * target.scale, hard // 24)
    held: list[asyncio.StreamWriter] = []

    async def hold(url: str, number: int) -> None:
        parts = urlsplit(url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        held.append(writer)
        if number % 3 == 1:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow")
        elif number % 3 == 2:
            writer.write(head("POST", "/v1/heartbeat", {"Content-Length": "100"}) + b"{")

    try:
        for _ in range(6):  # whoever is thrown out comes again
            for url in target.urls:
                for first in range(0, wanted, 200):
                    await together(hold(url, first + i) for i in range(200))
            await asyncio.sleep(1.0)
            for writer in held:
                if not writer.is_closing():
                    writer.write(b"x")
            gone = [writer for writer in held if writer.is_closing()]
            held[:] = [writer for writer in held if not writer.is_closing()]
            for writer in gone:
                writer.transport.abort()
    finally:
        for writer in held:
            writer.transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def huge_counts(target: Target) -> None:
    """Announcements whose numbers would keep a shard busy for years."""
    stranger = await enter(target)
    for fields in (
        {"count": U32, "first_open": 1 << 40},
        {"count": U32, "first_open": U64},
        {"count": U32, "seq": U64},
        {"count": U32, "seq": 1 << 63},
        {"count": 0},
        {"count": 4, "seq": U64 - 3},
        {"count": 4, "fragment": U32 - 3},
        {"count": 1, "first_open": 1 << 62, "clock": U64, "samples": U64},
    ):
        await shout(stranger, push_frame(stranger, **fields) * 2)
    for since in (0, 1 << 63, U64):
        fetch = _core.encode_frame(kind=Kind.FETCH, seq=U64, version=since)
        await shout(stranger, fetch * 200)


async def heavy_bodies(target: Target) -> None:
    """Bodies within every limit of size whose checking is more than linear."""
    extents = json.dumps({"arrays": [["w", [2**62] * 200_000, 1]], "fingerprint": ""}).encode()
    named = {"name": "w", "shape": [2**62] * 200_000, "dtype": "float32"}
    other = json.dumps({"arrays": [named], "fingerprint": "x"}).encode()
    colliding = ",".join(f'"{i * COLLIDING}":1' for i in range(40_000))
    keys = (
        '{"role":"replica","id":1,"incarnation":1,"replica":{"staleness":{' + colliding + "}}}"
    ).encode()
    shard_keys = (
        '{"role":"shard","id":0,"epoch":1,"shard":{"refused_by_replica":{' + colliding + "}}}"
    ).encode()
    deep = b"[" * 1_000_000
    units = json.dumps(
        {
            "replica": 1,
            "incarnation": 1,
            "units": [{"pass_index": 0, "unit": 0, "lease": 1}] * 50_000,
        }
    ).encode()
    held = json.dumps({"replica": 1, "incarnation": 1, "held": list(range(500_000))}).encode()
    for path, body in (
        ("/v1/join", extents), ("/v1/join", other), ("/v1/heartbeat", keys),
        ("/v1/heartbeat", shard_keys), ("/v1/join", deep), ("/v1/complete", units),
        ("/v1/lease", held), ("/v1/join", b'{"a":' * 100_000),
    ):  # fmt: skip
        for _ in range(target.scale):
            await ask(target, target.coordinator, "POST", path, body)


async def unbounded_numbers(target: Target) -> None:
    """Integers without end, infinities and nonsense where counts belong."""
    stranger = await enter(target)
    who = f'"role":"replica","id":{stranger.replica},"incarnation":{stranger.incarnation}'
    secret = getattr(stranger.joined, "secret", "")
    who += f',"secret":"{secret}"'
    for value in ("9" * 4000, "1e400", "-1e400", "-1", "1.5", "NaN", '"x"', "null", "true"):
        for field in ("samples", "loss", "steps", "waited_work_s", "rss_bytes", "pushes_sent"):
            body = f'{{{who},"replica":{{"{field}":{value}}}}}'.encode()
            await ask(target, target.coordinator, "POST", "/v1/heartbeat", body)
    for path in ("/v1/fetch?since=\u00b2", "/v1/fetch?since=" + "9" * 5000, "/v1/initial?shard=²"):
        for url in target.urls:
            await ask(target, url, "GET", path)


async def another_s_identity(target: Target) -> None:
    """A peer plays every honest replica and shard: pushes, cuts, fences, leaves, rejoins, beats."""
    stranger = await enter(target)
    for victim in target.victims:
        for incarnation, secret in ((1, None), (U32, None), (2, None), (1, "0" * 64)):
            played = Stranger(stranger.joined, target.access)
            played.replica, played.incarnation = victim, incarnation
            floor = push_frame(played, first_open=1 << 62, seq=1 << 62)
            near = push_frame(played, first_open=600, seq=600)
            await shout(played, floor)
            await shout(played, near)
            who: dict[str, Any] = {"replica": victim, "incarnation": incarnation}
            if secret is not None:
                who["secret"] = secret
            beat = {**who, "role": "replica", "id": victim}
            for path, message in (
                ("/v1/heartbeat", beat),
                ("/v1/lease", {**who, "count": 4}),
                ("/v1/complete", {**who, "units": []}),
                ("/v1/leave", {**who, "reason": "gone"}),
            ):
                body = json.dumps(message).encode()
                await ask(target, target.coordinator, "POST", path, body)
        rejoin = {"replica": victim, "name": "mallory"}
        await ask(target, target.coordinator, "POST", "/v1/join", json.dumps(rejoin).encode())
    for index in range(len(target.shards)):
        for epoch in (0, 1, 2, 2**31):
            beat = {"role": "shard", "id": index, "epoch": epoch, "shard": {"index": index}}
            await ask(
                target, target.coordinator, "POST", "/v1/heartbeat", json.dumps(beat).encode()
            )
        hello = {"url": "http://127.0.0.1:1", "index": index, "nonce": "mine"}
        await ask(target, target.coordinator, "POST", "/v1/shard", json.dumps(hello).encode())


async def floods(target: Target) -> None:
    """More work in one read than a turn of the loop may take."""
    stranger = await enter(target)
    refused = push_frame(stranger, seq=5000, count=0, first_open=5000) * 3000
    pings = frames.simple(Kind.PING, seq=1) * 20_000
    await together(shout(stranger, data) for data in (refused, pings, refused + pings))
    chunks = b"1\r\nx\r\n" * 220_000 * target.scale
    start = head(
        "POST",
        "/v1/push",
        {**target.headers, **stranger.headers, "Transfer-Encoding": "chunked"},
    )
    await together(send(url, start + chunks) for url in target.shards)
    start = head("POST", "/v1/heartbeat", {**target.headers, "Transfer-Encoding": "chunked"})
    await send(target.coordinator, start + chunks)


async def bloat(target: Target) -> None:
    """Everything that might be kept for a peer, as large and as often as it is let."""
    big = "x" * 3_900_000
    for field in ("host", "version", "name", "nonce"):
        body = json.dumps({field: big}).encode()
        for _ in range(8 * target.scale):
            await ask(target, target.coordinator, "POST", "/v1/join", body)
    for field in ("url", "host", "version", "nonce"):
        body = json.dumps({"url": "http://127.0.0.1:1", "host": "h", field: big}).encode()
        for _ in range(2 * target.scale):
            await ask(target, target.coordinator, "POST", "/v1/shard", body)
    members = [await enter(target, f"many-{number}") for number in range(60 * target.scale)]
    announcements = push_frame(members[0], seq=5000) * 60_000
    await shout(members[0], announcements)

    async def idle(stranger: Stranger, replica: int) -> None:
        stranger.replica = replica
        with contextlib.suppress(Exception):
            async with stranger.stream():
                await asyncio.sleep(2.0)

    unknown = [Stranger(members[0].joined, target.access) for _ in range(300)]
    await together(idle(each, 1000 + number) for number, each in enumerate(unknown))

    async def slow_reader(url: str, path: str) -> None:
        with contextlib.suppress(OSError):
            async with connection(url) as (reader, writer):
                sent = {**target.headers, **members[1].headers}
                writer.write(head("GET", path, sent))
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(2.0)

    work = [slow_reader(target.coordinator, "/v1/initial?shard=0") for _ in range(20)]
    work += [slow_reader(url, "/v1/fetch?since=0") for url in target.shards for _ in range(20)]
    await together(work)


async def noise(target: Target) -> None:
    """Requests that are nobody's: each could leave a line or a traceback in a log."""
    rng = random.Random(target.seed)
    junk = [
        b"\x00\x01\x02\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"POST /v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"BREW /coffee HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]  # fmt: skip
    for _ in range(30 * target.scale):
        pieces = [rng.choice(junk) for _ in range(10)] + [rng.randbytes(rng.randint(1, 400))]
        await together(send_and_go(url, piece) for url in target.urls for piece in pieces)


async def send_and_go(url: str, data: bytes) -> None:
    """Send, take one answer, and go."""
    async with asyncio.timeout(ANSWER_S), connection(url) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        await reader.read(1 << 12)


async def a_web_page(target: Target) -> list[bytes]:
    """What a browser sends whose page was served by somebody else, and a name that was rebound.

    Returns the first lines of what it got for asking to stop the job.
    """
    lines = []
    stop = json.dumps({"reason": "a page"}).encode()
    length = {"Content-Length": str(len(stop)), "Content-Type": "text/plain"}
    for host, headers in (
        ("evil.example", {}),
        ("evil.example:8000", {"Origin": "http://evil.example:8000"}),
        ("localhost", {"Sec-Fetch-Site": "cross-site"}),
        ("localhost", {"Origin": "http://evil.example"}),
        ("127.0.0.1", {"Origin": "null"}),
    ):
        for url in target.urls:
            for method, path in (("POST", "/v1/stop"), ("GET", "/v1/status")):
                sent = {**length, **headers, "Connection": "close"}
                heard = await send(url, head(method, path, sent, host=host) + stop)
                lines.append(heard.split(b"\r\n", 1)[0])
    return lines


async def not_numbers(target: Target) -> None:
    """Gradients that would poison: a peer's own pushes, none of which may change anything."""
    stranger = await enter(target)
    size = min(1 << 15, _longest(stranger))
    for value in (np.nan, np.inf, -np.inf):
        await shout(stranger, stranger.push(np.full(size, value, np.float32)))
    await shout(stranger, stranger.push(np.zeros(3, np.float32)))


async def finite_lies(target: Target) -> None:
    """A peer's own pushes that are finite and as large as float32 has room for, or a little too
    large, whatever they say of themselves."""
    stranger = await enter(target)
    size = min(1 << 15, _longest(stranger))
    number = 0
    for value in (3e38, -1e18, 1.0):
        for norm in (0.0, 1.0, math.inf):
            for fragment in range(2):
                number += 1
                values = np.full(size, value, np.float32)
                lie = stranger.push(values, number=number, first=fragment, norm=norm)
                await shout(stranger, lie)


def _longest(stranger: Stranger) -> int:
    return min(stranger.joined.fragment_len, stranger.shard.len)


ACTS: Final[dict[str, Callable[[Target], Awaitable[Any]]]] = {
    act.__name__: act
    for act in (
        silent_connections,
        huge_counts,
        heavy_bodies,
        unbounded_numbers,
        another_s_identity,
        floods,
        bloat,
        noise,
        a_web_page,
        not_numbers,
        finite_lies,
    )
}
