"""A peer that has the job's token and plays others: what it says must change nothing.

It joins as itself, so it has a secret of its own and knows everybody's id, and then speaks for one
replica or one shard. As itself it pushes what is too large for the job, and nothing that
it may push: whatever it moves is a fault of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import numpy as np

import pydownpour
from pydownpour import _core
from pydownpour.errors import DownpourError
from pydownpour.limits import DEFAULT, KIB, MIB
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.wire import frames, messages
from pydownpour.wire.messages import (
    Complete,
    CompleteAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    Message,
    ReplicaStatus,
    ShardEntry,
    ShardHello,
    ShardStats,
    Status,
)

NAME: Final = "hostile"
"""Its host's and its own."""
FAR: Final = 1 << 62
"""A push that nobody will ever make."""
LAST_LIFE: Final = 0xFFFF_FFFF


@final
class _Held(StreamProtocol):
    """A stream that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = bytearray(KIB)

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._scratch)

    def received(self, n: int) -> None:
        return


@final
@dataclasses.dataclass(frozen=True)
class Peer:
    """It, once it has joined, and whom it plays."""

    coordinator: Client
    access: Access
    joined: Joined
    victim: ReplicaStatus
    rng: random.Random

    @property
    def lives(self) -> tuple[int, ...]:
        """Lives of the victim that it speaks for: the one it has, the next, the last of all."""
        return self.victim.incarnation, self.victim.incarnation + 1, LAST_LIFE

    def headers(self, life: int, shard: ShardEntry) -> dict[str, str]:
        """The victim's id, with a secret that is not the victim's."""
        return {
            messages.HEADER_REPLICA: str(self.victim.id),
            messages.HEADER_INCARNATION: str(life),
            messages.HEADER_SECRET: self.joined.secret,
            messages.HEADER_EPOCH: str(shard.epoch),
        }

    async def tell(self, path: str, message: Message, answer: type[Message]) -> None:
        """Say it to the coordinator, whatever it answers."""
        with contextlib.suppress(DownpourError):
            await self.coordinator.post(path, message, answer, timeout_s=DEFAULT.dead_s)


async def settle_for_another(peer: Peer) -> None:
    """Announcements that call the victim's pushes settled, far ahead or a little."""
    for life in peer.lives[: peer.rng.randint(1, 3)]:
        for push in (600, FAR):
            notice = frames.PushNotice(first_open=push, clock=1, samples=1, norm=1.0)
            for shard in peer.joined.shard_map.entries:
                body = frames.push(
                    replica=peer.victim.id,
                    incarnation=life,
                    push=push,
                    fragment=shard.start // peer.joined.fragment_len,
                    count=1,
                    notice=notice,
                )
                async with Client(shard.url, access=peer.access) as client:
                    with contextlib.suppress(DownpourError):
                        await client.exchange(
                            "/v1/push", [body], peer.headers(life, shard), size_max=MIB
                        )


async def cut_another(peer: Peer) -> None:
    """Streams under the victim's id, so that its own are taken for old ones."""
    life = peer.rng.choice(peer.lives)
    for shard in peer.joined.shard_map.entries:
        async with Client(shard.url, access=peer.access) as client:
            stream = _Held()
            with contextlib.suppress(DownpourError):
                await client.upgrade("/v1/stream", peer.headers(life, shard), stream)
                await asyncio.sleep(0.1)
                stream.close()


async def leave_for_another(peer: Peer) -> None:
    """The victim lives, wants work, has finished it, and is gone: says somebody else."""
    life, secret = peer.victim.incarnation, peer.joined.secret
    who = peer.victim.id
    await peer.tell(
        "/v1/heartbeat",
        Heartbeat(role="replica", id=who, incarnation=life, secret=secret),
        HeartbeatAnswer,
    )
    await peer.tell(
        "/v1/lease",
        LeaseRequest(replica=who, incarnation=life, secret=secret, count=4),
        LeaseAnswer,
    )
    await peer.tell(
        "/v1/complete",
        Complete(replica=who, incarnation=life, secret=secret, units=[]),
        CompleteAnswer,
    )
    await peer.tell(
        "/v1/leave", Leave(replica=who, incarnation=life, secret=secret), HeartbeatAnswer
    )


