"""Listener and client: tokens, limits, errors in words, streams. Real loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pydownpour.errors import (
    AuthError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    Fenced,
    PeerLost,
    RemoteProtocolError,
    TooLarge,
    UpgradeRefused,
)
from pydownpour.net.access import Access, Bind, Tls
from pydownpour.net.client import Client
from pydownpour.net.server import Call, FrameBody, Route, Server, UpgradeRoute
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire.messages import HeartbeatAnswer, Status, Stop
from tests.e2e.stranger import raw_connection, rest_of

TOKEN = Access(token="open sesame")


class Echo(StreamProtocol):
    """Sends back what it gets; keeps what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = bytearray(1000)
        self.heard = bytearray()
        self.news = asyncio.Event()
        self.answering = True

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self.scratch)

    def received(self, n: int) -> None:
        if self.scratch[:3] == b"bad":
            raise RemoteProtocolError("bad bytes")
        if self.scratch[:4] == b"oops":
            raise ZeroDivisionError
        self.heard += self.scratch[:n]
        self.news.set()
        if self.answering:
            self.write(bytes(self.scratch[:n]))


class Listener(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.answering = False


async def answer(call: Call) -> HeartbeatAnswer:
    return HeartbeatAnswer(state="running", reason=call.query.get("why", ""))


async def fenced(call: Call) -> str:
    raise Fenced("incarnation 4 took your place")


async def broken(call: Call) -> str:
    raise ZeroDivisionError


async def count_body(call: Call) -> bytes:
    assert call.chunks is not None
    total = 0
    async for chunk in call.chunks:
        total += len(chunk)
    return str(total).encode()


async def buffers(call: Call) -> FrameBody:
    pieces: list[list[Any] | None] = [
        [b"abc", bytearray(b"de")],
        [memoryview(b"f" * 100_000)],
        None,
    ]
    return FrameBody(lambda: pieces.pop(0))


async def never(call: Call) -> str:
    await asyncio.Event().wait()
    return "unreachable"


def make_server(access: Access = TOKEN, bind: Bind | None = None) -> Server:
    return Server(
        [
            Route("GET", "/healthz", answer, public=True),
            Route("POST", "/v1/answer", answer),
            Route("POST", "/v1/fenced", fenced),
            Route("POST", "/v1/broken", broken),
            Route("POST", "/v1/count", count_body, streamed=True, body_size_max=1_000_000),
            Route("POST", "/v1/small", answer, body_size_max=100),
            Route("GET", "/v1/buffers", buffers),
            Route("POST", "/v1/never", never),
            UpgradeRoute("/v1/stream", lambda call: Echo()),
        ],
        bind=bind or Bind(),
        access=access,
        name="test",
    )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with make_server() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, access=TOKEN) as ready:
        yield ready


async def test_messages_and_errors_cross(client: Client) -> None:
    got = await client.post("/v1/answer?why=because", Stop(), HeartbeatAnswer)
    assert got.reason == "because"
    with pytest.raises(Fenced, match="incarnation 4 took your place"):
        await client.post("/v1/fenced", Stop(), HeartbeatAnswer)
    with pytest.raises(RemoteProtocolError, match="see the log"):
        await client.post("/v1/broken", Stop(), HeartbeatAnswer)
    with pytest.raises(RemoteProtocolError, match="no POST '/v1/nowhere' here"):
        await client.post("/v1/nowhere", Stop(), HeartbeatAnswer)


@pytest.mark.parametrize("token", [None, "wrong", "open sesam\xe9"])
async def test_every_route_but_healthz_wants_the_token(server: Server, token: str | None) -> None:
    async with Client(server.url, access=Access(token=token)) as stranger:
        await stranger.get("/healthz", HeartbeatAnswer)
        for path in ("/v1/answer", "/v1/fenced", "/v1/count"):
            with pytest.raises(AuthError, match="token"):
                await stranger.post(path, Stop(), HeartbeatAnswer)
        with pytest.raises(AuthError, match="token"):
            await stranger.upgrade("/v1/stream", {}, Listener())


async def test_tokens_stay_out_of_reprs() -> None:
    assert "sesame" not in repr(TOKEN)


async def test_bodies_are_bounded_announced_or_not(client: Client) -> None:
    assert await client.exchange("/v1/count", [b"x" * 1_000_000], {}, size_max=100) == b"1000000"
    with pytest.raises(TooLarge, match="1000001 bytes, the limit here is 1000000") as refused:
        await client.exchange("/v1/count", [b"x" * 1_000_001], {}, size_max=1000)
    assert not refused.value.retryable, "the same body will not be smaller next time"
    with pytest.raises(TooLarge, match="limit here is 100"):
        await client.post("/v1/small", Stop(reason="y" * 200), HeartbeatAnswer)


async def test_a_body_of_unknown_length_is_refused_and_not_read(server: Server) -> None:
    async with raw_connection(server.url) as (reader, writer):
        writer.write(
            b"POST /v1/count HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Authorization: Bearer %s\r\n\r\n" % str(TOKEN.token).encode()
        )
        writer.write(b"1\r\nx\r\n" * 100_000)
        answer = await rest_of(reader)
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert b"a body needs a Content-Length here" in answer


