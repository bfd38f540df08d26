"""When a client asks the environment for a proxy: only where there is one, never for loopback."""

from __future__ import annotations

import pytest

from pydownpour.net.access import Access
from pydownpour.net.client import Client, has_proxy


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_there_is_none_by_default() -> None:
    assert not has_proxy("https://shards.example:443")


def test_the_environment_names_one_for_each_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@gate.example:3128/")
    monkeypatch.setenv("no_proxy", "near.example")
    assert has_proxy("https://shards.example")
    assert not has_proxy("http://shards.example")
    assert not has_proxy("https://near.example:8443")


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:80", "[::1]:80"])
def test_this_machine_is_reached_without(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("http_proxy", "http://gate.example:3128")
    assert not has_proxy(f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1", "far.example"])
async def test_requests_look_for_it_only_then(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("http_proxy", "http://gate.example:3128")
    async with Client(f"http://{host}:9", access=Access()) as client:
        assert client._open().trust_env is (host == "far.example")
