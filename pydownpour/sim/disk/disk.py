"""Files that forget what was not synced: the door ``storage.files`` on a simulated disk.

What holds and what does not:

- What was appended is readable at once, and survives the death of the process that wrote it: the
  kernel has it. A power cut takes what no sync has covered; of each file's unsynced tail a random
  prefix survives, so the last record may be torn.
- ``append(sync=True)`` and ``replace`` are durable when they return, names included (as on ext4
  and XFS, where syncing a file also keeps its name). A replaced file is the old one or the new one.
- A disk that is full says ENOSPC. What an append could not write or sync is taken back.
- After a sync that failed with EIO the kernel calls the pages clean: later syncs succeed without
  them, and a power cut takes them (as on Linux since 4.13).
- A flipped bit shows in one read; the disk itself keeps what was written.
- Slow: a call's effect is there at once, its answer comes late. The simulated loop's executor is
  told how late; whoever called waits that long in virtual time, and may be killed meanwhile with
  the effect on disk and nobody who knows.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias, final

from pydownpour.errors import ConfigError
from pydownpour.storage.files import Bytes, Files

Operation: TypeAlias = Literal["read", "write", "sync"]
OPERATIONS: Final[tuple[Operation, ...]] = ("read", "write", "sync")


@final
class _File:
    """One file: all of it as processes see it, and how much of that a power cut leaves."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable_len = 0
        """Bytes of ``content`` that are on the platters."""
        self.is_durable = False
        """Its name is."""
        self.lost_from: int | None = None
        """From here on a sync failed: later ones do not make it durable."""

    def synced(self) -> None:
        """Everything that can become durable is."""
        self.is_durable = True
        end = len(self.content) if self.lost_from is None else self.lost_from
        self.durable_len = max(self.durable_len, end)


