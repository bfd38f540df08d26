"""``pydownpour policy``: which policy a running job obeys, and another one from now on."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import click

from pydownpour.cli import loop
from pydownpour.cli.failures import in_words
from pydownpour.cli.options import AccessOptions, access_options
from pydownpour.errors import ConfigError

if TYPE_CHECKING:
    from pydownpour.policy import Policy
    from pydownpour.wire.messages import PolicyStatus

NONE: Final = "none"
"""How an option says None."""


@final
class _Policies(click.Command):
    """Its help lists the policies that there are, with their settings."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        from pydownpour.policy import POLICIES

        with formatter.section("Policies and their settings"):
            formatter.write_dl([
                (name, " ".join(_usage(option) for option in options_of(kind)) or "none")
                for name, kind in sorted(POLICIES.items())
            ])  # fmt: skip


@click.command(
    cls=_Policies,
    options_metavar="[OPTIONS]",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("url", metavar="URL")
@click.argument("wanted", metavar="[NAME [SETTINGS]]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--job", "file", default=None, metavar="FILE[:JOB]",
    help="The job file; looked at only if NAME is a class of its own.",
)  # fmt: skip
@access_options
@in_words
def policy(url: str, wanted: tuple[str, ...], file: str | None, access: AccessOptions) -> None:
    """Show the policy of a running job, or let it go on under another one.

    Shards and replicas go over to it when they hear of it, within about a heartbeat; no push is
    lost or counted twice. It ends the job's own phases, if it has some. Settings that are not
    given are the class' own defaults; wrong ones change nothing.

    \b
    Example:
      pydownpour policy http://127.0.0.1:40123 --token-file runs/digits-.../token
      pydownpour policy http://127.0.0.1:40123 hardsync --combine mean --token-file ...
      pydownpour policy http://127.0.0.1:40123 mine --factor 0.5 --job job.py --token-file ...
    """
    settings = None
    if wanted:
        settings = settings_of(_kind(wanted[0], file), wanted[1:])

    async def ask() -> PolicyStatus:
        from pydownpour.net import process
        from pydownpour.net.client import Client
        from pydownpour.wire.messages import PolicyStatus, SetPolicy

        async with Client(url, access=access.access()) as client:
            if settings is None:
                return await client.get("/v1/policy", PolicyStatus)
            by = f"pydownpour policy on {process.host_name()}, process {process.pid()}"
            return await client.post(
                "/v1/policy", SetPolicy(settings=settings, by=by), PolicyStatus
            )

    click.echo(describe(loop.run(ask, hard=True)))


def describe(status: PolicyStatus) -> str:
    """A version of a policy in two lines."""
    settings = dict(status.entry.settings)
    name = settings.pop("name", "?")
    shown = ", ".join(f"{key}={value}" for key, value in settings.items())
    lines = [
        f"{name}" + (f": {shown}" if shown else ""),
        f"  version {status.entry.version}, since {status.at_s:.1f} s and {status.samples:,} "
        f"samples of the job, by {status.by}",
    ]
    return "\n".join([*lines, *([f"  {status.plan}"] if status.plan else [])])


def _kind(name: str, file: str | None) -> type[Policy]:
    """The class of a policy, ours or the job file's.

    Raises:
        ConfigError: there is none of that name.
    """
    from pydownpour.policy import POLICIES

    if name in POLICIES:
        return POLICIES[name]
    known = sorted(POLICIES)
    if file is not None:
        from pydownpour.jobfiles import load_job
        from pydownpour.policy.phases import phases_of

        own = {kind.name: kind for kind in phases_of(load_job(file).policy).classes()}
        if name in own:
            return own[name]
        known += sorted(own.keys() - POLICIES.keys())
    raise ConfigError(
        f"there is no policy {name!r}; known are {', '.join(known)}"
        + ("" if file is not None else ", and with --job FILE the job file's own")
    )


def settings_of(kind: type[Policy], given: Sequence[str]) -> dict[str, Any]:
    """The wire form of a policy with these settings, as options have them.

    Raises:
        click.UsageError: no such option, or a value of another type.
        ConfigError: what the class says of the values.
    """
    command = click.Command(kind.name, params=list(options_of(kind)), add_help_option=False)
    context = command.make_context(f"pydownpour policy URL {kind.name}", list(given))
    default = click.core.ParameterSource.DEFAULT
    values = {
        name: None if value == NONE else value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not default
    }
    return kind(**values).to_wire()


def options_of(kind: type[Policy]) -> list[click.Option]:
    """An option for each field of a policy's dataclass."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return [_option(field.name, hints[field.name]) for field in fields if field.init]


def _option(name: str, hint: Any) -> click.Option:
    words = name.replace("_", "-")
    if hint is bool:
        return click.Option([f"--{words}/--no-{words}", name], default=None)
    return click.Option([f"--{words}", name], type=_type(hint), default=None)


def _type(hint: Any) -> click.ParamType[Any]:
    """What an option of a field's type takes."""
    if typing.get_origin(hint) is typing.Literal:
        return click.Choice([str(value) for value in typing.get_args(hint)])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        some = [one for one in typing.get_args(hint) if one is not types.NoneType]
        inner = _type(some[0]) if len(some) == 1 else click.STRING
        return _OrNone(inner) if types.NoneType in typing.get_args(hint) else inner
    simple: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT}
    return simple.get(hint, click.STRING)


@final
class _OrNone(click.ParamType[Any]):
    """A value, or the word none."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner, self.name = inner, f"{inner.name}|{NONE}"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """As the inner type, which says what is wrong."""
        return value if value == NONE else self._inner.convert(value, param, ctx)


def _usage(option: click.Option) -> str:
    """As ``--slack INTEGER``, ``--overlap/--no-overlap`` or ``--combine mean|sum``."""
    if option.is_flag:
        return "/".join((*option.opts, *option.secondary_opts))
    kind = option.type
    choices = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else ""
    return f"{option.opts[0]} {choices or kind.name.upper()}"
