"""The folder of one run: events, final parameters, report.

    runs/digits-20260131-235959/
        events.jsonl             one JSON object a line: t (seconds since the start), event, fields
        parameters.safetensors   the final parameters, in their declared dtypes
        parameters.partial.safetensors   of a job that failed: NaN stands for what was lost
        report.json              what the run did
        token                    the secret that lets others join, if the run made its own
        logs/                    of supervised processes, by whoever supervises them

A disk that is full or broken must not end a training run: every failure is kept in ``trouble``,
the first one is what the report says, and the run goes on without what could not be written.
Parameters and report, which cannot be had again, are then written elsewhere, where the system keeps
temporary files; what finds no place there either is ``lost``, and the run's exit code says so.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, final

import msgspec

from pydownpour.errors import CheckpointError, ConfigError
from pydownpour.layout import Flat, Layout
from pydownpour.limits import DEFAULT, Limits
from pydownpour.storage import safetensors
from pydownpour.storage.files import Files, LocalFiles

EVENTS: Final = "events.jsonl"
PARAMETERS: Final = "parameters.safetensors"
PARTIAL: Final = "parameters.partial.safetensors"
REPORT: Final = "report.json"
TOKEN: Final = "token"
LOGS: Final = "logs"
COLLISIONS_MAX: Final = 1000
"""Runs of one job begun within the same second."""


def make_run_folder(
    job: str, stamp: str, *, parent: str = "runs", files: Files | None = None
) -> str:
    """Make and claim ``parent/job-stamp``, or with ``-2``, ``-3``, ... if it is there already.

    Args:
        job: The job's name, already checked to be a file name.
        stamp: Local time as ``yyyymmdd-hhmmss``; told, because decisions read no clock.
        parent: Made if it is missing.
        files: The disk.

    Raises:
        ConfigError: no folder can be made there.
    """
    disk = files if files is not None else LocalFiles()
    plain = os.path.join(parent, f"{job}-{stamp}")
    for number in range(1, COLLISIONS_MAX + 1):
        path = plain if number == 1 else f"{plain}-{number}"
        try:
            disk.make_folder(path, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_make(path, error) from error
        claim_run_folder(path, files=disk)
        return path
    raise ConfigError(f"{COLLISIONS_MAX} run folders {plain}-* are there already")


def claim_run_folder(path: str, *, files: Files | None = None) -> None:
    """Make this folder the one of a new run; made if it is missing.

    A run's folder is the one that holds its events, from its first moment on: of two runs that
    want the same, one makes that file and the other is refused.

    Raises:
        ConfigError: it holds a run, or it cannot be made.
    """
    disk = files if files is not None else LocalFiles()
    try:
        disk.make_folder(path, exist_ok=True)
    except OSError as error:
        raise _cannot_make(path, error) from error
    try:
        disk.create(os.path.join(path, EVENTS), b"")
    except FileExistsError:
        words = f"run folder {path} already holds a run; name another or move it"
        raise ConfigError(words) from None
    except OSError as error:
        raise _cannot_make(path, error) from error


def forget_run_folder(path: str, *, parent: bool) -> None:
    """Take back the folder of a run that never began; whatever else is in it stays.

    ``parent``: the folder above it goes, too, if it is empty then.
    """
    logs = os.path.join(path, LOGS)
    with contextlib.suppress(OSError):
        for name in os.listdir(logs):
            os.unlink(os.path.join(logs, name))
    for name in (EVENTS, TOKEN):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        for folder in (logs, path, *([os.path.dirname(path)] if parent else [])):
            os.rmdir(folder)


def _cannot_make(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot make the run folder {path}: {describe(error)}")


@final
class RunFolder:
    """Writes one run's files; never raises for what a disk does after ``open``.

    Args:
        path: The folder; made by ``open`` if it is missing.
        files: The disk.
        limits: ``events_size_max``, ``write_told_size``, ``stored_header_size_max``.

    Statistics:
        ``trouble``: the first failure in words, "" if none; ``events_lost``: events not written;
        ``elsewhere``: files that are not in the folder, and their paths; ``lost``: files that are
        nowhere.
    """

    def __init__(self, path: str, *, files: Files | None = None, limits: Limits = DEFAULT) -> None:
        self.path, self._limits = path, limits
        self.trouble = ""
        self.events_lost = 0
        self.elsewhere: dict[str, str] = {}
        self.lost: list[str] = []
        self._spare = ""
        self._files = files if files is not None else LocalFiles()
        self._events_size = 0

    def open(self) -> None:
        """Make the folder.

        Raises:
            ConfigError: it cannot be made: better said now than after hours of training.
        """
        try:
            self._files.make_folder(self.path, exist_ok=True)
        except OSError as error:
            raise _cannot_make(self.path, error) from error

    def append_events(self, events: Iterable[Mapping[str, Any]], *, sync: bool = False) -> None:
        """Add events, one JSON object a line. ``sync``: on the disk when this returns."""
        lines = [msgspec.json.encode(event) + b"\n" for event in events]
        room = self._limits.events_size_max - self._events_size
        kept = []
        for line in lines:
            room -= len(line)
            if room < 0:
                break
            kept.append(line)
        if len(kept) < len(lines):
            self.events_lost += len(lines) - len(kept)
            self._fail(f"{EVENTS} reached {self._limits.events_size_max} bytes (events_size_max)")
        if not kept and not sync:
            return
        data = b"".join(kept)
        try:
            self._files.append(os.path.join(self.path, EVENTS), data, sync=sync)
            self._events_size += len(data)
        except OSError as error:
            self.events_lost += len(kept)
            self._fail(f"{EVENTS}: {describe(error)}")

    def write_parameters(
        self,
        layout: Layout,
        flat: Flat,
        metadata: Mapping[str, str],
        *,
        whole: bool = True,
        told: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Write the parameters; those with holes under another name, so that nobody mistakes it.

        ``told`` is called with the bytes handed to the disk so far, as they go.
        """
        name, step = PARAMETERS if whole else PARTIAL, self._limits.write_told_size
        pieces = functools.partial(safetensors.encode, layout, flat, metadata, limits=self._limits)
        self._keep(name, lambda: _told(pieces(), told, step))

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write the report whole."""
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        self._keep(REPORT, lambda: [text, b"\n"])

    def _keep(self, name: str, pieces: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Write a file whole, in the folder if it can be, elsewhere if not."""
        self.lost = [other for other in self.lost if other != name]
        self.elsewhere.pop(name, None)
        try:
            self._files.replace(os.path.join(self.path, name), pieces())
        except OSError as error:
            self._fail(f"{name}: {describe(error)}")
            self._keep_elsewhere(name, pieces)
        except CheckpointError as error:
            self._fail(f"{name}: {error}")
            self.lost.append(name)

    def _keep_elsewhere(
        self, name: str, pieces: Callable[[], Iterable[bytes | memoryview]]
    ) -> None:
        try:
            if not self._spare:
                folder = os.path.basename(os.path.normpath(self.path))
                self._spare = self._files.spare_folder(f"pydownpour-{folder}")
            path = os.path.join(self._spare, name)
            self._files.replace(path, pieces())
        except OSError as error:
            self.trouble += f"; nor elsewhere: {describe(error)}"
            self.lost.append(name)
        else:
            self.elsewhere[name] = path

    def _fail(self, words: str) -> None:
        self.trouble = self.trouble or words


def _told(
    pieces: Iterable[memoryview], told: Callable[[int], None], step: int
) -> Iterator[memoryview]:
    """The same bytes in pieces small enough to tell how far they are."""
    size = 0
    for piece in pieces:
        for at in range(0, len(piece), step):
            told(size + at)
            yield piece[at : at + step]
        size += len(piece)
    told(size)


def describe(error: OSError) -> str:
    """``no space left on device (ENOSPC)``."""
    code = errno.errorcode.get(error.errno or 0, "")
    text = (error.strerror or str(error)).lower()
    return f"{text} ({code})" if code else text
