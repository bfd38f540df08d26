"""Checks of shards and replicas: nothing goes back, nothing grows beyond its bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from pydownpour import _core
from pydownpour.limits import MIB, SNAPSHOT_COPIES_MAX
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.shard.state import Shard
from pydownpour.sim.checks.base import Check, Watched
from pydownpour.sim.checks.oracle import Life


@final
class ShardsNeverGoBack(Check):
    """LSN, fragment versions, incarnations, floors and counts only grow, and they agree."""

    name = "a shard never goes back"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lsn: dict[int, int] = {}
        self._versions: dict[int, NDArray[np.uint64]] = {}
        self._replicas: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._ids: dict[int, None] = {}

    def joined(self, life: Life) -> None:
        """Its identity is followed from now on."""
        self._ids[life.replica] = None

    def look(self) -> Iterator[str]:
        """Compare with the last look."""
        for shard in self.shards():
            yield from self._look(shard)

    def _look(self, shard: Shard) -> Iterator[str]:
        index, lsn = shard.assigned.index, shard.store.lsn
        versions = np.frombuffer(shard.store.versions(), np.uint64)
        before = self._lsn.get(index, 0)
        if lsn < before:
            yield f"shard {index}: LSN {lsn} after {before}"
        if index in self._versions and (versions < self._versions[index]).any():
            yield f"shard {index}: fragment versions {versions} after {self._versions[index]}"
        self._lsn[index], self._versions[index] = lsn, versions
        applied = shard.store.applied_of_nobody
        for replica in self._ids:
            known = shard.store.applied(replica)
            if known is None:
                continue
            applied += known[2]
            was = self._replicas.get((index, replica), (0, 0, 0))
            self._replicas[index, replica] = known
            if known[0] < was[0] or known[2] < was[2] or known[:2] < was[:2]:
                yield (
                    f"shard {index}, replica {replica}: incarnation, floor and records {known} "
                    f"after {was}"
                )
            oracle = self.watched.oracle
            if known[0] > was[0] and oracle is not None:
                oracle.fenced(shard, replica, known[0])
        updates = int(versions.sum())
        # A round that is closed has an LSN at each fragment, be it without a record.
        closings = shard.rounds.closings if shard.store.accumulates else 0
        is_mixed = shard.store.accumulates and shard.rounds.policy.version > 1
        expected = applied + closings
        is_right = max(applied, updates) <= lsn <= expected if is_mixed else lsn == expected
        if not is_right or not (shard.store.accumulates or applied == updates):
            yield (
                f"shard {index}: LSN {lsn}, {applied} records of its replicas, versions sum up to "
                f"{updates}"
            )


@final
class OneServes(Check):
    """No two processes serve the same shard, whatever becomes of a hand-over."""

    name = "one process serves a shard"

    def look(self) -> Iterator[str]:
        for index, services in self.world.shard_services.items():
            shards = [service.shard for service in services if service.shard is not None]
            epochs = [shard.epoch for shard in shards if shard.state == "serving"]
            if len(epochs) > 1:
                yield f"shard {index} is served by {len(epochs)} processes, under epochs {epochs}"


@final
class FetchesNeverGoBack(Check):
    """What a replica has fetched only gets newer, also over its restarts."""

    name = "a fetch never goes back"

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lsn: dict[tuple[Life, int], int] = {}
        self._versions: dict[tuple[Life, int], NDArray[np.uint64]] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        """What the last of a replica's processes to end had, and how many had started by then."""

    def joined(self, life: Life) -> None:
        """One that started when the one before it had ended fetches at least what that had."""
        for link in life.trainer.session.links:
            lsn, started = self._last.get((life.replica, link.entry.index), (0, 0))
            self._lsn[life, link.entry.index] = lsn if life.process.number > started else 0
            self._versions[life, link.entry.index] = link.versions.copy()

    def gone(self, life: Life) -> None:
        """Forget it, but for what its successor must have."""
        for link in life.trainer.session.links:
            key = (life.replica, link.entry.index)
            lsn = max(self._last.get(key, (0, 0))[0], self._lsn.pop((life, link.entry.index)))
            self._last[key] = (lsn, self.world.processes.started)
            del self._versions[life, link.entry.index]

    def look(self) -> Iterator[str]:
        """Compare with the last look."""
        for life in self.watched.lives.values():
            for link in life.trainer.session.links:
                key = (life, link.entry.index)
                where = f"{life} at shard {link.entry.index}"
                if link.known.lsn < self._lsn[key]:
                    yield f"{where}: fetched LSN {link.known.lsn} after {self._lsn[key]}"
                self._lsn[key] = link.known.lsn
                if (link.versions < self._versions[key]).any():
                    yield f"{where}: versions {link.versions} after {self._versions[key]}"
                np.copyto(self._versions[key], link.versions)