@final
class SimDisk(Files):
    """One host's disk.

    Args:
        rng: Chance for torn tails, failures and flipped bits.
        charge: Told the seconds each call takes while the disk is slow; whoever runs the call
            lets its answer come that much later.

    Statistics:
        ``failures``: errors raised; ``flips``: reads with a flipped bit; ``torn``: files whose
        tail a power cut tore; ``lost``: bytes it took.
    """

    def __init__(
        self, rng: random.Random, charge: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self._rng, self._charge = rng, charge
        self._files: dict[str, _File] = {}
        self._folders: dict[str, None] = {}
        self._failing: dict[Operation, float] = {}
        self._room: int | None = None
        self._flip = 0.0
        self._slow_s = 0.0
        self.failures = self.flips = self.torn = self.lost = 0

    # -- what storage asks -------------------------------------------------------------------------

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Make a folder and those above it; at once durable."""
        self._begin("write", path)
        path = _normal(path)
        if path in self._folders and not exist_ok:
            raise self._error(errno.EEXIST, path)
        chain = [path]
        while (above := os.path.dirname(chain[-1])) not in ("", chain[-1]):
            chain.append(above)
        for folder in reversed(chain):
            if folder in self._files:
                raise self._error(errno.EEXIST if folder == path else errno.ENOTDIR, folder)
            self._folders[folder] = None

    def spare_folder(self, name: str) -> str:
        """The host has no other disk: a folder on this one."""
        path = f"spare/{name}"
        self.make_folder(path, exist_ok=True)
        return path

    def create(self, path: str, data: Bytes) -> None:
        """Make a file that is not there yet."""
        if _normal(path) in self._files:
            raise self._error(errno.EEXIST, path)
        self.append(path, data, sync=False)

    def append(self, path: str, data: Bytes, *, sync: bool) -> None:
        """Add bytes to the end of a file."""
        self._begin("write", path)
        file = self._file(path)
        room, before = self._room, len(file.content)
        try:
            if self._take_room(len(data)) < len(data):
                raise self._error(errno.ENOSPC, path)
            file.content += data
            if sync:
                self._sync(path, file)
        except OSError:
            del file.content[before:]
            self._room = room
            raise

    def replace(self, path: str, pieces: Iterable[Bytes]) -> None:
        """Write a file whole: the old one stays until the new one is durable."""
        self._begin("write", path)
        self._parent(path)
        new = _File()
        for piece in pieces:
            new.content += bytes(piece)
        room, size = self._room, len(new.content)
        try:
            if self._take_room(size) < size:
                raise self._error(errno.ENOSPC, path)
            self._sync(path, new)
        except OSError:
            self._room = room  # what was written beside the old one is removed again
            raise
        old = self._files.get(_normal(path))
        if self._room is not None and old is not None:
            self._room += len(old.content)
        self._files[_normal(path)] = new

    def read(self, path: str, size_max: int) -> bytes:
        """A file's bytes, at most ``size_max`` of them plus one."""
        self._begin("read", path)
        file = self._files.get(_normal(path))
        if file is None:
            folder = _normal(path) in self._folders
            raise self._error(errno.EISDIR if folder else errno.ENOENT, path)
        content = bytearray(file.content[: size_max + 1])
        if content and self._rng.random() < self._flip:
            self.flips += 1
            bit = self._rng.randrange(len(content) * 8)
            content[bit // 8] ^= 1 << bit % 8
        return bytes(content)

    # -- what faults do ----------------------------------------------------------------------------

    def power_cut(self) -> None:
        """The host lost power: what was not synced is gone, but for a prefix of it."""
        for path, file in list(self._files.items()):
            if not file.is_durable:
                self.lost += len(file.content)
                del self._files[path]
                continue
            unsynced = len(file.content) - file.durable_len
            kept = self._rng.randint(0, unsynced)
            self.torn += 0 < kept < unsynced
            self.lost += unsynced - kept
            del file.content[file.durable_len + kept :]
            file.durable_len, file.lost_from = len(file.content), None

    def fill(self, room: int = 0) -> None:
        """The disk takes so many bytes more, then it is full."""
        self._room = room

    def fail(self, operation: Operation, chance: float = 1.0) -> None:
        """Each read, write or sync fails with EIO at this rate.

        Raises:
            ConfigError: no such operation, or no probability.
        """
        if operation not in OPERATIONS:
            raise ConfigError(f"a disk cannot fail to {operation!r}: {', '.join(OPERATIONS)}")
        self._failing[operation] = _probability(chance)

    def flip(self, chance: float = 1.0) -> None:
        """Each read has one flipped bit at this rate."""
        self._flip = _probability(chance)

    def slow(self, seconds: float) -> None:
        """Each call's answer comes so much later."""
        if seconds < 0:
            raise ConfigError(f"a disk cannot be slow by {seconds} s")
        self._slow_s = seconds

    def heal(self) -> None:
        """No more faults; what they did stays done."""
        self._failing.clear()
        self._room = None
        self._flip = self._slow_s = 0.0

    # -- for tests and for keeping a run -----------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Every file as processes see it, without faults."""
        return {path: bytes(file.content) for path, file in self._files.items()}

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, operation: Operation, path: str) -> None:
        if self._slow_s:
            self._charge(self._slow_s)
        self._maybe_fail(operation, path)

    def _maybe_fail(self, operation: Operation, path: str) -> None:
        chance = self._failing.get(operation, 0.0)
        if chance and self._rng.random() < chance:
            raise self._error(errno.EIO, path)

    def _sync(self, path: str, file: _File) -> None:
        try:
            self._maybe_fail("sync", path)
        except OSError:
            file.lost_from = file.durable_len if file.lost_from is None else file.lost_from
            raise
        file.synced()

    def _file(self, path: str) -> _File:
        name = _normal(path)
        if name in self._folders:
            raise self._error(errno.EISDIR, path)
        self._parent(path)
        return self._files.setdefault(name, _File())

    def _parent(self, path: str) -> None:
        folder = os.path.dirname(_normal(path))
        if folder in self._files:
            raise self._error(errno.ENOTDIR, path)
        if folder not in ("", "/") and folder not in self._folders:
            raise self._error(errno.ENOENT, path)

    def _take_room(self, size: int) -> int:
        if self._room is None:
            return size
        fitting = min(size, self._room)
        self._room -= fitting
        return fitting

    def _error(self, code: int, path: str) -> OSError:
        self.failures += 1
        return OSError(code, os.strerror(code), path)


def _normal(path: str) -> str:
    return os.path.normpath(path)


def _probability(chance: float) -> float:
    if not 0 <= chance <= 1:
        raise ConfigError(f"{chance} is no probability")
    return chance
