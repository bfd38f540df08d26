"""A shard's inlet, slowly: frames from a byte string, the past in a set, one record after another.

The twin of the core's fused inlet and dedupe windows. It shows what they do in plain Python, and it
can be told to break one rule, so that the simulator can show that the rule matters.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections import deque
from typing import Any, TypeAlias

import numpy as np

from pydownpour import _core, errors
from tests.reference import codecs, frames, numbers, windows

ELEMENT_SIZES = {1: 4, 2: 8, 3: 2, 4: 2}
FOR_SHARD = {1, 2, 5, 8, 9, 10, 11}
FLAGS_KNOWN = {1: 1, 2: 1}
Taken: TypeAlias = dict[str, Any]
"""How a push is taken: what ``accept`` was given."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What the contract demands; False breaks it."""

    dedupe: bool = True
    """A record that was applied is not applied again."""
    fence: bool = True
    """Nothing of an incarnation is taken after a newer one was heard."""
    bound_floor: bool = True
    """A replica's word moves the floor no further than it has announced."""
    norm: bool = True
    """A gradient that is larger than the job allows is refused."""
    once_again: bool = True
    """One that stands for the last is applied once, too."""
    keep_last: bool = True
    """What it stands for is the last that was taken."""
    same_life: bool = True
    """And of the same life of the replica."""
    apply_first: bool = True
    """A record is reported as settled only when it is applied."""


@dataclasses.dataclass(frozen=True)
class Settled:
    """As the core's."""

    push: int
    fragment: int
    count: int = 0
    applied: int = 0
    staleness: int = 0
    lsn: int = 0
    last: bool = False


@dataclasses.dataclass(frozen=True)
class Refusal:
    """As the core's."""

    push: int
    fragment: int
    code: int
    count: int = 0
    first_index: int = -1
    norm: float = 0.0


class Shard:
    """The core's shard with the twin's memory in place of its windows, and its codec."""

    def __init__(
        self,
        real: _core.Shard,
        rules: Rules,
        codec: codecs.Codec | None = None,
        max_norm: float | None = None,
    ) -> None:
        self.real, self.rules, self.codec, self.max_norm = real, rules, codec, max_norm
        self._pasts: dict[int, windows.Shard] = {}
        self._last_lsn: dict[int, int] = {}
        self._kept: dict[tuple[int, int], frames.Frame] | None = None
        """By (replica, fragment); None: nothing is kept."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _past(self, incarnation: int) -> windows.Shard:
        """One memory for all incarnations; without fences each has its own."""
        key = 0 if self.rules.fence else incarnation
        if key not in self._pasts:
            bounded = self.rules.bound_floor
            self._pasts[key] = windows.Shard(own_fragments(self.real), bounded=bounded)
        return self._pasts[key]

    def keep_gradients(self, size_max: int) -> None:
        """Keep the last record of each fragment and replica, or none."""
        self._kept = {} if size_max else None

    def admit(
        self,
        replica: int,
        incarnation: int,
        push: int,
        fragment: int,
        count: int,
        first_open: int,
    ) -> str:
        """The verdict about a run."""
        if self.real.is_retired(replica):
            return "fenced"
        past = self._past(incarnation)
        return past.admit(replica, incarnation, push, fragment, count, first_open)

    def fence(self, replica: int, incarnation: int) -> None:
        """Refuse older incarnations."""
        self._past(incarnation).fence(replica, incarnation)

    def applied(self, replica: int) -> tuple[int, int, int] | None:
        """(incarnation, floor, records applied in all)."""
        known = [found for past in self._pasts.values() if (found := past.applied(replica))]
        return (*max(known)[:2], sum(found[2] for found in known)) if known else None

    def settle(self, header: frames.Frame, taken: Taken) -> tuple[bool, int, int] | Refusal:
        """Judge and apply a record: (applied now, LSN, staleness), or why not."""
        if self.real.is_retired(header.replica):
            return Refusal(header.seq, header.fragment, _core.CODE_FENCED)
        past = self._past(header.incarnation)
        verdict = past.settle(header.replica, header.incarnation, header.seq, header.fragment)
        is_again = bool(header.flags & 1)
        dedupes = self.rules.dedupe and (self.rules.once_again or not is_again)
        if verdict == "duplicate" and not dedupes:
            verdict = "applied"
        if verdict == "duplicate":
            return False, self._last_lsn.get(header.replica, 0), 0
        if verdict != "applied":
            codes = {"elsewhere": 4, "fenced": 6, "unknown": 7, "window": 8}
            return Refusal(header.seq, header.fragment, codes[verdict])
        before = self.real.version(header.fragment)
        kept = self._kept if self._kept is not None else {}
        key = (header.replica, header.fragment)
        refusal: Refusal | None
        last = kept.get(key)
        is_ours = last is not None and last.incarnation == header.incarnation
        if is_again and (last is None or (self.rules.same_life and not is_ours)):
            refusal = Refusal(header.seq, header.fragment, _core.CODE_NOTHING_KEPT)
        else:
            record = header if last is None or not is_again else last
            refusal = self._apply(record, taken)
            header = dataclasses.replace(header, version=record.version)
            is_kept = not is_again and (self.rules.keep_last or last is None)
            if refusal is None and self._kept is not None and is_kept:
                self._kept[key] = record
        if refusal is not None:
            # Nothing happened: the record may come again.
            identity = (header.incarnation, header.seq, header.fragment)
            past.replicas[header.replica].applied.discard(identity)
            return refusal
        self._last_lsn[header.replica] = self.real.lsn
        return True, self.real.lsn, max(0, before - header.version)

    def _too_large(self, header: frames.Frame, payload: Any) -> Refusal | None:
        norm = math.sqrt(numbers.check(payload, header.dtype)[1])
        if not self.rules.norm or self.max_norm is None or norm <= self.max_norm:
            return None
        return Refusal(header.seq, header.fragment, _core.CODE_NORM, norm=norm)

    def _apply(self, header: frames.Frame, taken: Taken) -> Refusal | None:
        push, fragment, real = header.seq, header.fragment, self.real
        payload: Any = header.payload
        if header.dtype not in ELEMENT_SIZES:
            return Refusal(push, fragment, _core.CODE_UNSUPPORTED)
        if header.codec == 0 and len(payload) % ELEMENT_SIZES[header.dtype]:
            return Refusal(push, fragment, _core.CODE_LENGTH)
        known = 0 if self.codec is None else self.codec.number
        if header.codec and (header.codec != known or header.dtype != _core.DTYPE_F32):
            return Refusal(push, fragment, _core.CODE_UNSUPPORTED)
        if header.codec == 0 and (refusal := self._too_large(header, payload)) is not None:
            return refusal
        if header.codec and self.codec is not None:
            try:
                payload = self.codec.decode(payload, elements_of(real, fragment))
            except ValueError:
                return Refusal(push, fragment, _core.CODE_LENGTH)
            if (refusal := self._too_large(header, payload)) is not None:
                return refusal
        try:
            real.apply(fragment, payload, header.dtype, base_version=header.version, **taken)
        except errors.NonFiniteGradient as error:
            theirs = numbers.check(payload, header.dtype)[0] > 0
            code = _core.CODE_NON_FINITE if theirs else _core.CODE_RESULT_NON_FINITE
            details = error.details
            return Refusal(push, fragment, code, details["count"], details["first_index"])
        except errors.LimitExceeded:
            return Refusal(push, fragment, _core.CODE_STORE_FULL)
        except errors.LocalProtocolError:
            return Refusal(push, fragment, _core.CODE_ROUND)
        return None


def own_fragments(real: _core.Shard) -> range:
    """The fragments of the layout that are a shard's."""
    return range(real.first_fragment, real.first_fragment + real.fragments)


