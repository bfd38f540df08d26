"""The life of a shard process: listen, offer itself, load, serve, end with the job.

While the coordinator cannot be reached the shard goes on serving: pushes and fetches need no
coordinator. It gives up only when nobody has answered for ``join_patience_s``.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import Callable, Mapping
from typing import TypeVar, final

import pydownpour
from pydownpour import _core, limits
from pydownpour.errors import (
    AuthError,
    ConfigError,
    Fenced,
    JobFailed,
    NotReady,
    RemoteProtocolError,
)
from pydownpour.fields import number
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import process
from pydownpour.net.access import Access, Bind, check_not_plain
from pydownpour.net.client import Client
from pydownpour.net.heartbeat import Heartbeats
from pydownpour.net.retry import patiently
from pydownpour.net.server import Call, FrameBody, Route, Server, UpgradeRoute
from pydownpour.policy import UsersPolicies
from pydownpour.shard.filling import Filling
from pydownpour.shard.gate import AckGate
from pydownpour.shard.handover import Giving, TakingOver
from pydownpour.shard.state import Shard
from pydownpour.shard.stream import PushHandler, ShardStream, fetch_batches
from pydownpour.wire import frames, messages
from pydownpour.wire.frames import GroupMark
from pydownpour.wire.messages import (
    Contents,
    Give,
    Heartbeat,
    HeartbeatAnswer,
    ShardAssigned,
    ShardHello,
    ShardStats,
    Source,
)
from pydownpour.wire.proof import READER

log = logging.getLogger(__name__)

T = TypeVar("T")

LSN_MAX = 2**64 - 1
"""The largest LSN of the core: a u64."""


async def serve_shard(
    *,
    coordinator: str,
    bind: Bind,
    access: Access,
    announce: Callable[[str], None],
    index: int | None = None,
    advertise: str | None = None,
    policies: UsersPolicies | None = None,
    rng: random.Random | None = None,
    ticket: str = "",
    limits: Limits = DEFAULT,
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
        policies: Gives the classes of the job's policies; asked if one is none of ours. None: they
            are not known here.
        rng: Randomness for the registration's nonce, which nobody else may guess.
        ticket: The coordinator's leave to take the shard ``index`` over from another process.
        limits: What it waits for and keeps at most.

    Raises:
        ConfigError: the address, or a coordinator that refuses us.
        JobFailed: the job failed, or the coordinator was gone for too long.
    """
    await run_shard(
        ShardService(access, policies, limits=limits),
        coordinator=coordinator,
        bind=bind,
        access=access,
        announce=announce,
        index=index,
        advertise=advertise,
        rng=rng,
        ticket=ticket,
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
    ticket: str = "",
) -> None:
    """As :func:`serve_shard`, of a service whose state the caller wants to look into."""
    if bind.host in ("0.0.0.0", "::") and not advertise:
        raise ConfigError(
            f"bound to all addresses ({bind}): say which URL replicas shall use with --advertise"
        )
    async with (
        Server(
            service.routes(),
            bind=bind,
            access=access,
            name="shard",
            advertise=advertise or "",
            limits=service.limits,
        ) as server,
        Client(coordinator, access=access, limits=service.limits) as client,
    ):
        announce(server.url)
        rng = rng or random.SystemRandom()
        over = False
        while not over:
            check_not_plain(coordinator, advertise or server.url, "this shard")
            hello = service.hello(advertise or server.url, index, rng, ticket)
            assigned = await _register(client, hello)
            if assigned.source is not None:
                over = await service.take_over(client, assigned, assigned.source)
                continue
            try:
                await service.load(client, assigned)
            except Fenced as error:
                log.warning("%s", error)  # called dead meanwhile: there is nothing to lose yet
                continue
            over = await service.heartbeats(client)


