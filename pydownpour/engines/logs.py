"""Logs of children, which grow with what anybody makes them say, kept within bounds.

A child writes to its log itself, and so does whatever it started: nobody stands between them and
the disk who could hold them up. So a log that has grown too long is cut behind their backs: what is
in it moves to a file beside it, in the place of what moved there before, and it goes on empty. They
all append, so what they write next is its new beginning.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pydownpour.limits import MIB
from pydownpour.storage.files import FILE_MODE


def for_its_owner(path: str, flags: int) -> int:
    """An opener: nobody else can read the file."""
    return os.open(path, flags, FILE_MODE)


def older(path: Path) -> Path:
    """Where what a log held before goes."""
    return path.with_name(path.name + ".1")


def keep_short(path: Path, size_max: int) -> bool:
    """Cut a log if it has more than ``size_max`` bytes. Returns whether it had.

    Raises:
        OSError: the disk.
    """
    with open(path, "r+b") as log:
        if os.fstat(log.fileno()).st_size <= size_max:
            return False
        with open(older(path), "wb", opener=for_its_owner) as before:
            shutil.copyfileobj(log, before, MIB)
        # What was written between the last read and this is lost: a line or two.
        log.truncate(0)
    return True
