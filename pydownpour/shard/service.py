"""The life of a shard process: listen, offer itself, load, serve, end with the job.

While the coordinator cannot be reached the shard goes on serving: pushes and fetches need no
coordinator. It gives up only when nobody has answered for ``limits.JOIN_PATIENCE_S``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import TypeVar, final

import numpy as np

import pydownpour
from pydownpour import _core, limits
from pydownpour.errors import (
    ConfigError,
    Fenced,
    JobFailed,
    NotReady,
    PeerLost,
    RemoteProtocolError,
)
from pydownpour.fields import number
from pydownpour.layout import raw
from pydownpour.net import process
from pydownpour.net.access import Access, Bind, check_not_plain
from pydownpour.net.client import Client
from pydownpour.net.heartbeat import Heartbeats
from pydownpour.net.retry import patiently
from pydownpour.net.server import Call, FrameBody, Route, Server, UpgradeRoute
from pydownpour.policy import UsersPolicy
from pydownpour.shard.state import Shard
from pydownpour.shard.stream import Conversation, ShardStream, fetch_batches
from pydownpour.wire import frames, messages
from pydownpour.wire.messages import (
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    ShardAssigned,
    ShardHello,
    ShardStats,
)
from pydownpour.wire.proof import READER

log = logging.getLogger(__name__)

T = TypeVar("T")

LSN_MAX = 2**64 - 1
"""The core's own."""
LOAD_LEN = 4 * limits.STRIPE_LEN_MAX
"""Initial parameters are loaded so many elements at a time: 256 KiB. A connection
that breaks costs at most so much."""


async def serve_shard(
    *,
    coordinator: str,
    bind: Bind,
    access: Access,
    announce: Callable[[str], None],
    index: int | None = None,
    advertise: str | None = None,
    policy: UsersPolicy | None = None,
    rng: random.Random | None = None,
) -> None:
    """Serve one shard until the job ends.

    Args:
        coordinator: Its URL.
        bind: Where to listen; port 0 lets the system choose.
        access: Token and TLS, for both directions.
        announce: Called with our URL once we listen.
        index: The place we want in the shard map; None takes any.
        advertise: The URL replicas shall use, if it is not the one we listen on (behind a proxy,
            or bound to all addresses).
        policy: Gives the class of the job file's own policy; asked if the job has one. None: it is
            not known here.
        rng: Randomness for the registration's nonce, which nobody else may guess.

    Raises:
        ConfigError: the address, or a coordinator that refuses us.
        JobFailed: the job failed, or the coordinator was gone for too long.
    """
    await run_shard(
        ShardService(access, policy),
        coordinator=coordinator,
        bind=bind,
        access=access,
        announce=announce,
        index=index,
        advertise=advertise,
        rng=rng,
    )


async def run_shard(
    service: ShardService,
    *,
    coordinator: str,
    bind: Bind,
    access: Access,
    announce: Callable[[str], None],
    index: int | None = None,
    advertise: str | None = None,
    rng: random.Random | None = None,
) -> None:
    """As :func:`serve_shard`, of a service whose state the caller wants to look into."""
    if bind.host in ("0.0.0.0", "::") and not advertise:
        raise ConfigError(
            f"bound to all addresses ({bind}): say which URL replicas shall use with --advertise"
        )
    async with (
        Server(
            service.routes(), bind=bind, access=access, name="shard", advertise=advertise or ""
        ) as server,
        Client(coordinator, access=access) as client,
    ):
        announce(server.url)
        rng = rng or random.SystemRandom()
        over = False
        while not over:
            check_not_plain(coordinator, advertise or server.url, "this shard")
            hello = service.hello(advertise or server.url, index, rng)
            assigned = await _register(client, hello)
            try:
                await service.load(client, assigned)
            except Fenced as error:
                log.warning("%s", error)  # called dead meanwhile: there is nothing to lose yet
                continue
            over = await service.heartbeats(client)


