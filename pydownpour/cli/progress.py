"""From the coordinator's statuses to what a person wants to read. Pure: no terminal, no clock.

Rates come from the difference of two statuses at least ``WINDOW_S`` apart, so that they neither
jump with every heartbeat nor lag behind a minute.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

from pydownpour.wire.messages import Status

WINDOW_S: Final = 2.0
"""Rates are over the last two seconds: four heartbeats."""

_ADDRESS: Final = re.compile(r" at https?://[^\s,;]+")
"""A shard's number is enough for a person, and leaves room for the second one waited for."""

_REPLICAS: Final = re.compile(r"\breplicas? (\d+(?:, \d+)*(?: and \d+(?! more))?)")
_NUMBER: Final = re.compile(r"\d+")
"""As ``policy.base.replicas`` says who is waited for."""
WAIT_SHOWN_S: Final = 1.0
"""A shorter wait comes and goes with each heartbeat, and nobody could read it."""

OURS: Final = ("loss",)
"""What a display calls its own figures beside a job's metrics."""

_BARS: Final = "▁▂▃▄▅▆▇█"


@final
@dataclasses.dataclass(frozen=True)
class ReplicaLine:
    """One replica's row of the live table."""

    name: str
    state: str
    units: int
    samples_per_s: float
    staleness: float
    pushes: int
    waiting_for: str


@final
@dataclasses.dataclass(frozen=True)
class ShardLine:
    """All shards in one row of the live table."""

    ready: int
    shards: int
    bytes_in_per_s: float
    bytes_out_per_s: float
    lsns: tuple[int, ...]
    streams: int


@final
@dataclasses.dataclass(frozen=True)
class WaitLine:
    """How far apart replicas are, and the longest wait of an answer that a shard holds."""

    clock_least: int
    clock_most: int
    words: str
    """Who waits, how long, for whom; "" if nobody does for WAIT_SHOWN_S."""

    def line(self) -> str:
        """In one line."""
        apart = self.clock_most - self.clock_least
        clocks = (
            f"clocks {self.clock_least:,} to {self.clock_most:,}"
            if apart
            else (f"clocks {self.clock_most:,}")
        )
        return clocks + (f"   {self.words}" if self.words else "")


@final
@dataclasses.dataclass(frozen=True)
class View:
    """What a display shows at one moment."""

    status: Status
    samples_per_s: float
    eta_s: float | None
    loss: float | None
    metrics: Mapping[str, float]
    replicas: tuple[ReplicaLine, ...]
    shards: ShardLine
    waits: WaitLine | None
    """None before any replica has told a step."""

    @property
    def policy(self) -> str:
        """The name of the job's policy, and which version it is if it was changed."""
        if self.status.policy is None:
            return ""
        entry = self.status.policy.entry
        version = f" (version {entry.version})" if entry.version > 1 else ""
        return f"{entry.settings.get('name', '?')}{version}"

    @property
    def fraction(self) -> float:
        """Of the job's units that are done."""
        return self.status.units_done / self.status.units if self.status.units else 0.0

    def line(self) -> str:
        """Everything in one line, for logs and pipes."""
        status = self.status
        words = [f"{status.elapsed_s:6.1f} s", f"{status.state:<10}"]
        if status.units:
            words.append(f"pass {min(status.pass_index + 1, status.passes)}/{status.passes}")
            words.append(f"{status.units_done}/{status.units} units")
        words.append(f"{self.samples_per_s:,.0f} samples/s")
        if self.loss is not None:
            words.append(f"loss {self.loss:.4g}")
        words += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        words += [self.policy] if self.policy else []
        live = [r for r in self.replicas if r.state == "live"]
        if live:
            mean = sum(r.staleness for r in live) / len(live)
            words.append(f"{status.replicas_live:,} replicas, staleness {mean:.1f}")
        if self.waits is not None:
            words.append(self.waits.line())
        if status.reason:
            words.append(status.reason)
        return "  ".join(words)