async def test_buffers_are_streamed_out(client: Client) -> None:
    got = b"".join([chunk async for chunk in client.chunks("/v1/buffers", {})])
    assert got == b"abcde" + b"f" * 100_000
    with pytest.raises(RemoteProtocolError, match="more than 50 bytes"):
        await client.get("/v1/buffers", Status, size_max=50)


async def test_streams_carry_bytes_both_ways_and_end_cleanly(client: Client) -> None:
    stream = Listener()
    await client.upgrade("/v1/stream", {}, stream)
    stream.write(b"hello")
    await stream.news.wait()
    assert bytes(stream.heard) == b"hello"
    assert (stream.bytes_sent, stream.bytes_received) == (5, 5)
    stream.close()
    await stream.wait_closed()
    assert not stream.is_open
    stream.write(b"too late")  # not an error: the owner learns from is_open


@pytest.mark.parametrize("poison", [b"bad", b"oops"])
async def test_a_broken_rule_ends_only_that_stream(client: Client, poison: bytes) -> None:
    bad, good = Listener(), Listener()
    await client.upgrade("/v1/stream", {}, bad)
    await client.upgrade("/v1/stream", {}, good)
    bad.write(poison)
    await bad.wait_closed()
    assert not bad.is_open
    good.write(b"still here")
    await good.news.wait()
    assert good.is_open
    assert bytes(good.heard) == b"still here"
    good.close()
    await good.wait_closed()


async def test_an_unknown_protocol_version_is_named_and_a_missing_upgrade_is_told_apart(
    client: Client,
) -> None:
    session = client._open()
    for upgrade, kind in (("pydownpour/99", ConfigError), ("", UpgradeRefused)):
        headers = {"Connection": "Upgrade", "Upgrade": upgrade} if upgrade else {}
        async with session.get(client.url + "/v1/stream", headers=headers) as response:
            from pydownpour.wire import problems

            error = problems.revive(response.status, await response.read(), peer="x")
        assert type(error) is kind
        assert "pydownpour/" in str(error)


async def test_a_page_of_another_site_gets_nothing(server: Server) -> None:
    async with Client(server.url, access=TOKEN) as client:
        session = client._open()
        async with session.get(
            server.url + "/healthz", headers={"Sec-Fetch-Site": "cross-site"}
        ) as response:
            assert response.status == 403


async def test_network_failures_have_names(server: Server) -> None:
    async with Client("http://127.0.0.1:9", access=Access()) as nobody:
        with pytest.raises(ConnectFailed, match="does it run"):
            await nobody.post("/v1/answer", Stop(), HeartbeatAnswer)
    async with Client(server.url, access=TOKEN) as client:
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0.05 s"):
            await client.post("/v1/never", Stop(), HeartbeatAnswer, timeout_s=0.05)
    with pytest.raises(ConfigError, match="must start with http"):
        Client("ftp://x", access=Access())

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = rude.sockets[0].getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}", access=Access()) as client:
        with pytest.raises(PeerLost, match="broke"):
            await client.post("/v1/answer", Stop(), HeartbeatAnswer)
    rude.close()


async def test_a_port_in_use_names_itself(server: Server) -> None:
    bind = Bind.parse(server.url.removeprefix("http://"))
    with pytest.raises(ConfigError, match=rf"{bind} is in use"):
        async with make_server(bind=bind):
            pass


@pytest.mark.parametrize(
    ("access", "lacks"),
    [
        (Access(), "a token .* and TLS"),
        (Access(token="x"), "without TLS"),
        (Access(tls=Tls(cert="c", key="k")), "without a token"),
    ],
)
def test_a_public_address_needs_token_and_tls(access: Access, lacks: str) -> None:
    with pytest.raises(ConfigError, match=lacks):
        make_server(access, Bind("0.0.0.0"))


def test_insecure_must_be_spelt_out() -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        make_server(Access(), Bind("0.0.0.0"))
    server = make_server(Access(insecure=True), Bind("0.0.0.0"))
    assert isinstance(server, Server)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("localhost", "localhost", 0),
        (":8000", "127.0.0.1", 8000),
        ("[::1]:5", "::1", 5),
        ("[::1]", "::1", 0),
    ],
)
def test_bind_is_read(text: str, host: str, port: int) -> None:
    bind = Bind.parse(text)
    assert (bind.host, bind.port) == (host, port)
    assert bind.is_loopback
    assert Bind.parse(str(bind)) == bind


@pytest.mark.parametrize(
    "text", ["host:port", "host:70000", "host:", "host:²", "host:" + "9" * 5000, "[::1]:x"]
)
def test_bad_ports_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="0 to 65535"):
        Bind.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7001", r"a number alone is no address; write 127\.0\.0\.1:7001 or :7001"),
        ("http://127.0.0.1:7001", "write HOST:PORT, without http://"),
        ("[::1", r"write \[ADDRESS\]:PORT"),
        ("[::1]7001", r"write \[ADDRESS\]:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_the_form_it_should_have(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Bind.parse(text)


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        Tls(cert="nothing.pem", key="nothing.key").server_context()
    with pytest.raises(ConfigError, match="both"):
        Tls(cert="nothing.pem").server_context()
    with pytest.raises(ConfigError, match="authority"):
        Tls(ca=str(tmp_path / "none.pem")).client_context()
