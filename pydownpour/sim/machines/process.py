"""A simulated process.

Everything a process does runs in callbacks of the event loop, and each callback belongs to the
process whose context it was made in. A crash is therefore exact: from that instant no callback of
the process runs, no ``finally`` either, as after SIGKILL. A pause holds its callbacks back until it
goes on, as SIGSTOP does; the kernel of its host goes on receiving meanwhile.
"""

from __future__ import annotations

import contextvars
import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from pydownpour.limits import DEFAULT
from pydownpour.net.process import CURRENT, ProcessFacts

if TYPE_CHECKING:
    import asyncio

    from pydownpour.sim.machines.host import Host

SIMULATED_RSS = 50_000_000
"""What every simulated process says of its memory: one number, so that no message varies."""


class ProcessState(enum.Enum):
    """Whether its callbacks run."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"
    """Crashed, or its main coroutine ended."""


@final
class SimProcess(ProcessFacts):
    """One process on a host, from its start to its end; a restart is a new one.

    Attributes:
        name: For the trace, e.g. ``replica-3``.
        held: Callbacks that came while it was paused or dead, in order.
        clock_offset_s: What its monotonic clock shows beyond the world's time.
    """

    def __init__(self, name: str, number: int, host: Host) -> None:
        self.name, self.number, self.host = name, number, host
        self.state = ProcessState.RUNNING
        self.held: deque[Callable[[], object]] = deque()
        self.clock_offset_s = host.clock_offset_s
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.main: asyncio.Task[Any] | None = None
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)
        self.context.run(PROCESS.set, self)

    # -- what it says of itself ------------------------------------------------------------------

    def pid(self) -> int:
        """Four digits, whatever the process."""
        return 1000 + self.number % 9000

    def host_name(self) -> str:
        return self.host.name

    def rss_bytes(self) -> int:
        """Not modelled: the same number for every process."""
        return SIMULATED_RSS

    def rss_peak_bytes(self) -> int:
        """Not modelled: as ``rss_bytes``."""
        return SIMULATED_RSS

    def descriptors(self) -> tuple[int, int]:
        """As many as there may be."""
        return DEFAULT.descriptors_wanted, 0

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}>"


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)
"""In a context, the process that it belongs to."""


def current() -> SimProcess | None:
    """The process whose callback runs; None in the world's own."""
    return PROCESS.get()