@final
class ShardService:
    """Routes of one shard, and its heartbeats."""

    def __init__(self, access: Access, policy: UsersPolicy | None = None) -> None:
        self._access, self._policy = access, policy
        self._shard: Shard | None = None
        self.on_load: Callable[[Shard], object] = lambda shard: None
        """An observer: called with the state of a shard that is about to load. Checks count on
        it."""

    @property
    def shard(self) -> Shard | None:
        """The shard's state, once it is loaded."""
        return self._shard

    def routes(self) -> list[Route | UpgradeRoute]:
        """Everything a shard answers."""
        return [
            Route("GET", "/healthz", self._healthz, public=True),
            Route("GET", "/v1/hello", self._hello),
            Route("GET", "/v1/stats", self._stats),
            Route("GET", "/v1/fetch", self._fetch),
            Route("POST", "/v1/push", self._push, streamed=True),
            UpgradeRoute("/v1/stream", self._stream),
        ]

    def hello(self, url: str, index: int | None, rng: random.Random) -> ShardHello:
        """What this process says of itself when it asks for a place."""
        return ShardHello(
            url=url,
            host=process.host_name(),
            pid=process.pid(),
            index=index,
            version=pydownpour.__version__,
            nonce=f"{rng.getrandbits(128):032x}",
            codecs=_core.codecs(),
            has_job=self._policy is not None,
        )

    async def load(self, client: Client, assigned: ShardAssigned) -> None:
        """Build the store and fill it with the job's initial parameters.

        A coordinator that is away, or a connection that breaks on the way, is tried again, and what
        has come is kept.
        """
        loading = _Loading(Shard(assigned, self._policy))
        self.on_load(loading.shard)
        shard = self._shard = await patiently(
            lambda: loading.go_on(client),
            whom=f"the parameters from {client.url}",
            progress=lambda: loading.loaded,
        )
        log.info(
            "shard %d of %d: elements %d..%d, %d fragments",
            assigned.index,
            assigned.shards,
            assigned.start,
            assigned.start + assigned.len,
            shard.store.fragments,
        )

    async def heartbeats(self, client: Client) -> bool:
        """Report until the coordinator says that the job has ended.

        Returns:
            False if it called us dead before the job ran: nobody can have pushed, so nothing is
            lost with our place and we may offer ourselves anew.
        """
        assigned = self._serving().assigned
        verdict = await Heartbeats(
            client, every_s=assigned.heartbeat_s, make=self._heartbeat, heard=self._heard
        ).run()
        if verdict.fenced and verdict.state == "waiting":
            log.warning("%s", verdict.reason)
            return False
        if verdict.fenced:
            raise Fenced(verdict.reason or "another process took this shard's place")
        if verdict.state == "failed":
            raise JobFailed(verdict.reason)
        return True

    def _heartbeat(self, with_counts: bool) -> Heartbeat:
        shard = self._serving()
        return Heartbeat(
            role="shard",
            id=shard.assigned.index,
            incarnation=shard.assigned.incarnation,
            secret=shard.assigned.secret,
            epoch=shard.shard_map.epoch if shard.shard_map is not None else 0,
            ids_version=shard.ids_version,
            live_version=shard.rounds.live_version,
            shard=self._statistics(shard) if with_counts else None,
        )

    def _heard(self, answer: HeartbeatAnswer) -> None:
        shard = self._serving()
        if answer.ids is not None:
            shard.retire(answer.ids)
        if answer.live is not None:
            shard.rounds.heard(answer.live)
        if answer.shard_map is not None:
            shard.shard_map = answer.shard_map
            shard.rounds.epoch = answer.shard_map.epoch

    # -- handlers --------------------------------------------------------------------------------

    def _serving(self) -> Shard:
        if self._shard is None:
            raise NotReady("this shard is still loading its parameters")
        return self._shard

    async def _healthz(self, call: Call) -> str:
        return "ok"

    async def _hello(self, call: Call) -> Hello:
        assigned = self._serving().assigned
        return Hello(
            job=assigned.job,
            index=assigned.index,
            epoch=assigned.epoch,
            protocol_min=messages.PROTOCOL_MIN,
            protocol_max=messages.PROTOCOL,
            fingerprint=assigned.fingerprint,
            version=pydownpour.__version__,
        )

    async def _stats(self, call: Call) -> ShardStats:
        return self._statistics(self._serving())

    def _statistics(self, shard: Shard) -> ShardStats:
        return shard.statistics(
            rss_bytes=process.rss_bytes(), rss_peak_bytes=process.rss_peak_bytes()
        )

    def _stream(self, call: Call) -> ShardStream:
        shard = self._serving()
        replica, incarnation = self._identity(shard, call)
        return ShardStream(shard, replica, incarnation)

    async def _push(self, call: Call) -> bytes:
        shard = self._serving()
        talk = Conversation(shard, *self._identity(shard, call))
        try:
            body = bytes(await self._converse(talk, call))
        finally:
            talk.close()
        shard.bytes_sent += len(body)
        return body

    async def _converse(self, talk: Conversation, call: Call) -> bytearray:
        inlet, scratch = talk.inlet, memoryview(talk.inlet)
        answers = bytearray()
        assert call.chunks is not None
        async for chunk in call.chunks:
            talk.shard.bytes_received += len(chunk)
            rest = memoryview(chunk)
            while rest:
                start, stop = inlet.window()
                n = min(stop - start, len(rest))
                scratch[start : start + n] = rest[:n]
                rest = rest[n:]
                await self._settle(talk, n, answers)
        return answers

    async def _settle(self, talk: Conversation, n: int, answers: bytearray) -> None:
        """Answer what n bytes in the inlet's window complete, in as many turns as it takes."""
        while True:
            while not talk.share.take(n):
                await talk.share.turns.another()
            event = talk.inlet.advance(n)
            if event is None:
                return
            n = 0
            answers += talk.answer(event) or b""
            if len(answers) > limits.POST_ANSWERS_SIZE_MAX:
                raise RemoteProtocolError(
                    f"the answers to this request take more than {limits.POST_ANSWERS_SIZE_MAX} "
                    "bytes (POST_ANSWERS_SIZE_MAX); send fewer pushes in one"
                )

    async def _fetch(self, call: Call) -> FrameBody:
        shard = self._serving()
        replica, _ = self._identity(shard, call, reads=True)
        since = number(call.query.get("since", "0"), "since", LSN_MAX)
        first = number(call.query.get("first", "0"), "first", limits.LAYOUT_LEN_MAX)
        rounds = number(call.query.get("rounds", "0"), "rounds", LSN_MAX)
        clock = number(call.query.get("clock", "0"), "clock", LSN_MAX)
        if call.query.get("last") and replica == READER:
            shard.rounds.finish()
        if words := await shard.rounds.reached(rounds, clock, limits.ACK_EVERY_S):
            return FrameBody(iter([[frames.view(shard.rounds.shown, words=words)], None]).__next__)
        batches = fetch_batches(shard, 0, since, first)

        def produce() -> list[object] | None:
            buffers = batches.next_buffers()
            if buffers is not None:
                shard.bytes_sent += sum(memoryview(b).nbytes for b in buffers)
            return buffers

        shard.fetches += 1
        if replica == READER:
            return FrameBody(produce)
        return FrameBody(produce, begins=lambda drop: shard.read_begins(replica, drop))

    def _identity(self, shard: Shard, call: Call, *, reads: bool = False) -> tuple[int, int]:
        """Who asks, proven: (replica, incarnation). The coordinator may only read."""
        replica, incarnation = (
            number(call.headers.get(header, ""), header, 0xFFFF_FFFF)
            for header in (messages.HEADER_REPLICA, messages.HEADER_INCARNATION)
        )
        secret = call.headers.get(messages.HEADER_SECRET, "")
        shard.keeper.check("replica", replica, incarnation, secret)
        self._check_map(shard, call.headers)
        if READER not in (replica, incarnation):
            shard.welcome(replica, incarnation)
        elif not reads:
            raise RemoteProtocolError(f"replica {replica} incarnation {incarnation} can only read")
        return replica, incarnation

    def _check_map(self, shard: Shard, headers: Mapping[str, str]) -> None:
        epoch = number(headers.get(messages.HEADER_EPOCH, ""), messages.HEADER_EPOCH, 0xFFFF_FFFF)
        shard.check_epoch(epoch)
        theirs = headers.get(messages.HEADER_FINGERPRINT, shard.assigned.fingerprint)
        if theirs != shard.assigned.fingerprint:
            raise Fenced("the request is of a job with other parameters; join again")


