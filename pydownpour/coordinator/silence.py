"""Shards that are silent: whether to wait for one, and for whom or what that wait is.

A shard holds updates that nobody else has, so calling it dead loses them and gains nothing. One
that is silent may stand still, or only its way to the coordinator may be cut. It is waited for:

    a sign of life                    ends after
    its own heartbeat                 it is no longer silent
    it answers the coordinator        shard_patience_s without another one
    a replica says that it answers    the same, and hearsay_s in all: words are no proof
    none                              shard_patience_s of silence
    its host refuses connections      shard_refused_s: no process listens there any more
"""

from __future__ import annotations

import dataclasses
from typing import final

from pydownpour.limits import DEFAULT, Limits


@final
@dataclasses.dataclass(slots=True)
class Silence:
    """One shard's, since when and what was heard of it meanwhile.

    Attributes:
        since: When its heartbeats were missed.
        sign_at: The last sign of life, its own last heartbeat or what others saw or said.
        sign: What that was, in words.
        refused_since: Its host says that nobody listens, and nothing else was seen since.
        limits: ``shard_patience_s``, ``shard_refused_s``, ``hearsay_s``.
    """

    since: float
    sign_at: float
    sign: str = ""
    refused_since: float | None = None
    limits: Limits = DEFAULT

    def answered(self, now: float) -> None:
        """It answered a question of the coordinator's."""
        self.sign_at, self.sign = now, "it answers when asked"
        self.refused_since = None

    def heard_of(self, who: str, now: float) -> None:
        """Somebody says that it answers them; believed for a while, and not against its host."""
        if now - self.since <= self.limits.hearsay_s and self.refused_since is None:
            self.sign_at, self.sign = now, f"{who} reaches it"

    def refused(self, now: float) -> None:
        """Its host answered that nobody listens."""
        if self.refused_since is None:
            self.refused_since = now

    def unreachable(self) -> None:
        """The coordinator's question was not answered at all: that says nothing."""
        self.refused_since = None

    def forgive(self, gap: float) -> None:
        """The coordinator stood still for so long: nobody could be heard."""
        self.sign_at += gap
        if self.refused_since is not None:
            self.refused_since += gap

    def spent(self, now: float) -> str:
        """Why not to wait any longer; "" to go on."""
        if (
            self.refused_since is not None
            and now - self.refused_since >= self.limits.shard_refused_s
        ):
            return (
                f"no sign of life for {now - self.since:.1f} s, and for "
                f"{now - self.refused_since:.0f} s its host has refused connections "
                "(shard_refused_s): its process is gone"
            )
        if now - self.sign_at >= self.limits.shard_patience_s:
            return (
                f"no sign of life for {now - self.sign_at:.1f} s, the limit is "
                f"{self.limits.shard_patience_s:g} s (shard_patience_s)"
            )
        return ""

    def describe(self, now: float) -> str:
        """For a progress display: for how long, and how much longer."""
        left_s = self.limits.shard_patience_s - (now - self.sign_at)
        if self.refused_since is not None:
            left_s = self.limits.shard_refused_s - (now - self.refused_since)
            sign = ", its host refuses connections"
        else:
            sign = f", but {self.sign}" if self.sign else ""
        return (
            f"silent for {now - self.since:.0f} s{sign}; it holds updates nobody else has and is "
            f"waited for, {max(left_s, 0):.0f} s more"
        )
