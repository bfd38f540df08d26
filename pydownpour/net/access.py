"""Who may talk to us, and how: addresses, tokens, TLS.

The default is safe: loopback only. Any other address needs a token *and* TLS, or ``insecure``
spelt out. Tokens travel in the Authorization header only, never in a URL or a command line.
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import secrets
import ssl
from collections.abc import Mapping
from typing import Final, final

from pydownpour.errors import AuthError, ConfigError, OriginRefused
from pydownpour.net import process

TOKEN_SIZE: Final = 32
"""Bytes of chance in a token that a job makes for itself."""
TOKEN_LEN_MAX: Final = 1000
"""Characters: a header that every server on the way takes."""


@final
@dataclasses.dataclass(frozen=True)
class Bind:
    """Where to listen. Port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Bind:
        """``HOST:PORT``, ``HOST`` or ``:PORT``; IPv6 in brackets.

        Raises:
            ConfigError: no such form, or the port is not a number in 0..65535. A number alone
                could be meant as either, so it is neither.
        """
        if _is_number(text):
            raise ConfigError(
                f"bind {text!r}: a number alone is no address; write 127.0.0.1:{text} or :{text} "
                "if it is the port"
            )
        if "/" in text:
            raise ConfigError(f"bind {text!r}: write HOST:PORT, without http:// and without a path")
        host, port = text, "0"
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise ConfigError(f"bind {text!r}: write [ADDRESS]:PORT")
            port = rest[1:] or "0"
        elif text.count(":") == 1:
            host, port = text.split(":")
        if not _is_number(port) or len(port) > 5 or int(port) > 65535:
            raise ConfigError(f"bind {text!r}: the port must be a number from 0 to 65535")
        return cls(host or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        """True for 127.0.0.0/8, ::1 and localhost."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@final
@dataclasses.dataclass(frozen=True)
class Tls:
    """Paths of PEM files. A server needs cert and key, a client the ca that signed them."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer. Clients show no certificate: the token says who they are.

        Raises:
            ConfigError: a file is missing or not what it should be.
        """
        if not (self.cert and self.key):
            raise ConfigError("TLS needs both --tls-cert and --tls-key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot load TLS certificate {self.cert!r}: {error}") from error
        return context

    def client_context(self) -> ssl.SSLContext:
        """Trusts ``ca`` if given, else the system's authorities."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot load TLS authority {self.ca!r}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@final
@dataclasses.dataclass(frozen=True)
class Access:
    """What a role needs to talk and to be talked to. The token's repr is masked.

    Attributes:
        token: The job's secret, or None.
        tls: Certificates.
        insecure: An address beyond loopback is allowed without token and TLS.
        no_token: Somebody said that the job shall have no token: none is made for it. On loopback
            every program of the machine may then take part, and stop it.
        allow_hosts: Names by which a server may be called, beside its own: those that a reverse
            proxy passes on. Ports do not matter.
    """

    token: str | None = dataclasses.field(default=None, repr=False)
    tls: Tls | None = None
    insecure: bool = False
    no_token: bool = False
    allow_hosts: tuple[str, ...] = ()

    def with_new_token(self) -> Access:
        """The same with a token nobody can guess."""
        return dataclasses.replace(self, token=secrets.token_hex(TOKEN_SIZE))

    def check_bind(self, bind: Bind) -> None:
        """Refuse a public address without token and TLS.

        Raises:
            ConfigError: with the three ways out.
        """
        if bind.is_loopback or self.insecure or (self.token and self.tls and self.tls.cert):
            return
        lacks = [
            word
            for word, there in (
                ("a token (--token-file, or PYDOWNPOUR_TOKEN)", self.token),
                ("TLS (--tls-cert and --tls-key)", self.tls and self.tls.cert),
            )
            if not there
        ]
        raise ConfigError(
            f"binding {bind} would let others in without {' and '.join(lacks)}; give them, "
            "bind 127.0.0.1, or spell out --insecure"
        )

    def check_token(self, authorization: str | None) -> None:
        """Compare in constant time.

        Raises:
            AuthError: the header is missing or names another token.
        """
        if self.token is None:
            return
        if not authorization:
            raise AuthError(
                "this job needs a token: give --token-file, set PYDOWNPOUR_TOKEN, or pass token= "
                "to dp.join; a job that made its own keeps it in its run folder's file 'token'"
            )
        expected = f"Bearer {self.token}".encode()
        if not hmac.compare_digest(authorization.encode("utf-8", "replace"), expected):
            raise AuthError("wrong token; use the one this job was started with")

    def check_caller(self, bind: Bind, local: str, headers: Mapping[str, str]) -> None:
        """Refuse the pages of other sites in a browser of this network.

        A name that was rebound to our address shows in ``Host``: on loopback, and wherever there is
        no token, only known names are answered. What a page of another site sends shows in
        ``Origin`` and ``Sec-Fetch-Site``, and cannot have a JSON body without asking first; a
        client that is no browser sends none of them.

        Args:
            bind: Where the server listens.
            local: The address its connection was made to.
            headers: Of the request.

        Raises:
            OriginRefused: with the way out.
        """
        host = headers.get("Host", "")
        name = host_name(host)
        if (bind.is_loopback or self.token is None) and not self._is_known(name, bind, local):
            raise OriginRefused(
                f"this server is not called {name[:100]!r}; a reverse proxy that passes that name "
                "on needs --allow-host"
            )
        site = headers.get("Sec-Fetch-Site", "same-origin")
        if site not in ("same-origin", "none") or self._is_foreign(headers.get("Origin"), host):
            raise OriginRefused("not from another site's page")

    def _is_foreign(self, origin: str | None, host: str) -> bool:
        if origin is None:
            return False
        theirs = origin.partition("://")[2].lower()
        return theirs != host.lower() and host_name(theirs) not in self.allow_hosts

    def _is_known(self, name: str, bind: Bind, local: str) -> bool:
        mine = process.host_name().lower()
        own = (bind.host.lower(), local, "localhost", mine, mine.partition(".")[0])
        if not name or name in self.allow_hosts or name in own:
            return True  # HTTP/1.0 may leave Host out; no browser does
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # An address cannot be rebound; this machine's other ones are a page's of another site.
        return address.is_loopback or not bind.is_loopback

    def headers(self) -> dict[str, str]:
        """What a client sends with every request: the token, if there is one."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def check_not_plain(reached: str, offered: str, whose: str) -> None:
    """Refuse to leave https: the token would go where everybody on the way can read it.

    Args:
        reached: The URL of who offers.
        offered: The URL to go on to.
        whose: For the message, e.g. ``shard 0``.

    Raises:
        ConfigError: the first is https and the second is not.
    """
    if reached.startswith("https://") and not offered.startswith("https://"):
        raise ConfigError(
            f"{whose} is offered at {offered} in a job of https: the token would travel in the "
            "clear; give the shard a certificate (--tls-cert, --tls-key), or "
            "the https URL of the proxy in front of it (--advertise)"
        )


def clean_token(text: str, where: str) -> str:
    """A token as a header can carry it: without the white space around it.

    Raises:
        ConfigError: it is longer than ``TOKEN_LEN_MAX``, or not one line of printable ASCII.
    """
    token = text.strip()
    if len(token) > TOKEN_LEN_MAX or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{where} must hold one line of at most {TOKEN_LEN_MAX} printable ASCII characters"
        )
    return token


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def host_name(host: str) -> str:
    """A Host header without its port, in lower case, IPv6 without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """True if a host name or address can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