@final
class FetchesAreAsNewAsTheySay(Check):
    """Whatever a replica has not, its shard would send it: it asks for what is newer than it knows.

    A replica that calls itself newer than it is never gets what it lacks, until that changes again.
    """

    name = "a fetch is as new as it says"
    is_cheap = False

    def look(self) -> Iterator[str]:
        """Compare the versions of each side, where no fetch is on its way."""
        stores = {shard.assigned.index: shard.store for shard in self.shards()}
        for life in self.watched.lives.values():
            for link in life.trainer.session.links:
                store = stores.get(link.entry.index)
                if store is None or link.fetch_wanted is not None:
                    continue
                theirs = np.frombuffer(store.versions(), np.uint64)
                behind = {
                    store.first_fragment + int(i) for i in np.flatnonzero(link.versions < theirs)
                }
                if behind:
                    lacking = sorted(behind - _newer(store, link.known.lsn))
                    if lacking:
                        yield (
                            f"{life} at shard {link.entry.index}: says it has all up to LSN "
                            f"{link.known.lsn}, and lacks what fragments {lacking} got before"
                        )


def _newer(store: _core.Shard, lsn: int) -> set[int]:
    """The fragments that a shard would send to who has all up to an LSN."""
    cursor, end = store.first_fragment, store.first_fragment + store.fragments
    found: set[int] = set()
    while cursor < end:
        buffers, cursor, _ = store.parameter_frames(lsn, cursor, MIB)
        data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
        found.update(frame.fragment for frame in _core.scan_frames(data))
    return found


@final
class ReplicasWithinWindows(Check):
    """Pushes without an answer are bounded."""

    name = "a replica keeps its window"

    def look(self) -> Iterator[str]:
        for life in self.watched.lives.values():
            trainer, most = life.trainer, life.trainer.ruling.in_flight_max
            if len(trainer.outbox.open) > most + 1:
                count = len(trainer.outbox.open)
                yield f"{life}: {count} pushes open, at most {most} and one waiting"


@final
class BuffersWithinBounds(Check):
    """A stream whose peer does not read stops producing."""

    name = "a stream stops when its peer does"

    def look(self) -> Iterator[str]:
        """Look at each stream's write buffer."""
        fragment = max((s.assigned.fragment_len * 4 + 64 for s in self.shards()), default=0)
        limits = self.world.settings.limits
        # An answer to a fetch begins with a full-size fragment's bytes, of small ones several.
        whole = max((s.payload_size_max // 2 * s.store.fragments for s in self.shards()), default=0)
        batch = max(limits.write_batch_size, min(limits.fragment_size, whole)) + fragment
        most = limits.write_high_water + batch + limits.answers_size_max
        for process in self.world.processes.alive:
            for transport in self.world.network.ends_of(process):
                size = transport.get_write_buffer_size()
                if size > most and isinstance(transport.get_protocol(), StreamProtocol):
                    yield f"{transport.path} holds {size} bytes unsent, at most {most}"


@final
class MemoryWithinBounds(Check):
    """What a shard reserves and what its readers pin stays within the limits."""

    name = "a shard keeps its budget"

    def look(self) -> Iterator[str]:
        """Compare with the limits."""
        for shard in self.shards():
            index, reserved = shard.assigned.index, shard.reserved_bytes
            busy = [stream for stream in shard.streams.values() if not stream.is_resting]
            needed = len(busy) * shard.payload_size_max
            if not needed <= reserved <= self.world.settings.limits.in_flight_size_max:
                yield (
                    f"shard {index}: {reserved} bytes reserved, {needed} needed for its streams, "
                    f"the limit is {self.world.settings.limits.in_flight_size_max}"
                )
            memory = shard.store.memory()
            most = SNAPSHOT_COPIES_MAX * memory["parameters"]
            if memory["pinned"] > most:
                yield f"shard {index}: readers pin {memory['pinned']} bytes, at most {most}"