async def beat_for_a_shard(peer: Peer) -> None:
    """A shard's heartbeats and a place that is taken."""
    for shard in peer.joined.shard_map.entries:
        for life in (0, 1, 2):
            beat = Heartbeat(
                role="shard",
                id=shard.index,
                incarnation=life,
                secret=peer.joined.secret,
                epoch=peer.joined.shard_map.epoch,
                shard=ShardStats(index=shard.index, ready=True, lsn=10**9, pushes=10**9),
            )
            await peer.tell("/v1/heartbeat", beat, HeartbeatAnswer)
        hello = ShardHello(url="http://192.0.2.1:1", index=shard.index, nonce="guessed")
        await peer.tell("/v1/shard", hello, messages.ShardAssigned)


async def come_back_as_another(peer: Peer) -> None:
    """A join under the victim's name, with an owner's key that is guessed."""
    wish = Join(fingerprint="", name=peer.victim.name, owner="guessed")
    with contextlib.suppress(DownpourError):
        joined = await peer.coordinator.post("/v1/join", wish, Joined)
        await _goodbye(peer.coordinator, joined)


async def lie(peer: Peer) -> None:
    """Gradients of its own, finite and far too large: one says so, one says it is small."""
    me, most = peer.joined, peer.joined.max_norm
    if most is None:
        return  # then it may
    for shard in me.shard_map.entries:
        headers = peer.headers(me.incarnation, shard)
        headers[messages.HEADER_REPLICA] = str(me.replica)
        values = np.full(min(me.fragment_len, shard.len), -2 * max(1.0, most), np.float32)
        body = b""
        first = shard.start // me.fragment_len
        for push, norm in ((1, most), (2, 2 * most)):
            notice = frames.PushNotice(first_open=1, clock=1, samples=1, norm=norm)
            body += frames.push(
                replica=me.replica,
                incarnation=me.incarnation,
                push=push,
                fragment=first,
                count=1,
                notice=notice,
            )
            body += _core.encode_frame(
                kind=frames.Kind.FRAGMENT, dtype=1, replica=me.replica, incarnation=me.incarnation,
                seq=push, fragment=first, payload=values,
            )  # fmt: skip
        async with Client(shard.url, access=peer.access) as client:
            with contextlib.suppress(DownpourError):
                await client.exchange("/v1/push", [body], headers, size_max=MIB)


ACTS: Final[tuple[Callable[[Peer], Awaitable[None]], ...]] = (
    settle_for_another,
    cut_another,
    leave_for_another,
    beat_for_a_shard,
    come_back_as_another,
    lie,
)


async def play(
    url: str,
    access: Access,
    rng: random.Random,
    *,
    acts: tuple[Callable[[Peer], Awaitable[None]], ...] = ACTS,
) -> None:
    """Join, play one act against one of the others, leave.

    Args:
        url: The coordinator's.
        access: A peer's.
        rng: Chooses act and victim.
        acts: To choose from.
    """
    with contextlib.suppress(DownpourError):
        async with Client(url, access=access) as client:
            wish = Join(
                fingerprint="",
                name=NAME,
                version=pydownpour.__version__,
                nonce=f"{rng.getrandbits(128):032x}",
                codecs=_core.codecs(),
            )
            joined = await client.post("/v1/join", wish, Joined)
            try:
                status = await client.get("/v1/status", Status)
                others = [r for r in status.replicas if r.name != NAME and r.state != "left"]
                if others:
                    peer = Peer(client, access, joined, rng.choice(others), rng)
                    await rng.choice(acts)(peer)
            finally:
                await _goodbye(client, joined)


async def _goodbye(client: Client, joined: Joined) -> None:
    leave = Leave(replica=joined.replica, incarnation=joined.incarnation, secret=joined.secret)
    with contextlib.suppress(DownpourError):
        await client.post("/v1/leave", leave, HeartbeatAnswer)
