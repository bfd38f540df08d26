"""Standard streams that cannot end a process: closed, broken, full or of few letters.

Whoever watches a run may go away (``| head -1``), be full (``> /dev/full``), hang up, or know no
more than ASCII. That is the watcher's loss, never the run's.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from typing import IO, Any, Final, final

PLAIN_LETTERS: Final = "pydownpour.plain_letters"
"""The name under which :func:`_plain` is registered as a codec's error handler."""

_PLAIN: Final = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
        "━": "-",
        "╸": "-",
        "╺": " ",
        "…": "~",
    }
)


def reopen_closed() -> None:
    """Let standard descriptors that were closed lead to the null device.

    Otherwise the next file or socket that is opened becomes standard output, and libraries that
    count on 0, 1 and 2 abort.
    """
    names = {0: "stdin", 1: "stdout", 2: "stderr"}
    for descriptor, name in names.items():
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            stream = open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def use_plain_letters() -> None:
    """Let what the terminal's encoding lacks be shown by its nearest ASCII relation."""
    stream = sys.stdout
    if _is_standard(stream, 1) and isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=PLAIN_LETTERS)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(letter if letter.isascii() else "?" for letter in text), error.end


codecs.register_error(PLAIN_LETTERS, _plain)


def never_fail() -> None:
    """Let nothing that becomes of standard output and error raise, now or at exit."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if _is_standard(stream, descriptor) and isinstance(stream, io.TextIOWrapper):
            raw = Unfailing(descriptor, "w", closefd=False)
            stream.flush()
            unfailing = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, unfailing)


def failure(stream: IO[Any]) -> OSError | None:
    """Why some of what was written to a stream never got there, if so; a reader who left is none.

    Only streams of :func:`never_fail` know.
    """
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, Unfailing) else None


def _is_standard(stream: Any, descriptor: int) -> bool:
    try:
        return bool(stream.fileno() == descriptor)
    except (AttributeError, OSError, ValueError):
        return False


@final
class Unfailing(io.FileIO):
    """A descriptor whose writes are always taken, and sometimes thrown away."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write what can be written; the rest counts as written, too."""
        size = memoryview(data).nbytes
        try:
            while (count := super().write(data)) is None:
                # Somebody made the terminal or pipe non-blocking, for all who share it.
                select.select((), (self,), ())
        except BrokenPipeError:
            return size
        except OSError as error:
            self.failure = self.failure or error
            return size
        return count
