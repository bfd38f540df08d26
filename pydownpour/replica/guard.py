"""What would lose or double gradients without a word, refused with words.

A replica is one training loop. Three slips look like it and are not: a step that nobody awaits, two
threads or tasks inside one replica at once, and a forked child, which has a copy of the memory but
neither the session's thread nor its place in the job.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from types import CodeType
from typing import Any, TypeVar, final

from pydownpour.errors import MisuseError

T = TypeVar("T")


@final
class Guard:
    """Who is inside a replica. Cheap: one look at the process's number, one lock nobody waits for.

    Raises:
        MisuseError: a call that may not be.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._alone = threading.Lock()
        self._inside = "", 0
        self._forgotten = ""

    @property
    def is_forked(self) -> bool:
        """True in a child that was forked from the process that joined."""
        return os.getpid() != self._pid

    def enter(self, call: str) -> None:
        """A call begins. ``leave`` ends it, whatever became of it."""
        if os.getpid() != self._pid:
            raise MisuseError(
                f"replica.{call}() in process {os.getpid()}, which was forked from the one that "
                f"joined ({self._pid}): a child inherits neither the session's thread nor its "
                "place in the job; join in the child (dp.join), or compute there and step here"
            )
        if self._forgotten:
            self.check_awaited()
        if not self._alone.acquire(False):
            other, thread = self._inside
            who = "task" if thread == threading.get_ident() else "thread"
            raise MisuseError(
                f"replica.{call}() was called while replica.{other}() of another {who} had not "
                "returned: a replica is one training loop; await one call after the other, or "
                f"join once for each {who} (dp.join)"
            )
        self._inside = call, threading.get_ident()

    def leave(self) -> None:
        self._alone.release()

    def call(
        self, name: str, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
    ) -> Call[T]:
        """What an ``async`` method called ``name`` returns to its caller."""
        if self._forgotten:
            self.check_awaited()
        return Call(self, name, function, *arguments)

    def forgot(self, call: str, code: CodeType, line: int) -> None:
        """A call was thrown away without having been awaited."""
        self._forgotten = self._forgotten or (
            f"replica.{call}(...) at {code.co_filename}:{line} was never awaited, so nothing of it "
            f"was done; write: await replica.{call}(...)"
        )

    def check_awaited(self) -> None:
        """Raise if a call was forgotten since the last look."""
        if self._forgotten:
            words, self._forgotten = self._forgotten, ""
            raise MisuseError(words)


@final
class Call(Coroutine[Any, Any, T]):
    """A call of a replica's ``async`` method: a coroutine that knows the line that made it.

    It begins when it is awaited (or made a task of). One that is dropped before raises at the
    replica's next call, where Python alone would only warn in some log.
    """

    __slots__ = ("_arguments", "_code", "_coroutine", "_function", "_guard", "_line", "_name")

    def __init__(
        self,
        guard: Guard,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        *arguments: Any,
    ) -> None:
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._guard, self._name = guard, name
        self._function, self._arguments = function, arguments
        caller = sys._getframe(3)  # whoever called the method that asked the guard for this
        self._code, self._line = caller.f_code, caller.f_lineno

    def _begun(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None:
            self._coroutine = self._function(*self._arguments)
        return self._coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        """As of any coroutine: who closes it does not want it."""
        self._begun().close()

    def __del__(self) -> None:
        if self._coroutine is None:
            self._guard.forgot(self._name, self._code, self._line)
