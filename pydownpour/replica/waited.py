"""How long a training loop waited, by what it waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, final

Kind: TypeAlias = Literal["push", "blocks", "round", "clock", "fetch", "work"]

KINDS: Final[dict[Kind, str]] = {
    "push": "answers to pushes, or room for one more that has none",
    "blocks": "the same, while a shard had no block free",
    "round": "a round to be closed, and its parameters; or a push's turn in one",
    "clock": "the steps of others, and the parameters after that",
    "fetch": "parameters, behind no gate",
    "work": "a unit, or the word that units were recorded",
}
"""What a loop waits for, one kind at a time."""


@final
class TurnedDown:
    """For how long one shard turned pushes down for now, on the session's loop.

    Attributes:
        no_room_s: Because it had no block free, or no room in its journal; seconds in all.
        not_yet_s: Because its policy's rule said so.
    """

    __slots__ = ("_by_rule", "_since", "no_room_s", "not_yet_s")

    def __init__(self) -> None:
        self.no_room_s = self.not_yet_s = 0.0
        self._since: float | None = None
        self._by_rule = False

    def begins(self, now: float, *, by_rule: bool) -> None:
        """A push is; the first reason counts until ``ended``."""
        if self._since is None:
            self._since, self._by_rule = now, by_rule

    def ended(self, now: float) -> None:
        """They are taken again, or may come."""
        if self._since is None:
            return
        seconds, self._since = now - self._since, None
        if self._by_rule:
            self.not_yet_s += seconds
        else:
            self.no_room_s += seconds


@final
class Waited:
    """Told by the user's thread what it begins to wait for, and when that has ended.

    Args:
        clock: Seconds, of the user's thread.
        shards: Why each of them turned pushes down meanwhile.
    """

    def __init__(self, clock: Callable[[], float], shards: Sequence[TurnedDown]) -> None:
        self._clock, self._shards = clock, shards
        self._seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._open: tuple[Kind, float] | None = None
        self._before = [(0.0, 0.0)] * len(shards)

    def begins(self, kind: Kind) -> None:
        """From now on."""
        if kind == "push":
            self._before = [(one.no_room_s, one.not_yet_s) for one in self._shards]
        self._open = kind, self._clock()

    def ended(self) -> None:
        """Until now. What pushes waited for is told apart by why shards turned them down.

        A step that its user has given up ends when it is collected, be it behind later waits.
        """
        if self._open is None:
            return
        (kind, began), self._open = self._open, None
        seconds = self._clock() - began
        if kind == "push":
            before = zip(self._shards, self._before, strict=True)
            down = [(one.no_room_s - room, one.not_yet_s - turn) for one, (room, turn) in before]
            blocks = min(seconds, max(room for room, _ in down))
            turns = min(seconds - blocks, max(turn for _, turn in down))
            self._seconds["blocks"] += blocks
            self._seconds["round"] += turns
            seconds -= blocks + turns
        self._seconds[kind] += seconds

    def by_kind(self) -> dict[str, Any]:
        """Seconds under the names they have in ``ReplicaStats``; with what lasts, of any thread."""
        seconds, lasting = dict(self._seconds), self._open
        if lasting is not None:
            kind, began = lasting
            seconds[kind] += max(0.0, self._clock() - began)
        return {f"waited_{kind}_s": value for kind, value in seconds.items()}
