"""The one way to try again: how long between two tries, and for how long at all."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

from pydownpour.errors import DownpourError
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.waiting import Stalls, Waiting

T = TypeVar("T")


@final
class Backoff:
    """Pauses, twice as long each time: ``backoff_min_s`` to ``backoff_max_s``. Pure.

    Args:
        rng: Spreads those who were cut off together: each pause is 0.5 to 1 times its length.
            None: it is the length itself.
        limits: The shortest and the longest.
    """

    def __init__(self, rng: random.Random | None = None, limits: Limits = DEFAULT) -> None:
        self._rng, self._limits = rng, limits
        self._pause_s = limits.backoff_min_s

    def next_s(self) -> float:
        """Seconds until the next try."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._limits.backoff_max_s)
        return pause_s if self._rng is None else pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something worked: the next pause is the shortest again."""
        self._pause_s = self._limits.backoff_min_s


async def patiently(
    ask: Callable[[], Awaitable[T]],
    *,
    whom: str = "",
    rng: random.Random | None = None,
    limits: Limits = DEFAULT,
    progress: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Ask until there is an answer, or asking again cannot help.

    Args:
        ask: One try.
        whom: Who is waited for, in words, said while it lasts; "" says nothing.
        rng: Of the pauses, see :class:`Backoff`.
        limits: Of the pauses, and ``join_patience_s``.
        progress: Grows when a try that failed got somewhere: then patience begins anew.
        sleep: Waits between two tries; may raise to end it.

    Raises:
        DownpourError: of the last try. One that is ``retryable`` was tried again for
            ``join_patience_s`` without progress, the time not counted in which this process
            itself stood still.
    """
    clock = asyncio.get_running_loop().time
    backoff, before = Backoff(rng, limits), progress()
    stalls = Stalls(clock(), limits.request_timeout_s + limits.backoff_max_s, limits.stall_s)
    give_up_at = clock() + limits.join_patience_s
    async with contextlib.AsyncExitStack() as stack:
        waiting = await stack.enter_async_context(Waiting(whom, limits)) if whom else None
        while True:
            try:
                return await ask()
            except DownpourError as error:
                if not error.retryable:
                    raise
                give_up_at += stalls.look(clock())
                if (now := progress()) != before:
                    before, give_up_at = now, clock() + limits.join_patience_s
                    backoff.reset()
                if clock() > give_up_at:
                    raise
                if waiting is not None:
                    waiting.note(error)
            await sleep(backoff.next_s())
