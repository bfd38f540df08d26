"""What a user's code prints: all of it to its process's log, to the display what a person reads.

Only Python's own standard output is heard. What C code, a subprocess or standard error says is in
the log alone.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable
from typing import Any, Final, final

from pydownpour.engines.streams import Unfailing
from pydownpour.limits import DEFAULT, Limits

_LETTER_SIZE_MAX: Final = 4
"""Bytes of a character in UTF-8."""

_STYLES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours, and orders to the cursor."""


def overhear(tell: Callable[[str], None]) -> None:
    """From now on hand the lines that this process prints to ``tell``, too."""
    sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Overheard(tell)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )


@final
class _Overheard(io.RawIOBase):
    """Standard output's descriptor, with somebody who listens."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._out = Unfailing(1, "w", closefd=False)
        self._lines = Lines(tell)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The log's: a child that inherits it writes there."""
        return self._out.fileno()

    def write(self, data: Any, /) -> int:
        """Into the log, and what the log took to the lines."""
        written = self._out.write(data)
        self._lines.take(bytes(data[:written]), time.monotonic())
        return written


@final
class Lines:
    """Cuts what is printed into lines and tells as many of them as anybody can read.

    A burst of ``print_burst``, then ``print_lines_per_s``; the rest is counted. Pure: told the
    time.
    """

    def __init__(self, tell: Callable[[str], None], limits: Limits = DEFAULT) -> None:
        self._tell, self._limits = tell, limits
        self._partial = b""
        self._allowance = float(limits.print_burst)
        self._at: float | None = None
        self._skipped = 0

    def take(self, data: bytes, now: float) -> None:
        """Some bytes were printed."""
        *ended, rest = (self._partial + data).split(b"\n")
        self._partial = rest[: _LETTER_SIZE_MAX * self._limits.print_line_len_max]
        for line in ended:
            self._line(line, now)

    def _line(self, line: bytes, now: float) -> None:
        elapsed_s = now - self._at if self._at is not None else 0.0
        self._at = now
        self._allowance = min(
            float(self._limits.print_burst),
            self._allowance + elapsed_s * self._limits.print_lines_per_s,
        )
        text = _shown(line, self._limits.print_line_len_max)
        if not text:
            return
        needed = 2.0 if self._skipped else 1.0  # those that were skipped are worth a line, too
        if self._allowance < needed:
            self._skipped += 1
            return
        self._allowance -= needed
        if self._skipped:
            self._tell(f"({self._skipped:,} more lines; all are in the log)")
            self._skipped = 0
        self._tell(text)


def _shown(line: bytes, len_max: int) -> str:
    """As a terminal would leave it: what a carriage return covers is gone, and nothing moves."""
    text = _STYLES.sub("", line.decode("utf-8", "replace")).expandtabs(4).rstrip()
    text = text.rpartition("\r")[2]
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) > len_max:
        return text[:len_max] + "..."
    return text
