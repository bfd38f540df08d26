"""What a replica's function writes down so that it outlives the process.

One line a note, appended with a single ``write``: the kernel has it then, and SIGKILL cannot take
it back. A last line without its end was being written when the process died: it is not a note.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))
STOP = FOLDER / "stop"
"""The test makes this file when the replicas shall end."""


class Journal:
    """Notes of one incarnation of one replica."""

    def __init__(self, replica: int, incarnation: int) -> None:
        path = journal_path(FOLDER, replica, incarnation)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, *words: object) -> None:
        """Append one line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def journal_path(folder: Path, replica: int, incarnation: int) -> Path:
    """Where an incarnation's notes are."""
    return folder / f"journal-{replica}-{incarnation}"


def read_notes(path: Path) -> list[list[str]]:
    """The words of every whole note, oldest first."""
    if not path.exists():
        return []
    return [line.split() for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
