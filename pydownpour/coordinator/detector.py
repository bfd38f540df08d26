"""Failure detection: who is silent, and whether to believe it.

Every role sends a heartbeat each ``heartbeat_s``; silent for ``suspect_s`` it is suspect,
for ``dead_s`` dead. Only the coordinator decides, and it must not decide when the silence is its
own (ray#28562: an overloaded head node declared live nodes dead). Three guards:

1. A sweep that comes late by ``stall_s`` says that this process stood still. Everybody's clock is
   moved on by the gap (``forgive``): this works for any number of roles.
2. If none of several roles is heard for ``deaf_s``, the clocks of all stand still until one is:
   a role that was silent before must not be called dead for a time in which nobody could be heard.
3. If more than half of all watched roles, and at least two, are silent at once, nothing is
   changed and the coordinator names itself the suspect. The lone death of a replica in a job with
   a shard is at most half of the roles, so the smallest job still notices it within ``dead_s``.
   Both guards end after ``mass_silence_s``: when a cluster really is gone, that must show in the
   end. Until then nothing is lost by waiting: leases run out by themselves, and a replica
   that comes back as a new incarnation gives its old units back at once. When a doubt ends, those
   still silent start anew: roles return from the coordinator's outage one after the other, and
   the last of them must not be called dead for a time in which nobody could be heard.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, final

from pydownpour.limits import DEFAULT, Limits

Role: TypeAlias = Literal["replica", "shard"]
Watched: TypeAlias = tuple[Role, int]
Liveness: TypeAlias = Literal["live", "suspect", "dead"]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One role's new state, and why."""

    who: Watched
    state: Liveness
    reason: str


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep decided. ``reason`` is set when the coordinator doubts itself."""

    changes: tuple[Change, ...] = ()
    reason: str = ""


@final
class Detector:
    """Watches roles by their signs of life. Dead roles are no longer watched until seen again.

    Args:
        limits: ``suspect_s``, ``dead_s``, ``mass_silence_s``, ``deaf_s``.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._seen: dict[Watched, float] = {}
        self._suspects: set[Watched] = set()
        self._doubt_since: float | None = None
        self._heard_at = 0.0
        """The last sign of life of anybody."""

    def seen(self, who: Watched, now: float) -> bool:
        """A sign of life. True if the role was suspect or not watched before."""
        if self._is_deaf(now):
            self.forgive(now - self._heard_at, now)
        self._heard_at = now
        news = who in self._suspects or who not in self._seen
        self._suspects.discard(who)
        self._seen[who] = now
        return news

    def forget(self, who: Watched) -> None:
        """It left, or its place was taken: watch it no more."""
        self._seen.pop(who, None)
        self._suspects.discard(who)

    def forgive(self, gap: float, now: float) -> None:
        """This process stood still for ``gap`` seconds: nobody could be heard."""
        for who, at in self._seen.items():
            self._seen[who] = min(at + gap, now)
        self._heard_at = min(self._heard_at + gap, now)

    def _is_deaf(self, now: float) -> bool:
        return len(self._seen) > 1 and now - self._heard_at > self._limits.deaf_s

    def judge(self, now: float) -> Verdict:
        """Who became suspect or dead, unless so many are silent at once that we doubt ourselves."""
        silent = [who for who, at in self._seen.items() if now - at >= self._limits.suspect_s]
        is_deaf = self._is_deaf(now)
        if is_deaf or (len(silent) >= 2 and 2 * len(silent) > len(self._seen)):
            if self._doubt_since is None:
                self._doubt_since = now
            if now - self._doubt_since < self._limits.mass_silence_s:
                what = (
                    f"none of {len(self._seen)} roles was heard for {now - self._heard_at:.1f} s"
                    if is_deaf
                    else f"{len(silent)} of {len(self._seen)} roles fell silent at once"
                )
                return Verdict(
                    reason=f"{what}: more likely the coordinator itself is overloaded or cut off, "
                    f"so nothing is changed for {self._limits.mass_silence_s:g} s"
                )
        elif self._doubt_since is not None:
            self._doubt_since = None
            self._seen.update(dict.fromkeys(silent, now))
            return Verdict()
        changes = []
        for who in silent:
            age = now - self._seen[who]
            words = f"no sign of life for {age:.1f} s"
            if age >= self._limits.dead_s:
                self.forget(who)
                changes.append(
                    Change(who, "dead", f"{words}, the limit is {self._limits.dead_s:g} s")
                )
            elif who not in self._suspects:
                self._suspects.add(who)
                changes.append(Change(who, "suspect", words))
        return Verdict(tuple(changes))
