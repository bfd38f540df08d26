"""What the coordinator asks of shards: the parameters for an evaluation, and their last counts."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence
from typing import final

from pydownpour.errors import DownpourError, NotReady
from pydownpour.layout import Flat, Layout, Partition, ShardEntry
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.reader import read_parameters, read_what_answers
from pydownpour.wire.messages import ShardStats
from pydownpour.wire.proof import READER, Keeper


class ShardReader(abc.ABC):
    """Reads from a job's shards."""

    @abc.abstractmethod
    async def parameters(
        self,
        shards: Sequence[ShardEntry],
        layout: Layout,
        partition: Partition,
        *,
        last: bool = False,
    ) -> Flat:
        """All parameters, float32; ``last``: with what is in open rounds, nothing comes after it.

        Raises:
            TransportError: a shard cannot be reached.
        """

    @abc.abstractmethod
    async def what_answers(
        self, shards: Sequence[ShardEntry], layout: Layout, partition: Partition
    ) -> tuple[Flat, dict[int, DownpourError]]:
        """The same of those shards that can be read; NaN, and why not, for the others."""

    @abc.abstractmethod
    async def check(self, url: str) -> None:
        """Ask a shard that offers itself something, where it says that others shall ask it.

        Raises:
            DownpourError: why it cannot be asked: a certificate, a token, nobody there.
        """

    @abc.abstractmethod
    async def stats(self, shard: ShardEntry) -> ShardStats:
        """One shard's counts, now.

        Raises:
            TransportError: it cannot be reached.
        """


@final
class NetShardReader(ShardReader):
    """Over the network, as any other reader would."""

    def __init__(self, access: Access, keeper: Keeper, limits: Limits = DEFAULT) -> None:
        self._access, self._limits = access, limits
        self._secret = keeper.secret("replica", READER, READER)

    async def parameters(
        self,
        shards: Sequence[ShardEntry],
        layout: Layout,
        partition: Partition,
        *,
        last: bool = False,
    ) -> Flat:
        """GET /v1/fetch from every shard."""
        return await read_parameters(
            shards,
            layout,
            access=self._access,
            fragment_len=partition.fragment_len,
            secret=self._secret,
            last=last,
            limits=self._limits,
        )

    async def what_answers(
        self, shards: Sequence[ShardEntry], layout: Layout, partition: Partition
    ) -> tuple[Flat, dict[int, DownpourError]]:
        """GET /v1/fetch from every shard, whatever becomes of the others."""
        return await read_what_answers(
            shards,
            layout,
            access=self._access,
            fragment_len=partition.fragment_len,
            secret=self._secret,
            limits=self._limits,
        )

    async def check(self, url: str) -> None:
        """GET /v1/stats: a shard without a place answers that it has nothing to count yet."""
        with contextlib.suppress(NotReady):
            async with Client(url, access=self._access, limits=self._limits) as client:
                await client.get("/v1/stats", ShardStats, timeout_s=self._limits.stats_timeout_s)

    async def stats(self, shard: ShardEntry) -> ShardStats:
        async with Client(shard.url, access=self._access, limits=self._limits) as client:
            return await client.get("/v1/stats", ShardStats, timeout_s=self._limits.stats_timeout_s)