@final
class ShardService:
    """Routes of one shard, and its heartbeats."""

    def __init__(
        self,
        access: Access,
        policies: UsersPolicies | None = None,
        gate: AckGate | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._access, self._policies, self._gate, self.limits = access, policies, gate, limits
        self._shard: Shard | None = None
        self.on_load: Callable[[Shard], object] = lambda shard: None
        """An observer: called with the state of a shard that is about to load. Checks count on
        it."""
        self._gives = ""
        """The secret of who may have everything that the shard has."""
        self._giving: Giving | None = None

    @property
    def shard(self) -> Shard | None:
        """The shard's state, once it is loaded."""
        return self._shard

    def routes(self) -> list[Route | UpgradeRoute]:
        """Everything a shard answers."""
        return [
            Route("GET", "/healthz", self._healthz, public=True),
            Route("GET", "/v1/stats", self._stats),
            Route("GET", "/v1/fetch", self._fetch),
            Route("POST", "/v1/push", self._push, streamed=True),
            Route("POST", "/v1/give", self._give),
            Route("GET", "/v1/state", self._state),
            UpgradeRoute("/v1/stream", self._stream),
        ]

    def hello(
        self, url: str, index: int | None, rng: random.Random, ticket: str = ""
    ) -> ShardHello:
        """What this process says of itself when it asks for a place."""
        return ShardHello(
            url=url,
            host=process.host_name(),
            pid=process.pid(),
            index=index,
            ticket=ticket,
            version=pydownpour.__version__,
            nonce=f"{rng.getrandbits(128):032x}",
            codecs=_core.codecs(),
            has_job=self._policies is not None,
        )

    async def load(self, client: Client, assigned: ShardAssigned) -> None:
        """Build the store and fill it with the job's initial parameters.

        A coordinator that is away, or a connection that breaks on the way, is tried again, and what
        has come is kept.
        """
        shard = Shard(assigned, self._policies, self._gate, self.limits)
        self.on_load(shard)
        filling = Filling(shard.store)
        headers = {messages.HEADER_SECRET: assigned.secret}
        await patiently(
            lambda: filling.go_on(client, f"/v1/initial?shard={assigned.index}", headers),
            whom=f"the parameters from {client.url}",
            limits=self.limits,
            progress=lambda: filling.loaded,
        )
        shard.serve(assigned.epoch)
        self._shard = shard
        log.info(
            "shard %d of %d: elements %d..%d, %d fragments",
            assigned.index,
            assigned.shards,
            assigned.start,
            assigned.start + assigned.len,
            shard.store.fragments,
        )

    async def take_over(self, client: Client, assigned: ShardAssigned, source: Source) -> bool:
        """Get everything that a shard's process has, and take its place (see ``handover``).

        Returns:
            As :meth:`heartbeats`, which go on meanwhile.

        Raises:
            Fenced: the coordinator has given this process up.
            DownpourError: what the shard has could not be got.
        """
        check_not_plain(client.url, source.url, f"shard {assigned.index}")
        shard = self._shard = Shard(assigned, self._policies, self._gate, self.limits)
        self.on_load(shard)
        taking = TakingOver(shard, source, self._access)
        copy = asyncio.ensure_future(
            patiently(
                taking.go_on,
                whom=f"everything that shard {assigned.index} has, from {source.url}",
                limits=self.limits,
                progress=lambda: taking.loaded,
            )
        )
        beats = asyncio.ensure_future(self.heartbeats(client))
        copy.add_done_callback(lambda copy: beats.cancel() if failure(copy) else None)
        try:
            return await beats
        except asyncio.CancelledError:
            if (error := failure(copy)) is not None:
                raise error from None
            raise
        finally:
            for task in (copy, beats):
                task.cancel()
            await asyncio.gather(copy, beats, return_exceptions=True)

    async def heartbeats(self, client: Client) -> bool:
        """Report until the coordinator says that the job has ended, or the shard has moved.

        Returns:
            False if it called us dead before the job ran: nobody can have pushed, so nothing is
            lost with our place and we may offer ourselves anew.
        """
        shard = self._mine()
        verdict = await Heartbeats(
            client, every_s=shard.assigned.heartbeat_s, make=self._heartbeat, heard=self._heard
        ).run()
        if shard.state == "gone":
            log.info("%s; this process ends", verdict.reason)
            await asyncio.sleep(self.limits.handover_linger_s)
            return True
        if verdict.fenced and verdict.state == "waiting":
            log.warning("%s", verdict.reason)
            return False
        if verdict.fenced:
            raise Fenced(verdict.reason or "another process took this shard's place")
        if verdict.state == "failed":
            raise JobFailed(verdict.reason)
        return True

    def _heartbeat(self, with_counts: bool) -> Heartbeat:
        shard = self._mine()
        return Heartbeat(
            role="shard",
            id=shard.assigned.index,
            incarnation=shard.assigned.incarnation,
            secret=shard.assigned.secret,
            epoch=shard.map_epoch,
            ids_version=shard.ids_version,
            live_version=shard.rounds.live_version,
            policy=shard.rounds.policy.version,
            shard=self._statistics(shard) if with_counts else None,
        )

    def _heard(self, answer: HeartbeatAnswer) -> None:
        shard = self._mine()
        if answer.ids is not None:
            shard.retire(answer.ids)
        if answer.live is not None:
            shard.rounds.heard(answer.live)
        if answer.shard_map is not None:
            shard.heard_map(answer.shard_map)
            shard.rounds.epoch = answer.shard_map.epoch
        if answer.fenced:
            if shard.state == "giving" and answer.moved:
                shard.become("gone")
            return
        self._gives = answer.gives
        if shard.state == "prepared" and answer.serves:
            shard.serve(answer.serves)
        elif shard.state == "giving" and not answer.gives:
            self._giving = None
            shard.serve(shard.epoch)
        if answer.policy is not None and shard.state == "serving":
            shard.rounds.go_over(answer.policy)

    # -- handlers --------------------------------------------------------------------------------

    def _mine(self) -> Shard:
        if self._shard is None:
            raise NotReady("this shard is still loading its parameters")
        return self._shard

    def _serving(self) -> Shard:
        shard = self._mine()
        if shard.state == "loading":
            raise NotReady("this process is still taking its shard over from another")
        return shard

    async def _healthz(self, call: Call) -> str:
        return "ok"

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
        handler = PushHandler(shard, *self._identity(shard, call))
        try:
            body = bytes(await self._converse(handler, call))
        finally:
            handler.close()
        await shard.gate.reached(handler.lsn)
        shard.bytes_sent += len(body)
        return body

    async def _converse(self, handler: PushHandler, call: Call) -> bytearray:
        inlet, scratch = handler.inlet, memoryview(handler.inlet)
        answers = bytearray()
        assert call.chunks is not None
        async for chunk in call.chunks:
            handler.shard.bytes_received += len(chunk)
            rest = memoryview(chunk)
            while rest:
                start, stop = inlet.window()
                n = min(stop - start, len(rest))
                scratch[start : start + n] = rest[:n]
                rest = rest[n:]
                await self._settle(handler, n, answers)
        return answers

    async def _settle(self, handler: PushHandler, n: int, answers: bytearray) -> None:
        """Answer what n bytes in the inlet's window complete, in as many turns as it takes."""
        while True:
            while not handler.share.take(n):
                await handler.share.turns.another()
            handler.shard.check_serving()
            handler.check_group()
            event = handler.inlet.advance(n)
            if event is None:
                return
            n = 0
            answers += handler.answer(event) or b""
            if len(answers) > self.limits.post_answers_size_max:
                raise RemoteProtocolError(
                    f"the answers to this request take more than "
                    f"{self.limits.post_answers_size_max} bytes (post_answers_size_max); send "
                    "fewer pushes in one"
                )

    async def _fetch(self, call: Call) -> FrameBody:
        shard = self._serving()
        replica, incarnation = self._identity(shard, call, reads=True)
        since = number(call.query.get("since", "0"), "since", LSN_MAX)
        first = number(call.query.get("first", "0"), "first", limits.LAYOUT_LEN_MAX)
        count = number(call.query.get("count", "0"), "count", limits.LAYOUT_LEN_MAX)
        rounds = number(call.query.get("rounds", "0"), "rounds", LSN_MAX)
        least_clock = number(call.query.get("least_clock", "0"), "least_clock", LSN_MAX)
        clock = number(call.query.get("clock", "0"), "clock", limits.COUNT_MAX)
        group = number(call.query.get("group", "0"), "group", 0xFFFF_FFFF)
        shard.heard_group(GroupMark(group, call.headers.get(messages.HEADER_GROUP, "")))
        if call.query.get("last") and replica == READER:
            await shard.rounds.finish()
        if replica != READER:
            shard.told(replica, incarnation, clock)
        within_s = self.limits.ack_every_s
        policy = number(call.query.get("policy", "0"), "policy", LSN_MAX)
        if words := await shard.rounds.reached(replica, rounds, least_clock, within_s, policy):
            return FrameBody(iter([[frames.view(shard.rounds.shown, words=words)], None]).__next__)
        batches = fetch_batches(shard, 0, since, first, count)

        def produce() -> list[object] | None:
            buffers = batches.next_buffers()
            if buffers is not None:
                shard.bytes_sent += sum(memoryview(b).nbytes for b in buffers)
            return buffers

        shard.fetches += 1
        if replica == READER:
            return FrameBody(produce)
        return FrameBody(produce, begins=lambda drop: shard.read_begins(replica, drop))

    async def _give(self, call: Call) -> Contents:
        self._check_gives(messages.decode(Give, call.body).secret)
        if self._giving is None:
            self._giving = Giving(self._mine())
        return self._giving.contents()

    async def _state(self, call: Call) -> FrameBody:
        self._check_gives(call.headers.get(messages.HEADER_SECRET, ""))
        if self._giving is None:
            raise RemoteProtocolError("POST /v1/give comes first")
        if "plane" not in call.query:
            return self._giving.state()
        plane = number(call.query["plane"], "plane", limits.PLANES_MAX)
        start = number(call.query.get("start", "0"), "start", limits.LAYOUT_LEN_MAX)
        return self._giving.plane(plane, start)

    def _check_gives(self, shown: str) -> None:
        """Whether the coordinator has told us that who shows this may have everything.

        Raises:
            NotReady: it has told us of nobody, or not yet.
            AuthError: of another.
        """
        if not self._gives:
            raise NotReady("the coordinator has not told this shard, or not yet, that it moves")
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), self._gives.encode()):
            raise AuthError("this shard moves, but not to who shows this secret")

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


def failure(task: asyncio.Future[None]) -> BaseException | None:
    """What a task that has ended has failed with, if it was not cancelled."""
    return task.exception() if task.done() and not task.cancelled() else None


async def _register(client: Client, hello: ShardHello) -> ShardAssigned:
    """Offer this process until a coordinator takes it."""
    return await patiently(
        lambda: client.post("/v1/shard", hello, ShardAssigned),
        whom=f"the coordinator at {client.url} to take this shard",
        limits=client.limits,
    )
