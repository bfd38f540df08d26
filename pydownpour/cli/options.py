"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

import click

from pydownpour.engines.local import TOKEN_VARIABLE
from pydownpour.errors import ConfigError
from pydownpour.limits import DEFAULT, Limits

if TYPE_CHECKING:
    from pydownpour.net.access import Access

F = TypeVar("F", bound=Callable[..., Any])


@final
@dataclasses.dataclass(frozen=True)
class AccessOptions:
    """What the options about tokens and TLS said."""

    token_file: str | None = None
    no_token: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    insecure: bool = False
    allow_host: tuple[str, ...] = ()

    def absolute(self) -> AccessOptions:
        """The same with paths that a change of the current folder does not touch.

        The token is read at once, and its file named in errors as it was given.
        """
        paths = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "tls_ca")}
        return dataclasses.replace(
            self, **{name: os.path.abspath(path) for name, path in paths.items() if path}
        )

    def access(self) -> Access:
        """For net.

        Raises:
            ConfigError: the token file cannot be read or is empty.
        """
        from pydownpour.net.access import Access, Tls, host_name

        given = self.tls_cert or self.tls_key or self.tls_ca
        tls = Tls(cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca) if given else None
        return Access(
            token=self._token(),
            tls=tls,
            insecure=self.insecure,
            no_token=self.no_token,
            allow_hosts=tuple(host_name(name) for name in self.allow_host),
        )

    def _token(self) -> str | None:
        if self.no_token:
            if self.token_file:
                raise ConfigError("--token-file and --no-token contradict each other; give one")
            return None
        from pydownpour.net.access import TOKEN_LEN_MAX, clean_token

        if not self.token_file:
            return clean_token(os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE) or None
        where = f"the token file {self.token_file}"
        try:
            with open(self.token_file, encoding="utf-8") as file:
                text = file.read(TOKEN_LEN_MAX + 3)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {where}: {error}") from error
        token = clean_token(text, where)
        if not token:
            raise ConfigError(f"{where} is empty")
        return token

    def forwarded(self) -> tuple[str, ...]:
        """The options a child needs on its command line; tokens are never among them."""
        pairs = [
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
            ("--tls-ca", self.tls_ca),
            *(("--allow-host", name) for name in self.allow_host),
        ]
        words = [word for name, value in pairs if value for word in (name, value)]
        return tuple(words) + (("--insecure",) if self.insecure else ())


def access_options(command: F) -> F:
    """Token and TLS options; the command gets them as one ``access`` argument."""

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:
        names = [field.name for field in dataclasses.fields(AccessOptions)]
        options = AccessOptions(**{name: values.pop(name) for name in names}).absolute()
        return command(access=options, **values)

    wrapped: Any = gathered
    for option in reversed(_ACCESS):
        wrapped = option(wrapped)
    return cast(F, wrapped)


_file = click.Path(dir_okay=False)

_ACCESS = (
    click.option("--token-file", type=_file,
                 help="Read the job's token from this file.  [default: the variable "
                 f"{TOKEN_VARIABLE}; without it a run or coordinator makes a token]"),
    click.option("--no-token", is_flag=True,
                 help="A job without a token: every program of this machine may take part."),
    click.option("--tls-cert", type=_file, default="", help="Certificate (PEM) of this server."),
    click.option("--tls-key", type=_file, default="", help="Its private key (PEM)."),
    click.option("--tls-ca", type=_file, default="", help="Authority (PEM) that peers trust."),
    click.option("--insecure", is_flag=True,
                 help="Allow an address other than loopback without token and TLS."),
    click.option("--allow-host", multiple=True, metavar="NAME",
                 help="Answer to this name too: the Host that a reverse proxy passes on."),
)  # fmt: skip


def limit_option(command: F) -> F:
    """``--limit NAME=VALUE``; the command gets the whole as one ``limits`` argument."""
    return click.option(
        "--limit", "limits", multiple=True, metavar="NAME=VALUE", callback=_limits,
        help="Another limit than usual, e.g. shard_patience_s=60; `pydownpour doctor` lists them.",
    )(command)  # fmt: skip


def _limits(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Limits:
    kinds = {name: type(value) for name, value in dataclasses.asdict(DEFAULT).items()}
    own: dict[str, Any] = {}
    for words in given:
        name, _, value = words.partition("=")
        if name not in kinds:
            raise click.BadParameter(f"there is no limit {name!r}; `pydownpour doctor` lists them")
        try:
            own[name] = kinds[name](value)
        except ValueError:
            what = "a whole number" if kinds[name] is int else "a number"
            raise click.BadParameter(f"{words!r}: {name} must be {what}") from None
    return Limits(**own)


def forwarded_limits(limits: Limits) -> tuple[str, ...]:
    """The options that make another process's limits these."""
    values = dataclasses.asdict(limits)
    own = {name: value for name, value in values.items() if value != getattr(DEFAULT, name)}
    return tuple(word for name, value in own.items() for word in ("--limit", f"{name}={value}"))


def bind_option(default: str = "127.0.0.1:0") -> Callable[[F], F]:
    """``--bind``: the address to listen on, loopback unless another is given."""
    return click.option(
        "--bind", default=default, show_default=True, metavar="HOST:PORT",
        help="Where to listen; port 0 lets the system choose.",
    )  # fmt: skip
