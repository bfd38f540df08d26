"""The child's side of an engine: it never outlives its parent, and it can be understood.

A supervised role calls :func:`adopt` before anything else. Two independent ways end it when its
parent is gone, however the parent ended:

* Linux: the kernel kills it (PR_SET_PDEATHSIG). The parent may have died before that was set, so
  the parent's process id is compared afterwards.
* everywhere: the parent holds the write end of the child's standard input and never writes. When
  it closes, a thread asks the child to end and, after ``shutdown_s``, makes it.

Its standard output becomes the channel: one JSON object a line, to the engine only. What the
user's code prints goes to standard error, which is the log file, so it cannot garble the channel;
the lines that ``prints`` overhears are messages of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, Final, final

import msgspec

from pydownpour.engines import prints
from pydownpour.limits import DEFAULT

SUPERVISED: Final = "PYDOWNPOUR_SUPERVISED"
"""Environment variable: the process id of the engine that started this role."""

_PR_SET_PDEATHSIG: Final = 1


@final
class Channel:
    """JSON lines to the engine."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()  # whoever held it is not in this process

    def emit(self, message: dict[str, Any]) -> None:
        """Write one object. A parent that is gone is not an error: this process ends soon."""
        data = memoryview(msgspec.json.encode(message) + b"\n")
        with self._lock, contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._fd, data) :]


def adopt() -> Channel | None:
    """Bind this process's life to its engine's; None if no engine started it."""
    parent = os.environ.get(SUPERVISED)
    if not parent:
        return None
    # Grandchildren (data loaders) are not supervised: their parent is this process.
    del os.environ[SUPERVISED]
    _die_with_parent()
    if os.getppid() != int(parent):
        os._exit(1)
    threading.Thread(target=_watch_stdin, name="pydownpour-parent", daemon=True).start()
    sys.stdout.flush()
    channel = Channel(os.dup(1))
    os.dup2(2, 1)
    prints.overhear(lambda line: channel.emit({"event": "print", "text": line}))
    return channel


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _watch_stdin() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DEFAULT.shutdown_s)
    end_group()


def end_group() -> None:
    """End this process now, with everything it started if it leads its own group."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
