"""``pydownpour doctor``: what this machine and this build are."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import click

from pydownpour.cli.failures import in_words
from pydownpour.errors import ConfigError

Rows = Iterator[tuple[str, str]]


@click.command()
@in_words
def doctor() -> None:
    """Show versions, CPU features, event loop, network, limits and data of this machine.

    \b
    Example:
      pydownpour doctor
    """
    for title, rows in SECTIONS.items():
        click.echo(title)
        for name, value in rows():
            click.echo(f"  {name:<26} {value}")


def _versions() -> Rows:
    import pydownpour

    yield "pydownpour", pydownpour.__version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in ("numpy", "aiohttp", "uvloop", "msgspec", "click", "rich"):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"


def _core() -> Rows:
    from pydownpour import _core

    for name, value in _core.build_info().items():
        yield name.replace("_", " "), value
    yield "processors", f"{os.cpu_count()}, {_usable()} usable by this process"


def _usable() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _event_loop() -> Rows:
    from pydownpour.cli.loop import loop_factory

    yield "event loop", "asyncio" if loop_factory() is None else "uvloop"
    yield "BLAS threads", _blas()
    yield "congestion control", _first_line("/proc/sys/net/ipv4/tcp_congestion_control")
    yield (
        "socket buffers, most",
        (
            f"receive {_first_line('/proc/sys/net/core/rmem_max')}, "
            f"send {_first_line('/proc/sys/net/core/wmem_max')}"
        ),
    )
    yield "open files", _open_files()
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            yield name, value


def _blas() -> str:
    from pydownpour.engines.local import BLAS_VARIABLES

    given = [f"{name}={os.environ[name]}" for name in BLAS_VARIABLES if name in os.environ]
    return ", ".join(given) or "not set; pydownpour run sets 1 in its processes"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n")[0]
    except OSError:
        return "unknown"


def _open_files() -> str:
    try:
        import resource
    except ImportError:
        return "unknown"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{soft} (at most {hard})"


def _data() -> Rows:
    from pydownpour import data

    x_train, _, x_test, _ = data.digits()
    yield "digits", f"{len(x_train)} + {len(x_test)} images, in the package"
    try:
        yield "mnist", str(data.find_mnist())
    except ConfigError as error:
        yield "mnist", f"not found; {error}"


def _limits() -> Rows:
    from pydownpour import limits

    for name, value in (vars(limits) | dataclasses.asdict(limits.DEFAULT)).items():
        if isinstance(value, (int, float)) and name not in ("KIB", "MIB"):
            yield name, f"{value:,}"


SECTIONS: dict[str, Callable[[], Rows]] = {
    "versions": _versions,
    "core": _core,
    "event loop and network": _event_loop,
    "data": _data,
    "limits (pydownpour/limits.py)": _limits,
}
"""Title -> rows, in the order they are printed."""
