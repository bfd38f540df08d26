"""Join a job, run a training function, leave: the life of a replica.

``run_replica`` is for a job file's function, ``join`` for a loop that already exists. Both put the
session on a thread of its own, so that it pushes and fetches while the user computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, final

import pydownpour
from pydownpour import limits
from pydownpour.errors import ClosedError, ConfigError, DownpourError, JobFailed, LayoutMismatch
from pydownpour.layout import DTYPE_CODES, Layout, partition_of
from pydownpour.net import process
from pydownpour.net.access import Access, Tls, check_not_plain, clean_token
from pydownpour.net.client import Client
from pydownpour.net.waiting import Turn, Waiting
from pydownpour.policy import Policy
from pydownpour.replica.failure import EndedItself, in_words, note_unit, unit_failure
from pydownpour.replica.portal import LoopThread, Portal, SameLoop
from pydownpour.replica.replica import BlockingReplica, Replica, Trainer
from pydownpour.replica.session import Session
from pydownpour.replica.work import Leases
from pydownpour.wire.messages import JobLayout, Join, Joined

log = logging.getLogger(__name__)

T = TypeVar("T")


class TrainingJob(Protocol):
    """What a replica needs of a job."""

    @property
    def layout(self) -> Layout:
        """Names, shapes and dtypes of the parameters."""

    @property
    def train(self) -> Callable[[Any], Any]:
        """The user's function, ``async def`` or ``def``."""

    @property
    def policy(self) -> Policy:
        """Its class, if it is none of ours."""


async def run_replica(
    job: TrainingJob,
    *,
    coordinator: str,
    access: Access,
    name: str = "",
    owner: str = "",
    rng: random.Random | None = None,
    own_thread: bool = True,
) -> None:
    """Join, run the job's function to its end, settle what it pushed, leave.

    Args:
        job: Its layout and its function.
        coordinator: The coordinator's URL.
        access: Token and TLS.
        name: For people; default host and process.
        owner: Random, and the same for all lives of this replica: with it a restart takes the
            place of the life before (same id, next incarnation), and nobody else can. "": it has
            no other life.
        rng: Randomness for back-off and the join's nonce, which nobody else may guess.
        own_thread: Put the session on a thread of its own. False shares the running loop (the
            simulator does), and then the function must be ``async def``.

    Raises:
        Whatever the function raised, after leaving the job; JobFailed, Fenced, ConfigError. Not
        that the job was over: then there is nothing left to do.
    """
    train = job.train
    layout = job.layout
    policy = type(job.policy)
    joined = _Joined(coordinator, layout, access, name, policy, owner, rng, own_thread)
    try:
        trainer = await joined.__aenter__()
    except ClosedError as error:
        log.info("%s; nothing left to do", error)  # the others finished before we came
        return
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(joined)
        try:
            await _train(train, trainer)
        except ClosedError as error:
            if not trainer.session.job_is_over:
                raise
            log.info("%s; leaving", error)
            await _farewell(trainer)
        except Exception as error:
            note_unit(error, trainer.unit)
            raise


async def _train(train: Callable[[Any], Any], trainer: Trainer) -> None:
    """Run the user's function to its end, then settle what it pushed and finished."""
    if inspect.iscoroutinefunction(train):
        face = Replica(trainer, asyncio.get_running_loop().time)
        task = asyncio.current_task()
        with _no_other_end(lambda: task is not None and task.cancelling() > 0):
            await train(face)
        await face.flush()
    else:
        blocking = BlockingReplica(trainer, time.monotonic)

        def run() -> None:
            with _no_other_end(lambda: False):
                train(blocking)
            blocking.flush()

        await asyncio.get_running_loop().run_in_executor(None, run)


async def _farewell(trainer: Trainer) -> None:
    """The job is over, but we have gradients that no push carries: there may still be time."""
    try:
        push = trainer.make_push()
        if push is not None:
            trainer.portal.post(trainer.session.push, push)
        await trainer.portal.start(trainer.session.wait_settled(trainer.pushes))
        await trainer.portal.start(trainer.leases.settle())
    except DownpourError as error:
        log.info("%s; what was accrued is not in the parameters", error)


