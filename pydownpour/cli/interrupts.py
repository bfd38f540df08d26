"""What a signal to stop means: the first ends the command, a later one asks, a third kills.

Pure: told when each signal came, answers what to do. A Ctrl-C whose key bounces, or that arrives
both from the terminal and from a supervisor, is one request.

    first                                   stop, in order
    within signals_one_s of the last        the same request
    second                                  say what is still being written
    third and later                         at once, whatever is lost
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

from pydownpour.limits import DEFAULT

Meaning: TypeAlias = Literal["stop", "same", "remind", "kill"]


@final
class Interrupts:
    """The signals one command got."""

    def __init__(self) -> None:
        self._count = 0
        self._last_at: float | None = None

    def decide(self, now: float) -> Meaning:
        """What the signal that came now means."""
        last_at, self._last_at = self._last_at, now
        if last_at is not None and now - last_at < DEFAULT.signals_one_s:
            return "same"
        self._count += 1
        return {1: "stop", 2: "remind"}.get(self._count, "kill")  # type: ignore[return-value]