async def _register(client: Client, hello: ShardHello) -> ShardAssigned:
    """Offer this process until a coordinator takes it."""
    return await patiently(
        lambda: client.post("/v1/shard", hello, ShardAssigned),
        whom=f"the coordinator at {client.url} to take this shard",
    )


@final
class _Loading:
    """A shard that is filled with its initial parameters, over as many connections as it takes.

    Piece by piece: a shard may be most of what its machine has memory for.

    Attributes:
        shard: What is filled.
        loaded: Elements in its store.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard, self._assigned = shard, shard.assigned
        self.loaded = 0

    async def go_on(self, client: Client) -> Shard:
        """Load what is missing. What a broken connection began of a piece comes again."""
        assigned, store = self._assigned, self.shard.store
        piece = np.empty(min(assigned.len - self.loaded, LOAD_LEN), "<f4")
        target, filled = raw(piece), 0
        path = f"/v1/initial?shard={assigned.index}&start={self.loaded}"
        headers = {messages.HEADER_SECRET: assigned.secret}
        async for chunk in client.chunks(path, headers):
            rest = memoryview(chunk)
            while rest and self.loaded < assigned.len:
                count = min(len(rest), len(target) - filled)
                target[filled : filled + count] = rest[:count]
                rest, filled = rest[count:], filled + count
                if filled == len(target):
                    store.load(self.loaded, piece.astype(np.float32, copy=False))
                    self.loaded, filled = self.loaded + len(piece), 0
                    piece = piece[: assigned.len - self.loaded]
                    target = raw(piece)
            if rest:
                raise RemoteProtocolError(
                    f"more initial parameters than {assigned.len} float32 elements"
                )
        if self.loaded < assigned.len:
            raise PeerLost(
                f"initial parameters ended within element {self.loaded + filled // 4} of "
                f"{assigned.len}",
                peer=client.url,
            )
        self.shard.ready = True
        return self.shard
