"""A disk in memory that fails when it is told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from pydownpour.storage.files import Bytes, Files


class FakeDisk(Files):
    """Holds files by path; ``break_with`` makes operations on matching names fail."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self.synced: set[str] = set()
        self.faults: dict[str, int] = {}

    def break_with(self, code: int, *, part: str = "") -> None:
        """From now on, operations on paths that contain ``part`` fail with this errno."""
        self.faults[part] = code

    def _check(self, path: str) -> None:
        for part, code in self.faults.items():
            if part in path:
                raise OSError(code, os.strerror(code))

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        self._check(path)
        if path in self.folders and not exist_ok:
            raise FileExistsError(errno.EEXIST, "exists")
        self.folders.add(path)

    def spare_folder(self, name: str) -> str:
        path = f"spare/{name}"
        self.make_folder(path, exist_ok=True)
        return path

    def create(self, path: str, data: Bytes) -> None:
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.append(path, data, sync=False)

    def append(self, path: str, data: Bytes, *, sync: bool) -> None:
        self._check(path)
        self.files[path] = self.files.get(path, b"") + bytes(data)
        if sync:
            self.synced.add(path)

    def replace(self, path: str, pieces: Iterable[Bytes]) -> None:
        self._check(path)
        self.files[path] = b"".join(bytes(piece) for piece in pieces)

    def read(self, path: str, size_max: int) -> bytes:
        self._check(path)
        return self.files[path][: size_max + 1]
