"""Which proxy the environment names, and what is said of it when a peer cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pydownpour.errors import ConfigError, ConnectFailed
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.proxies import proxy_for
from pydownpour.wire.messages import HeartbeatAnswer

FAR = "http://10.1.2.3:7000"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_there_is_none_by_default() -> None:
    assert proxy_for("https://shards.example:443") is None


def test_the_environment_names_one_for_each_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@gate.example:3128/")
    monkeypatch.setenv("no_proxy", "near.example")
    proxy = proxy_for("https://shards.example")
    assert proxy is not None
    assert proxy.url == "http://me:secret@gate.example:3128/"
    assert str(proxy) == (
        "the proxy http://gate.example:3128 that https_proxy names (put shards.example into "
        "no_proxy if it is reached without)"
    )
    assert "secret" not in str(proxy) + repr(proxy)
    assert proxy_for("http://shards.example") is None
    assert proxy_for("https://near.example:8443") is None


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:80", "[::1]:80"])
def test_this_machine_is_reached_without(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("http_proxy", "http://gate.example:3128")
    assert proxy_for(f"http://{host}") is None


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [
        ("10.0.0.0/8", True),
        ("example.org, 10.1.2.0/24", True),
        ("10.1.2.3/8", True),
        ("10.1.2.3:7000", True),
        ("*", True),
        ("11.0.0.0/8", False),
        ("10.1.2.3:7001", False),
        ("fd00::/8", False),
        ("nonsense/99", False),
    ],
)
def test_no_proxy_knows_networks_addresses_and_ports(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, is_direct: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://gate.example:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert (proxy_for(FAR) is None) is is_direct
    assert (proxy_for("http://[fd00::1]:7000") is None) is (no_proxy in ("fd00::/8", "*"))


@pytest.mark.parametrize(
    "named", ["socks5://gate:1080", "https://gate:3128", "gate:3128", "http://"]
)
def test_other_kinds_of_proxies_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("http_proxy", named)
    with pytest.raises(ConfigError, match=r"http_proxy names .*: write it so, or put 10\.1\.2\.3"):
        Client(FAR, access=Access())


@pytest.mark.parametrize("url", ["http://", "http://host:port", "http://host:99999", "http://[::1"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="bad URL"):
        Client(url, access=Access())


async def ask(url: str) -> None:
    async with Client(url, access=Access()) as client:
        await client.get("/v1/status", HeartbeatAnswer, timeout_s=30.0)


async def test_a_misspelt_host_is_named() -> None:
    with pytest.raises(ConnectFailed, match=r"no host 'nowhere\.invalid' is known here .* right\?"):
        await ask("http://nowhere.invalid:7000")


@pytest.fixture
async def gate() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that reaches nobody, and what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], asked
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_does_not_reach_the_peer_is_named_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, gate: tuple[int, list[bytes]], scheme: str
) -> None:
    port, asked = gate
    monkeypatch.setenv(f"{scheme}_proxy", f"http://me:secret@127.0.0.1:{port}")
    words = rf"the proxy http://127\.0\.0\.1:{port} that {scheme}_proxy names \(put 10\.1\.2\.3"
    with pytest.raises(OSError, match=words) as failed:
        await ask(FAR.replace("http", scheme))
    assert getattr(failed.value, "retryable", False), "the peer may only not have begun"
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in asked[0]
    assert "secret" not in str(failed.value)


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(ConnectFailed, match=r"through the proxy http://127\.0\.0\.1:1 ") as failed:
        await ask(FAR)
    assert not failed.value.refused, "a proxy that refuses says nothing of the peer behind it"