@final
class Rates:
    """Turns statuses into views."""

    def __init__(self) -> None:
        self._recent: deque[Status] = deque()

    def view(self, status: Status) -> View:
        """What to show now; call it with each status, in order."""
        recent = self._recent
        if recent and status.elapsed_s < recent[-1].elapsed_s:
            recent.clear()
        recent.append(status)
        while len(recent) > 2 and status.elapsed_s - recent[1].elapsed_s >= WINDOW_S:
            recent.popleft()
        before = recent[0]
        span_s = status.elapsed_s - before.elapsed_s
        speed = _per_s(status.samples_done - before.samples_done, span_s)
        left = status.samples - status.samples_done
        return View(
            status=status,
            samples_per_s=speed,
            eta_s=left / speed if speed > 0 and status.samples else None,
            loss=status.losses[-1][2] if status.losses else None,
            metrics=labelled(status.evaluations[-1].metrics if status.evaluations else {}, OURS),
            replicas=_replicas(before, status, span_s),
            shards=_shards(before, status, span_s),
            waits=_waits(status),
        )


def _replicas(before: Status, now: Status, span_s: float) -> tuple[ReplicaLine, ...]:
    samples = {r.id: r.stats.samples for r in before.replicas}
    names = replica_names([(r.id, r.name) for r in now.replicas])
    return tuple(
        ReplicaLine(
            name=names[r.id],
            state=r.state,
            units=r.units,
            samples_per_s=_per_s(r.stats.samples - samples.get(r.id, 0), span_s),
            staleness=r.stats.staleness.mean,
            pushes=r.stats.pushes_acked,
            waiting_for=named(_ADDRESS.sub("", r.stats.waiting_for), names),
        )
        for r in sorted(now.replicas, key=lambda r: (len(r.name), r.name, r.id))
    )


def _shards(before: Status, now: Status, span_s: float) -> ShardLine:
    return ShardLine(
        ready=now.shards_ready,
        shards=now.shards_count,
        bytes_in_per_s=_per_s(now.bytes_to_shards - before.bytes_to_shards, span_s),
        bytes_out_per_s=_per_s(now.bytes_from_shards - before.bytes_from_shards, span_s),
        lsns=tuple(s.stats.lsn for s in now.shards),
        streams=sum(s.stats.streams for s in now.shards),
    )


def _waits(now: Status) -> WaitLine | None:
    ready = [s for s in now.shards if s.stats.clock_most]
    if not ready:
        return None
    names = replica_names([(r.id, r.name) for r in now.replicas])
    longest = max(
        ((one.seconds, s.index, one) for s in ready for one in s.stats.waits.open[:1]),
        # Of several for one round always the same, though each shard counts a little differently.
        key=lambda wait: (round(wait[0]), -wait[2].replica, -wait[1]),
        default=None,
    )
    words = ""
    if longest is not None and longest[0] >= WAIT_SHOWN_S:
        seconds, index, one = longest
        who = names.get(one.replica, f"replica {one.replica}")
        words = f"{who} waits at shard {index} for {duration(seconds)}: {named(one.words, names)}"
    return WaitLine(
        clock_least=min(s.stats.clock_least for s in ready),
        clock_most=max(s.stats.clock_most for s in ready),
        words=words,
    )


def named(words: str, names: Mapping[int, str]) -> str:
    """Words of a role about replicas, which it knows by their ids, with their names."""

    def name(ids: re.Match[str]) -> str:
        return _NUMBER.sub(lambda one: names.get(int(one[0]), f"replica {one[0]}"), ids[1])

    return _REPLICAS.sub(name, words)


def _per_s(count: float, span_s: float) -> float:
    # A restarted process counts from zero again: no negative rates.
    return max(0.0, count / span_s) if span_s > 0 else 0.0


def labelled(metrics: Mapping[str, float], taken: Collection[str]) -> dict[str, float]:
    """A job's own metrics under names that no figure of ours has: one name, one figure."""
    return {
        f"evaluated {name}" if name in taken else name: value for name, value in metrics.items()
    }


def replica_names(replicas: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Id -> what to call it; those that were given the same name are told apart by their ids."""
    count = Counter(name for _, name in replicas)
    return {
        number: name
        if name and count[name] == 1
        else f"{name} ({number})"
        if name
        else f"replica {number}"
        for number, name in replicas
    }


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a row of bars, the lowest the smallest; thinned to ``width`` by averaging."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    if not high > low:
        return _BARS[0] * len(values)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def size(count: float) -> str:
    """Bytes for people: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people: ``3.2 s``, ``4:07``, ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
