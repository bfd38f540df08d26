"""States as data: what a thing may become, and when, as one table beside the code that obeys it.

A :class:`Table` has the states of one kind of thing and each change it allows. A :class:`State` is
the state of one such thing; it changes by :meth:`State.become` alone, which looks the table up.
``docs/states.md`` is made from the tables by :func:`diagram`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, final

from pydownpour.errors import InternalError

S = TypeVar("S", bound=str)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Table(Generic[S]):
    """The states of one kind of thing.

    Attributes:
        thing: Its name, as in "a shard's place".
        first: What it is to begin with.
        changes: State -> what it may become -> when. A state without changes is final.
    """

    thing: str
    first: S
    changes: Mapping[S, Mapping[S, str]]

    def __iter__(self) -> Iterator[tuple[S, S, str]]:
        for old, allowed in self.changes.items():
            for new, when in allowed.items():
                yield old, new, when

    @property
    def states(self) -> tuple[S, ...]:
        """All of them, the first one first."""
        return tuple(self.changes)

    def check(self, old: S, new: S, who: str) -> None:
        """Whether a change is allowed.

        Args:
            old: What ``who`` is.
            new: What it would become.
            who: The thing, in words.

        Raises:
            InternalError: it is none of the table's.
        """
        allowed = self.changes.get(old, {})
        if new not in allowed:
            raise InternalError(
                f"{who} is {old} and cannot become {new}; {self.thing} that is {old} becomes "
                f"{' or '.join(allowed) or 'nothing else any more'}"
            )


@final
class State(Generic[S]):
    """What one thing is.

    Args:
        table: What it may become.
        now: What it is, if that is not the table's first state.
    """

    __slots__ = ("_now", "_table")

    def __init__(self, table: Table[S], now: S | None = None) -> None:
        self._table, self._now = table, now if now is not None else table.first

    @property
    def now(self) -> S:
        """The state's name."""
        return self._now

    def become(self, new: S, who: str) -> bool:
        """Change; False if it is that already.

        Raises:
            InternalError: as :meth:`Table.check`.
        """
        if new == self._now:
            return False
        self._table.check(self._now, new, who)
        self._now = new
        return True


def diagram(table: Table[S]) -> str:
    """A table as Markdown: a drawing that GitHub renders, and each change with its reason."""
    drawing = [f"    [*] --> {table.first}"]
    drawing += [f"    {old} --> {new}" for old, new, _ in table]
    drawing += [f"    {state} --> [*]" for state in table.states if not table.changes[state]]
    rows = [f"| {old} | {new} | {when} |" for old, new, when in table]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            *drawing,
            "```",
            "",
            "| from | to | when |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