@contextlib.contextmanager
def _no_other_end(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """A user's function returns or raises an Exception; anything else would end our loop, too.

    Args:
        is_stopped: Whether a cancellation is ours.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_stopped():
            raise
        words = "the replica function was cancelled by its own code (asyncio.CancelledError)"
        raise EndedItself(words).with_traceback(error.__traceback__) from None
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        words = f"the replica function raised {error!r}; it ends by returning"
        raise EndedItself(words).with_traceback(error.__traceback__) from None


def join(
    url: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    name: str = "",
    policy: type[Policy] | None = None,
) -> Joining:
    """Take part in a running job from a loop that already exists.

    ``async with dp.join(url) as replica`` gives a :class:`Replica`; a plain ``with`` gives a
    :class:`BlockingReplica`. Works in a notebook: it needs no main thread and no event loop.

    Args:
        url: The coordinator's URL.
        parameters: Arrays whose names, shapes and dtypes are checked against the job's; None takes
            the job's layout. They are neither kept nor written: the replica's copy, which begins
            with the job's values, is ``replica.parameters``. Read your model's arrays from there,
            or copy them after each step.
        token: The job's token; default the environment's PYDOWNPOUR_TOKEN.
        ca: PEM file of the authority that signed the job's TLS certificates.
        name: For people; default host and process.
        policy: The class of the job's policy, if it is one of the job file's own.

    Raises:
        LayoutMismatch: the parameters differ from the job's; the message names the first array.
        AuthError, ConnectFailed, ConfigError: at entry.
    """
    if not isinstance(url, str):
        raise ConfigError(f"url={url!r} must be what the coordinator printed, http://...")
    given = token if token is not None else os.environ.get("PYDOWNPOUR_TOKEN", "")
    access = Access(token=clean_token(given, "the token") or None, tls=Tls(ca=ca) if ca else None)
    layout = Layout.of(parameters) if parameters is not None else None
    return Joining(url, layout, access, name, policy)


@final
class Joining:
    """A membership: an async and a plain context manager. Made by :func:`join`."""

    def __init__(
        self,
        url: str,
        layout: Layout | None,
        access: Access,
        name: str,
        policy: type[Policy] | None,
    ) -> None:
        self._arguments = (url, layout, access, name, policy)
        self._joined: _Joined | None = None

    async def __aenter__(self) -> Replica:
        self._joined = _Joined(*self._arguments)
        trainer = await self._joined.__aenter__()
        self._face = Replica(trainer, asyncio.get_running_loop().time)
        return self._face

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._joined is not None
        try:
            if error is None and not self._joined.is_forked:
                await self._face.flush()
        finally:
            await self._joined.__aexit__(kind, error, trace)

    def __enter__(self) -> BlockingReplica:
        self._joined = _Joined(*self._arguments)
        self._blocking = BlockingReplica(self._joined.enter(), time.monotonic)
        return self._blocking

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._joined is not None
        try:
            if error is None and not self._joined.is_forked:
                self._blocking.flush()
        finally:
            self._joined.exit(error)


@final
class _Joined:
    """Opens a session on its thread (or on the running loop) and closes it."""

    def __init__(
        self,
        url: str,
        layout: Layout | None,
        access: Access,
        name: str,
        policy: type[Policy] | None,
        owner: str = "",
        rng: random.Random | None = None,
        own_thread: bool = True,
    ) -> None:
        self._policy = (lambda: policy) if policy is not None else None
        self._url, self._layout, self._access = url, layout, access
        self._name, self._owner = name, owner
        self._rng = rng or random.SystemRandom()
        self._portal: Portal = LoopThread(_loop_factory()) if own_thread else SameLoop()
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._session: Session | None = None
        self._leases: Leases | None = None
        self._trainer: Trainer | None = None

    async def __aenter__(self) -> Trainer:
        self._start()
        try:
            await self._portal.start(self._open())
            return self._make_trainer()
        except BaseException as error:
            await self._leave(error)
            raise

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await self._leave(error)

    @property
    def is_forked(self) -> bool:
        """In a child that was forked meanwhile; its parent is the member, and says goodbye."""
        return os.getpid() != self._pid

    def enter(self) -> Trainer:
        """As ``async with``, blocking."""
        self._start()
        try:
            self._portal.call(self._open())
            return self._make_trainer()
        except BaseException as error:
            self.exit(error)
            raise

    def exit(self, error: BaseException | None) -> None:
        """As the end of ``async with``, blocking."""
        if self.is_forked:
            return
        with self._stack:
            self._portal.call(self._close(error))

    def _start(self) -> None:
        if isinstance(self._portal, LoopThread):
            self._stack.enter_context(self._portal)

    async def _leave(self, error: BaseException | None) -> None:
        if self.is_forked:
            return
        with self._stack:
            leaving = asyncio.ensure_future(self._portal.start(self._close(error)))
            cancel: asyncio.CancelledError | None = None
            # A caller in a hurry waits for the goodbye, too, which has its own limit of time: the
            # connections are closed behind it.
            while not leaving.done():
                try:
                    await asyncio.shield(leaving)
                except asyncio.CancelledError as again:
                    cancel = again
            if cancel is not None:
                _ = leaving.cancelled() or leaving.exception()
                raise cancel

    # -- on the session's loop -------------------------------------------------------------------

    async def _open(self) -> None:
        self._opening = asyncio.current_task()
        try:
            await self._open_session()
        finally:
            self._opening = None

    async def _open_session(self) -> None:
        client = self._client = Client(self._url, access=self._access)
        layout = self._layout
        if layout is None:
            layout = await _job_layout(client, self._rng)
        joined = await _ask_to_join(client, layout, self._name, self._owner, self._rng)
        partition_of(joined.shards, joined.stripe_len, joined.fragment_len)
        for shard in joined.shards:
            check_not_plain(self._url, shard.url, f"shard {shard.index}")
        session = self._session = Session(joined, layout, client, self._access, self._rng)
        _ = session.spawn(_say_waits(session), "words about waiting")
        await session.__aenter__()
        self._leases = Leases(self._session)

    async def _close(self, error: BaseException | None) -> None:
        failed = isinstance(error, Exception)
        reason = in_words(error)[:500] if error is not None and failed else ""
        if isinstance(error, asyncio.CancelledError):
            reason = "stopped"
        if self._opening is not None:
            # Ctrl-C in a blocking join leaves it asking, and it would connect anew.
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        unit = self._trainer.unit if self._trainer is not None else None
        failure = unit_failure(error, unit) if error is not None else None
        session = self._session
        try:
            if session is not None:
                await session.close(reason, failure, failed=failed)
        finally:
            if self._client is not None:
                await self._client.close()
        if error is None and session is not None and session.job_state == "failed":
            raise JobFailed(session.job_reason)

    def _make_trainer(self) -> Trainer:
        assert self._session is not None
        assert self._leases is not None
        self._trainer = Trainer(self._session, self._portal, self._leases, self._policy)
        self._session.progress = self._trainer.statistics
        return self._trainer


async def _ask_to_join(
    client: Client, layout: Layout, name: str, owner: str, rng: random.Random
) -> Joined:
    """Ask to be taken in; the layout itself does not travel, unless it is not the job's."""
    request = Join(
        fingerprint=layout.fingerprint,
        version=pydownpour.__version__,
        host=process.host_name(),
        pid=process.pid(),
        name=name,
        owner=owner,
        nonce=f"{rng.getrandbits(128):032x}",
        wire_dtypes=list(DTYPE_CODES),
        codecs=["none"],
    )
    try:
        joined = await _patiently(client, lambda: client.post("/v1/join", request, Joined), rng)
    except LayoutMismatch:
        (await _job_layout(client, rng)).check_same(layout, whose="this replica")
        raise
    if joined.fingerprint != layout.fingerprint:
        raise LayoutMismatch(f"{client.url} has begun another job while we joined; join again")
    if joined.wire_dtype not in DTYPE_CODES:
        raise ConfigError(f"the job pushes {joined.wire_dtype}, unknown to this version")
    return joined


async def _job_layout(client: Client, rng: random.Random) -> Layout:
    answer = await _patiently(
        client, lambda: client.get("/v1/layout", JobLayout, size_max=limits.LAYOUT_SIZE_MAX), rng
    )
    return Layout.from_entries(answer.arrays)


async def _patiently(client: Client, ask: Callable[[], Awaitable[T]], rng: random.Random) -> T:
    """Ask until the coordinator answers or refuses; it says for whom it waits."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + limits.JOIN_PATIENCE_S
    delay_s = limits.BACKOFF_MIN_S
    async with Waiting(f"the coordinator at {client.url} to let this replica join") as waiting:
        while True:
            try:
                return await ask()
            except DownpourError as error:
                if not error.retryable:
                    raise
                waiting.note(error)
                if loop.time() > give_up_at:
                    raise JobFailed(
                        f"could not join within {limits.JOIN_PATIENCE_S:g} s: {error}"
                    ) from error
            await asyncio.sleep(delay_s * rng.uniform(0.5, 1.0))
            delay_s = min(delay_s * 2, limits.BACKOFF_MAX_S)


async def _say_waits(session: Session) -> None:
    """Say for which shards this replica waits while nothing moves between them."""
    loop, turn = asyncio.get_running_loop(), Turn()
    since, before = loop.time(), -1
    while True:
        moved = sum(sum(link.traffic()) for link in session.links)
        whom = session.waiting_for()
        if not whom or moved != before:
            since, before = loop.time(), moved
        elif turn.is_mine(since, loop.time()):
            log.warning("waiting for %s for %.0f s now", whom, loop.time() - since)
        await asyncio.sleep(limits.WAIT_TOLD_S / 2)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
