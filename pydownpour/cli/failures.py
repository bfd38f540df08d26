"""From an error to words and an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, ParamSpec, TypeVar, final

import click

from pydownpour.engines.base import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USER,
)
from pydownpour.engines.child import Channel
from pydownpour.errors import AuthError, ConfigError, DownpourError
from pydownpour.replica import failure

P = ParamSpec("P")
R = TypeVar("R")


@final
class Failure(click.ClickException):
    """An error in words. Shown as one line on standard error; the exit code says what kind."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it, without a traceback."""
        click.echo(f"pydownpour: {self.format_message()}", file=file or sys.stderr)


def check_kept(report: Mapping[str, Any]) -> None:
    """The last word about a finished job's files, where they are not all where they should be.

    Raises:
        Failure: some are nowhere: what the job was run for is lost.
    """
    storage = report.get("storage")
    if lost := report.get("lost"):
        words = f"{' and '.join(lost)} could not be written anywhere: {storage}"
        raise Failure(words, EXIT_FAILED)
    if report.get("elsewhere"):
        click.echo(f"pydownpour: the run folder could not hold everything: {storage}", err=True)


class Interrupted(Exception):
    """A signal ended the command."""


def exit_code(error: BaseException) -> int:
    """The exit code of an error, as ``pydownpour.engines`` lists them."""
    if isinstance(error, Interrupted):
        return EXIT_INTERRUPTED
    if isinstance(error, (ConfigError, AuthError)):
        return EXIT_CONFIG
    return EXIT_FAILED


def in_words(command: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a command: our errors become one line and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except Interrupted as error:
            raise Failure(str(error) or "stopped", EXIT_INTERRUPTED) from None
        except DownpourError as error:
            raise Failure(str(error), exit_code(error)) from None

    return wrapped


def tell_engine(
    channel: Channel | None, error: BaseException, *, users: bool = False, skips: bool = False
) -> int:
    """Hand an error to the engine, if there is one, in a form it can show; returns the exit code.

    Args:
        channel: To the engine.
        error: What ended this process.
        users: The user's own function may have raised it: then an exception that is not about the
            network or the settings is theirs, and its traceback goes along.
        skips: The job goes on without a unit that fails again and again.
    """
    theirs = users and failure.is_users(error) and not isinstance(error, Interrupted)
    code = EXIT_USER if theirs else exit_code(error)
    message: dict[str, Any] = {"event": "error", "code": code, "message": describe(error)}
    if theirs:
        unit = failure.noted_unit(error)
        message |= {
            "message": failure.in_words(error),
            "unit": unit,
            "cured_by_skipping": bool(skips and unit),
            "traceback": failure.user_traceback(error),
        }
    if channel is not None:
        channel.emit(message)
    return code


def describe(error: BaseException) -> str:
    """Our errors speak for themselves; others need their name."""
    if isinstance(error, (DownpourError, Interrupted)):
        return str(error)
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
