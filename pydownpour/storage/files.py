"""The door to the disk: a handful of whole operations, so that each can be made to fail in tests.

Everything is synchronous and may block for as long as a disk likes: services call it through
their loop's executor.
"""

from __future__ import annotations

import abc
import contextlib
import os
import tempfile
from collections.abc import Iterable
from typing import Final, TypeAlias, final

Bytes: TypeAlias = bytes | bytearray | memoryview

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""A run's parameters, logs and token are its owner's, whatever the umask would let others do."""


class Files(abc.ABC):
    """What storage needs of a disk. Every failure is an OSError."""

    @abc.abstractmethod
    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Make a folder, for its owner alone, and those above it.

        Raises:
            FileExistsError: it is there already and ``exist_ok`` is False.
        """

    @abc.abstractmethod
    def spare_folder(self, name: str) -> str:
        """Make a new folder with this name in it, perhaps on another disk, and return its path."""

    @abc.abstractmethod
    def create(self, path: str, data: Bytes) -> None:
        """Make a file that is not there yet, for its owner alone; of two who try, one succeeds.

        Raises:
            FileExistsError: it is there already.
        """

    @abc.abstractmethod
    def append(self, path: str, data: Bytes, *, sync: bool) -> None:
        """Add bytes to the end of a file; ``sync``: they are on the disk when this returns.

        What failed is taken back, so that the next bytes do not follow half of these.
        """

    @abc.abstractmethod
    def replace(self, path: str, pieces: Iterable[Bytes]) -> None:
        """Write a file whole: at no instant is there half a file under its name."""

    @abc.abstractmethod
    def read(self, path: str, size_max: int) -> bytes:
        """A file's bytes, at most ``size_max`` of them plus one, so that too many show."""


@final
class LocalFiles(Files):
    """The machine's own file system."""

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Make a folder and those above it."""
        os.makedirs(path, FOLDER_MODE, exist_ok=exist_ok)

    def spare_folder(self, name: str) -> str:
        """Where the system keeps temporary files (TMPDIR)."""
        return tempfile.mkdtemp(prefix=f"{name}-")

    def create(self, path: str, data: Bytes) -> None:
        """Exclusively; links are not followed."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def append(self, path: str, data: Bytes, *, sync: bool) -> None:
        """Open, write everything, close: an error of the disk shows here and not later."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, data)
                if sync:
                    os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def replace(self, path: str, pieces: Iterable[Bytes]) -> None:
        """Write beside it, fsync, rename over it, fsync the folder."""
        temporary = f"{path}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, FILE_MODE)
            try:
                for piece in pieces:
                    _write_all(descriptor, piece)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(os.path.dirname(path) or ".")

    def read(self, path: str, size_max: int) -> bytes:
        with open(path, "rb") as file:
            return file.read(size_max + 1)


def _write_all(descriptor: int, data: Bytes) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(path: str) -> None:
    # A rename is only durable once its folder is. Some systems cannot open folders: they are left.
    with contextlib.suppress(PermissionError, IsADirectoryError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
