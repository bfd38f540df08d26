"""What a process says of itself: its name on the network, its number, its memory.

Messages carry these, so a simulated process must be able to say something else than the one
process that simulates them all: whoever runs one sets :data:`CURRENT` in its context.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import importlib
import os
import socket
import sys
from typing import Any, final

from pydownpour.limits import DEFAULT

resource: Any = None
with contextlib.suppress(ImportError):  # Windows has none
    # Here, and not where it is asked: without a free descriptor nothing can be imported.
    resource = importlib.import_module("resource")

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessFacts(abc.ABC):
    """A process, as its peers know it."""

    @abc.abstractmethod
    def pid(self) -> int:
        """Its number on its host."""

    @abc.abstractmethod
    def host_name(self) -> str: ...

    @abc.abstractmethod
    def rss_bytes(self) -> int:
        """Resident bytes now; 0 where the system does not say."""

    @abc.abstractmethod
    def rss_peak_bytes(self) -> int:
        """The most resident bytes so far; 0 where the system does not say."""

    @abc.abstractmethod
    def descriptors(self) -> tuple[int, int]:
        """How many descriptors (files, sockets) it may have open, and how many it has."""


@final
class ThisProcess(ProcessFacts):
    """The operating system's answers."""

    def pid(self) -> int:
        return os.getpid()

    def host_name(self) -> str:
        """``socket.gethostname()``."""
        return socket.gethostname()

    def rss_bytes(self) -> int:
        try:
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            return 0

    def rss_peak_bytes(self) -> int:
        """From /proc, or from getrusage where there is none."""
        return _peak_in_proc() or _peak_of_getrusage()

    def descriptors(self) -> tuple[int, int]:
        """From getrlimit, and from /proc or /dev where they are."""
        if resource is None:
            return DEFAULT.descriptors_wanted, 0
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            allowed = DEFAULT.descriptors_wanted
        for folder in ("/proc/self/fd", "/dev/fd"):
            with contextlib.suppress(OSError):
                return allowed, len(os.listdir(folder))
        return allowed, 0


def raise_descriptors() -> None:
    """Take as many descriptors as we are allowed and want: where we are a process of our own."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DEFAULT.descriptors_wanted
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems promise more than they give: then what there is must do.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _peak_in_proc() -> int:
    with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _peak_of_getrusage() -> int:
    """On Linux it counts from the fork on, also after exec: a parent's memory is in it."""
    if resource is None:
        return 0
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024


_THIS = ThisProcess()
CURRENT: contextvars.ContextVar[ProcessFacts] = contextvars.ContextVar("process", default=_THIS)
"""The process whose code runs."""


def pid() -> int:
    """The current process's number."""
    return CURRENT.get().pid()


def host_name() -> str:
    """The current process's host."""
    return CURRENT.get().host_name()


def rss_bytes() -> int:
    """The current process's resident bytes."""
    return CURRENT.get().rss_bytes()


def rss_peak_bytes() -> int:
    """The most the current process had resident."""
    return CURRENT.get().rss_peak_bytes()


def descriptors() -> tuple[int, int]:
    """How many descriptors the current process may have open, and how many it has."""
    return CURRENT.get().descriptors()