def elements_of(real: _core.Shard, fragment: int) -> int:
    """Elements of one of them."""
    before = (fragment - real.first_fragment) * real.fragment_len
    return min(real.fragment_len, real.len - before)


class Inlet(bytearray):
    """The receiving end of one stream; the object is its own scratch."""

    def __init__(
        self, shard: Shard, *, payload_size_max: int, control_size_max: int, ack_every: int
    ) -> None:
        super().__init__(64 + max(payload_size_max, control_size_max) + 64)
        self.store, self.ack_every = shard, ack_every
        self.limits = (payload_size_max, control_size_max)
        self.data = b""
        self.events: deque[Any] = deque()
        self.failure: errors.RemoteProtocolError | None = None
        self.push: frames.Frame | None = None
        self.decided = False
        self.taken: Taken | None = None
        self.next_fragment = self.remaining = 0
        self.pending = Settled(0, 0)
        self.later: list[tuple[frames.Frame, Taken]] = []

    def window(self) -> tuple[int, int]:
        """Where the next bytes go: anywhere."""
        return 0, len(self)

    def advance(self, n: int) -> Any:
        """Take n bytes; the next event, or None."""
        for late, taken in self.later if n else ():
            self.store.settle(late, taken)
        self.later = [] if n else self.later
        if self.push is not None and not self.decided and not self.events:
            raise errors.LocalProtocolError("accept or skip the push first")
        self.data += bytes(self[:n])
        while not self.events:
            if self.failure is not None:
                raise self.failure
            try:
                if not self._step():
                    return None
            except ValueError as error:
                self._flush(last=False)
                self.failure = errors.RemoteProtocolError(str(error))
        return self.events.popleft()

    def accept(self, *, scale: float = 1.0, **others: Any) -> None:
        """Apply the records of the push just announced, or add them to their round."""
        self.decided, self.taken = True, {"scale": float(np.float32(scale)), **others}
        if self.remaining == 0:
            self.pending = dataclasses.replace(self.pending, lsn=self.store.real.lsn)
            self._flush(last=True)
            self.push = None

    def is_idle(self) -> bool:
        """Nothing has begun."""
        return not (self.push or self.data or self.events or self.failure)

    def settled(self) -> Settled | None:
        """What was settled since the last report."""
        if self.push is None or not self.decided or self.taken is None or self.events:
            return None
        self._flush(last=False, even_nothing=True)
        found: Settled = self.events.popleft()
        return found

    def skip(self) -> None:
        """Throw them away."""
        self.decided, self.taken = True, None
        if self.remaining == 0:
            self.push = None

    def _step(self) -> bool:
        """Parse one frame. Raises ValueError for a bad one."""
        if (self.push is not None and not self.decided) or len(self.data) < 64:
            return False
        head = self.data[:64]
        if head[:4] != frames.MAGIC or _core.crc32c(head[:60]) != struct.unpack("<I", head[60:])[0]:
            raise ValueError("header")
        fields = frames.LAYOUT.unpack(head[:60])
        _, wire, kind, codec, dtype, flags, *rest = fields
        replica, incarnation, fragment, seq, version, length, aux, count, crc = rest
        self._check(wire, kind, codec, dtype, flags, length)
        if kind == 1:
            self._check_push(replica, incarnation, fragment, seq, count)
        if kind == 2:
            self._check_fragment(replica, incarnation, fragment, seq, codec, dtype, length, flags)
        payload = self.data[64 : 64 + length]
        if len(payload) < length:
            return False
        if _core.crc32c(payload) != crc:
            raise ValueError("payload")
        frame = frames.Frame(
            kind, flags, codec, dtype, replica, incarnation, fragment, seq, version, aux, count,
            payload,
        )  # fmt: skip
        if kind == 2:
            self._settle(frame)
        else:
            self._report(frame)
        self.data = self.data[64 + length :]
        return True

    def _check(self, wire: int, kind: int, codec: int, dtype: int, flags: int, length: int) -> None:
        if wire != frames.WIRE_VERSION or kind not in FOR_SHARD:
            raise ValueError("wire version or kind")
        if flags & ~FLAGS_KNOWN.get(kind, 0):
            raise ValueError("flags")
        if kind not in frames.ELEMENTS and (codec or dtype):
            raise ValueError("codec or dtype")
        if length > self.limits[0 if kind in frames.ELEMENTS else 1]:
            raise ValueError("length")

    def _check_push(
        self, replica: int, incarnation: int, fragment: int, push: int, count: int
    ) -> None:
        if self.push is not None or not (push and replica and incarnation):
            raise ValueError("push")
        if push + 1 >= 1 << 64 or fragment + count >= 1 << 32:
            raise ValueError("run")

    def _check_fragment(
        self, replica: int, incarnation: int, fragment: int, seq: int, codec: int, dtype: int,
        length: int, flags: int,
    ) -> None:  # fmt: skip
        push, real = self.push, self.store.real
        if push is None or (replica, incarnation) != (push.replica, push.incarnation):
            raise ValueError("fragment of no push")
        if (seq, fragment) != (push.seq, self.next_fragment):
            raise ValueError("sequence")
        if flags & 1:
            if length:
                raise ValueError("payload of a record that has none")
            return
        if fragment in own_fragments(real) and dtype in ELEMENT_SIZES and codec == 0:
            if length != elements_of(real, fragment) * ELEMENT_SIZES[dtype]:
                raise ValueError("length of a fragment")

    def _report(self, frame: frames.Frame) -> None:
        if frame.kind == 1:
            if len(frame.payload) != 24:
                raise ValueError("announcement")
            self.push, self.decided = frame, False
            self.next_fragment, self.remaining = frame.fragment, frame.count
            self.pending = Settled(frame.seq, frame.fragment)
        else:
            self._flush(last=False)
        self.events.append(_core.scan_frames(self.data[: 64 + len(frame.payload)])[0])

    def _settle(self, frame: frames.Frame) -> None:
        self.next_fragment += 1
        self.remaining -= 1
        is_last = self.remaining == 0
        if self.taken is not None:
            self._add(frame, self.taken)
            if is_last or self.pending.count >= self.ack_every:
                self._flush(last=is_last)
        if is_last:
            self.push = None

    def _add(self, frame: frames.Frame, taken: Taken) -> None:
        if not self.store.rules.apply_first:
            self.later.append((frame, taken))
            outcome: tuple[bool, int, int] | Refusal = (True, self.store.real.lsn + 1, 0)
        else:
            outcome = self.store.settle(frame, taken)
        if isinstance(outcome, Refusal):
            self._flush(last=False)
            self.events.append(outcome)
            self.pending = dataclasses.replace(self.pending, fragment=self.next_fragment)
            return
        applied, lsn, staleness = outcome
        self.pending = dataclasses.replace(
            self.pending,
            count=self.pending.count + 1,
            applied=self.pending.applied + applied,
            staleness=max(self.pending.staleness, staleness),
            lsn=max(self.pending.lsn, lsn),
        )

    def _flush(self, *, last: bool, even_nothing: bool = False) -> None:
        if self.push is None or not self.decided:
            return
        if self.pending.count == 0 and not last and not even_nothing:
            return
        self.events.append(dataclasses.replace(self.pending, last=last))
        self.pending = Settled(self.push.seq, self.next_fragment, lsn=self.pending.lsn)
