"""Which proxy the environment names for a peer.

``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` are obeyed, in either case of letters. This machine
is always reached without. ``NO_PROXY`` may list names, their endings, ``*``, and (other than in
Python's own reading) networks such as ``10.0.0.0/8``, for hosts that are given as addresses.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydownpour.errors import ConfigError
from pydownpour.net.access import is_loopback


@final
@dataclasses.dataclass(frozen=True)
class Proxy:
    """A proxy on the way to a peer.

    Attributes:
        url: With the password, if it has one: for connecting only.
        host: Of the peer.
        variable: Which variable of the environment named it.
    """

    url: str = dataclasses.field(repr=False)
    host: str
    variable: str

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        where = parts.netloc.rpartition("@")[2]
        return (
            f"the proxy {parts.scheme}://{where} that {self.variable} names (put {self.host} into "
            "no_proxy if it is reached without)"
        )


def proxy_for(url: str) -> Proxy | None:
    """The proxy between us and a URL, None where there is none.

    Raises:
        ConfigError: it is of a kind that we do not speak to.
    """
    target = urlsplit(url)
    host = target.hostname or ""
    named = getproxies()
    proxy = named.get(target.scheme)
    if not proxy or is_loopback(host) or _is_bypassed(host, target.netloc, named.get("no", "")):
        return None
    variable = f"{target.scheme}_proxy"
    parts = urlsplit(proxy)
    if parts.scheme != "http" or not parts.hostname:
        shown = proxy.rpartition("@")[2]
        raise ConfigError(
            f"{variable} names {shown!r}; only http://HOST:PORT proxies are supported: write it "
            f"so, or put {host} into no_proxy"
        )
    return Proxy(url=proxy, host=host, variable=variable)


def _is_bypassed(host: str, netloc: str, no_proxy: str) -> bool:
    if proxy_bypass(host) or proxy_bypass(netloc.rpartition("@")[2]):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(_holds(entry.strip(), address) for entry in no_proxy.split(","))


def _holds(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return "/" in entry and address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
