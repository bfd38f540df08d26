"""The coordinator process: listens, lets the state of the job decide, and sees it to its end.

The end, step by step, so that the report's counts agree with each other:

    work is complete (or stopped, or everybody left)
      -> replicas find no more work, push what they have accrued, and leave with their last counts
      -> the final parameters are read, written, evaluated
      -> shards are asked for their last counts; the report is made and written
      -> heartbeats are answered "done" until every role has heard it

Parameters that cannot be read are waited for, until their shard is given up or the operator gives
up. A job that failed keeps what it can: the parameters of those shards that still answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar, final

import msgspec

from pydownpour import _core, limits
from pydownpour.coordinator import view
from pydownpour.coordinator.declared import Declared
from pydownpour.coordinator.evaluation import Evaluator
from pydownpour.coordinator.initial import InitialParameters
from pydownpour.coordinator.job_state import JobState, Outcome
from pydownpour.coordinator.recorder import Recorder
from pydownpour.coordinator.report import build_report
from pydownpour.coordinator.salvage import missing_part
from pydownpour.coordinator.shards import NetShardReader, ShardReader
from pydownpour.errors import ConfigError, ConnectFailed, DownpourError, NotReady
from pydownpour.fields import number
from pydownpour.layout import Flat
from pydownpour.limits import DEFAULT, Limits
from pydownpour.net import process
from pydownpour.net.access import Access, Bind
from pydownpour.net.server import Call, FrameBody, Handler, Route, Server
from pydownpour.net.waiting import Turn
from pydownpour.storage.files import Files
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    Heartbeat,
    HeartbeatAnswer,
    JobLayout,
    Join,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    Message,
    PolicyStatus,
    SetPolicy,
    ShardEnded,
    ShardHello,
    Status,
    Stop,
)
from pydownpour.wire.proof import KEY_SIZE

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


async def serve_coordinator(
    job: Declared,
    *,
    shards: int,
    bind: Bind,
    access: Access,
    run_folder: str | Callable[[], str] | None,
    announce: Callable[[str], None],
    random: Random,
    expected_replicas: int = 0,
    files: Files | None = None,
    reader: ShardReader | None = None,
    watch: Callable[[CoordinatorService], None] | None = None,
    loaded: Callable[[], object] = lambda: None,
    limits: Limits = DEFAULT,
) -> dict[str, Any]:
    """Coordinate one job from its start to its end.

    Args:
        job: What the user declared.
        shards: How many shards its parameters are cut into.
        bind: Where to listen; port 0 lets the system choose.
        access: Token and TLS, for both directions.
        run_folder: Where events, parameters and report go; made if missing, once we listen. Or
            what makes it then and says where: a start that fails leaves no folder. None: nowhere.
        announce: Called with our URL once we listen.
        random: Makes the job's key, so it must be ``random.SystemRandom()`` wherever anybody else
            could reach the job; spreads the waits of replicas.
        expected_replicas: How many the operator means to start; only for words, and for knowing
            when a job without declared work is over.
        files: The disk.
        reader: How shards are read.
        watch: Called with the service before it serves, for a caller who wants to look into it.
        loaded: Called once every shard has its parameters: nobody needs the initial ones any more.
        limits: What it waits for and keeps at most.

    Returns:
        The report (``report.build_report`` says what is in it), also of a job that failed.

    Raises:
        ConfigError: the address, the run folder, more shards than fragments, initial parameters
            that are not finite.

    Lifecycle: cancelling it is an ordinary stop; it returns when parameters and report are written
    and everybody knows. Cancelled again it ends the job as failed, and keeps the report alone.
    """
    loop = asyncio.get_running_loop()
    state = JobState(
        job,
        shards=shards,
        now=loop.time(),
        key=random.randbytes(KEY_SIZE),
        expected_replicas=expected_replicas,
        tls=bool(access.tls and access.tls.cert),
        limits=limits,
    )
    recorder = Recorder(state)
    service = CoordinatorService(
        state,
        initial=InitialParameters(job.layout, job.parameters),
        reader=reader
        if reader is not None
        else NetShardReader(access, state.replica_keeper, limits),
        recorder=recorder,
        random=random,
        loaded=loaded,
    )
    if watch is not None:
        watch(service)
    async with Server(
        service.routes(), bind=bind, access=access, name="coordinator", limits=limits
    ) as server:
        if run_folder is not None:
            await recorder.open(run_folder, files)
        announce(server.url)
        return await service.run()


@final
class CoordinatorService:
    """Routes, timers and the end of one job. All decisions are the job state's.

    Args:
        job: Decides.
        initial: The initial parameters; dropped once every shard has its own.
        reader: How shards are read.
        recorder: Where the run is kept.
        random: Spreads the waits of replicas.
        loaded: Called when the initial parameters are dropped.
    """

    def __init__(
        self,
        job: JobState,
        *,
        initial: InitialParameters,
        reader: ShardReader,
        recorder: Recorder,
        random: Random,
        loaded: Callable[[], object] = lambda: None,
    ) -> None:
        self.job, self._limits = job, job.limits
        self.report: dict[str, Any] | None = None
        self._initial: InitialParameters | None = initial
        self._loaded = loaded
        self._layout_bytes: memoryview | None = None
        self._reader, self._recorder, self._random = reader, recorder, random
        self._news = asyncio.Event()
        self._evaluator = Evaluator(job, self._read, self._news.set)
        self._turn = Turn(job.limits)
        self._waits_since: float | None = None
        self._stopped_at: float | None = None
        """When an operator asked to end the job."""

    def routes(self) -> list[Route]:
        """Everything a coordinator answers."""
        job = self.job
        return [
            Route("GET", "/healthz", self._healthz, public=True),
            Route("GET", "/v1/initial", self._initial_slice),
            Route("GET", "/v1/layout", self._layout),
            Route("GET", "/v1/status", self._status),
            Route("POST", "/v1/shard", self._hello),
            Route("POST", "/v1/shard/ended", self._shard_ended),
            Route("POST", "/v1/join", self._handler(Join, job.join)),
            Route("POST", "/v1/heartbeat", self._handler(Heartbeat, job.heartbeat)),
            Route("POST", "/v1/lease", self._handler(LeaseRequest, self._lease)),
            Route("POST", "/v1/complete", self._handler(Complete, job.complete)),
            Route("POST", "/v1/leave", self._handler(Leave, job.leave)),
            Route("POST", "/v1/stop", self._handler(Stop, self._stop)),
            Route("GET", "/v1/policy", self._policy),
            Route("POST", "/v1/policy", self._handler(SetPolicy, job.set_policy)),
        ]

    # -- handlers --------------------------------------------------------------------------------

    def _handler(self, kind: type[M], decide: Callable[[M, float], Message]) -> Handler:
        async def handle(call: Call) -> Message:
            message = messages.decode(kind, call.body)
            try:
                return decide(message, _now())
            finally:
                self._after()

        return handle

    def _after(self) -> None:
        job = self.job
        if job.state != "waiting" and self._initial is not None:
            self._initial = None
            self._loaded()
        if job.take_pass_ended() and not job.is_over:
            self._evaluator.request()  # the last pass is evaluated on the final parameters
        self._news.set()

    async def _hello(self, call: Call) -> Message:
        """Ask a shard something at its own URL first: at the job's end all depends on that way."""
        message = messages.decode(ShardHello, call.body)
        self.job.check_hello(message, _now())
        try:
            await self._reader.check(message.url)
        except DownpourError as error:
            words = f"the coordinator must be able to read from a shard, and at {message.url}: "
            if error.retryable:
                raise NotReady(f"{words}{error}") from error
            raise ConfigError(f"{words}{error}") from error
        try:
            return self.job.hello(message, _now())
        finally:
            self._after()

    async def _shard_ended(self, call: Call) -> Message:
        message = messages.decode(ShardEnded, call.body)
        if self.job.shard_ended(message):
            await self._ask_one(message.index)
        self._after()
        return HeartbeatAnswer(state=self.job.state, reason=self.job.reason(_now()))

    def _lease(self, message: LeaseRequest, now: float) -> LeaseAnswer:
        answer = self.job.lease(message, now)
        if not answer.wait_s:
            return answer
        # Replicas that were told to wait together shall not come back together.
        spread = answer.wait_s * self._random.uniform(0.75, 1.25)
        return msgspec.structs.replace(answer, wait_s=spread)

    def move(self, index: int) -> str:
        """Let a shard move: the ticket for the process that takes it over.

        Raises:
            RemoteProtocolError: no such shard.
            JobFailed, ClosedError: the job is over.
        """
        return self.job.move(index)

    def stop(self, message: Stop) -> HeartbeatAnswer:
        """As ``POST /v1/stop``: end the job early, in order."""
        try:
            return self._stop(message, _now())
        finally:
            self._after()

    def _stop(self, message: Stop, now: float) -> HeartbeatAnswer:
        if message.failed:
            self._end_early(message.reason or "nobody can go on with it", now, outcome="failed")
        else:
            self._end_early(f"stopped: {message.reason}" if message.reason else "stopped", now)
        return HeartbeatAnswer(state=self.job.state, reason=self.job.reason(now))

    def _end_early(self, reason: str, now: float, *, outcome: Outcome = "stopped") -> None:
        """Somebody wants the end: an operator, or an engine that cannot go on."""
        self._stopped_at = self._stopped_at if self._stopped_at is not None else now
        self.job.finish(reason, now, outcome=outcome)
        self._news.set()

    def set_policy(self, message: SetPolicy) -> PolicyStatus:
        """As ``POST /v1/policy``: another policy from now on."""
        try:
            return self.job.set_policy(message, _now())
        finally:
            self._after()

    async def _policy(self, call: Call) -> PolicyStatus:
        return self.job.policies.status

    async def _healthz(self, call: Call) -> str:
        return "ok"

    async def _status(self, call: Call) -> Status:
        return view.status(self.job, _now(), run_folder=self._recorder.path, report=self.report)

    async def _initial_slice(self, call: Call) -> FrameBody:
        index = number(call.query.get("shard", ""), "shard", limits.SHARDS_MAX)
        start = number(call.query.get("start", "0"), "start", limits.LAYOUT_LEN_MAX)
        secret = call.headers.get(messages.HEADER_SECRET, "")
        place = self.job.loading(index, secret, _now())
        if self._initial is None:
            raise ConfigError("every shard has its parameters; the job runs")
        return self._initial.body(
            place.index,
            place.start + min(start, place.len),
            place.start + place.len,
            lambda: self.job.loading(place.index, secret, _now()),
        )

    async def _layout(self, call: Call) -> FrameBody:
        """Millions of bytes, if names are long: made once, and sent as the reader takes them."""
        if self._layout_bytes is None:
            entries = self.job.declared.layout.entries()
            self._layout_bytes = memoryview(messages.encode(JobLayout(arrays=entries)))
        whole, size = self._layout_bytes, self._limits.write_batch_size
        pieces = iter([whole[at : at + size] for at in range(0, len(whole), size)])
        return FrameBody(lambda: [piece] if (piece := next(pieces, None)) is not None else None)

    # -- the life of the job ---------------------------------------------------------------------

    async def run(self) -> dict[str, Any]:
        """Serve until the job is over and everybody knows. Returns the report."""
        helpers = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("sweep", self._sweep()),
                ("evaluations", self._evaluator.run()),
                ("events", self._recorder.run()),
                ("questions", self._ask_silent()),
            )
        ]
        for helper in helpers:
            helper.add_done_callback(self._helper_ended)
        try:
            await self._to_the_end(asyncio.create_task(self._life(), name="life"))
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        assert self.report is not None
        return self.report

    async def _life(self) -> None:
        await self._until(lambda: self.job.is_over, None)
        await self._end()
        await self._until(self.job.everyone_knows, self._limits.notice_s)

    async def _to_the_end(self, life: asyncio.Task[None]) -> None:
        """Wait for it; cancelled once, end the job in order, and cancelled again, at once."""
        try:
            try:
                await asyncio.shield(life)
            except asyncio.CancelledError as cancel:
                task = asyncio.current_task()
                if life.cancelled() or task is None:
                    raise
                task.uncancel()
                self._end_early(str(cancel) or "interrupted", _now())
                await asyncio.shield(life)
        except asyncio.CancelledError:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await self._interrupted()
            raise

    async def _ask_silent(self) -> None:
        """Ask shards that are not heard: one whose way to us alone is cut can be asked."""
        while True:
            await asyncio.sleep(self._limits.heartbeat_s)
            silent = [place.index for place, _ in self.job.places.silent]
            await asyncio.gather(*map(self._ask_one, silent))

    async def _ask_one(self, index: int) -> None:
        job = self.job
        try:
            stats = await self._reader.stats(job.places.entries[index])
        except DownpourError as error:
            refused = isinstance(error, ConnectFailed) and error.refused
            job.shard_did_not_answer(index, _now(), refused=refused)
        else:
            job.shard_answered(index, stats, _now())

    async def _sweep(self) -> None:
        while True:
            self.job.tick(_now())
            self._after()
            self._say_waits()
            await asyncio.sleep(self._limits.sweep_s)

    def _say_waits(self) -> None:
        job, now = self.job, _now()
        if job.is_over or (job.state != "waiting" and job.members.present_count):
            self._waits_since = None
            return
        self._waits_since = now if self._waits_since is None else self._waits_since
        if self._turn.is_mine(self._waits_since, now):
            log.warning("%s", job.reason(now))

    def _helper_ended(self, helper: asyncio.Task[None]) -> None:
        """A broken helper is a fault of ours: end the job in words rather than limp on."""
        if not helper.cancelled() and (error := helper.exception()) is not None:
            self.job.fail(f"internal error in {helper.get_name()}: {error!r}", _now())
            self._news.set()

    async def _until(self, reached: Callable[[], bool], patience_s: float | None) -> bool:
        """Wait for the job to get somewhere; False when patience ran out first."""
        try:
            async with asyncio.timeout(patience_s):
                while not reached():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _end(self) -> None:
        """From the end of work to a written report."""
        job = self.job
        self._evaluator.drop()
        if job.state == "evaluating":
            patience = self._limits.leave_patience_s
            if self._stopped_at is not None:
                patience = self._limits.stop_patience_s
            await self._until(lambda: self._all_left() or job.state == "failed", patience)
            await self._secure()
        if job.state == "failed":
            job.close_books()
            await self._salvage()
        await self._last_counts()
        job.judge()
        self.report = None
        report = self._build()
        await self._recorder.flush(sync=True)
        await self._recorder.write_report(report)
        report.update(self._recorder.kept())
        job.conclude(_now())
        self.report = report
        await self._recorder.flush(sync=True)
        report.update(self._recorder.kept())  # the last line, too, may have failed

    def _all_left(self) -> bool:
        return not self.job.members.present_count

    async def _secure(self) -> None:
        """Read the final parameters, keep them, evaluate them."""
        job = self.job
        if not job.places.complete:
            return
        # Two sets of parameters would be held while an evaluation still looks at one.
        await self._until(
            lambda: (
                not self._evaluator.is_busy or self._stopped_at is not None or job.state == "failed"
            ),
            self._limits.evaluation_patience_s,
        )
        job.close_books()
        flat = await self._read_final()
        if flat is None:
            return
        job.secure_parameters()
        await self._last_counts()
        await self._recorder.write_parameters(flat, self._metadata())
        await self._evaluate_final(flat)

    async def _evaluate_final(self, flat: Flat) -> None:
        """Judge what is written already. Who asked for an early end does not wait long for that."""
        job = self.job
        patience_s = self._limits.stop_evaluation_s if self._stopped_at is not None else None
        if job.declared.evaluation is not None:
            job.note("ending", "evaluating the final parameters")
        try:
            async with asyncio.timeout(patience_s):
                await self._evaluator.evaluate(flat)
        except TimeoutError:
            job.note(
                "evaluation",
                f"the final parameters were not evaluated: that took longer than {patience_s:g} s "
                "after the stop (stop_evaluation_s)",
            )
        finally:
            job.note("ending", "")

    def _metadata(self) -> dict[str, str]:
        job = self.job
        return {
            "job": job.declared.name,
            "lsn": ",".join(str(place.stats.lsn) for place in job.places),
            "samples": str(job.samples_done),
            "pydownpour": _core.__version__,
        }

    async def _read_final(self) -> Flat | None:
        """The parameters, or None when the job failed while we tried.

        They are worth more than time: what cannot be read is waited for. An operator who stops the
        job waits ``request_timeout_s`` in all, and may stop a wait that is longer already.
        """
        job, began = self.job, _now()
        why = "no answer yet"

        def given_up() -> bool:
            stopped_at = self._stopped_at
            return job.state == "failed" or (
                stopped_at is not None
                and _now() >= max(stopped_at, began + self._limits.request_timeout_s)
            )

        while not given_up():
            try:
                flat = await self._read_unless(given_up)
            except DownpourError as error:
                why = str(error)
                job.note(
                    "unread",
                    f"waiting for parameters that cannot be read ({why}); Ctrl-C gives them up",
                )
            else:
                job.note("unread", "")
                if flat is not None:
                    return flat
            # A shard that died is noticed by the sweep meanwhile, and named.
            await self._until(given_up, self._limits.heartbeat_s)
        job.note("unread", "")
        job.fail(f"could not read the final parameters: {why}", _now())
        return None

    async def _read_unless(self, given_up: Callable[[], bool]) -> Flat | None:
        """The parameters, or None when there was no more sense in reading them."""
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._news.set())
        try:
            await self._until(lambda: reading.done() or given_up(), None)
            return await reading if reading.done() else None
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _salvage(self) -> None:
        """The job failed: keep the parameters that can still be read, and say which cannot."""
        job = self.job
        if job.are_parameters_secured or job.progress.running_since is None:
            return
        entries = job.places.entries
        flat, failures = await self._reader.what_answers(
            [entries[place.index] for place in job.places if place.has_parameters],
            job.declared.layout,
            job.partition,
        )
        missing = [
            missing_part(job.declared.layout, place, failures.get(place.index))
            for place in job.places
            if place.index in failures or not place.has_parameters
        ]
        job.salvaged(missing)
        if len(missing) < len(job.places):
            await self._recorder.write_parameters(flat, self._metadata(), whole=not missing)

    async def _read(self) -> Flat:
        job = self.job
        return await self._reader.parameters(
            job.places.entries, job.declared.layout, job.partition, last=job.books_closed
        )

    async def _last_counts(self) -> None:
        """Ask each shard for its counts; its last heartbeat serves where it does not answer."""
        places = [place for place in self.job.places if place.has_parameters]
        entries = self.job.places.entries
        answers = await asyncio.gather(
            *(self._reader.stats(entries[place.index]) for place in places), return_exceptions=True
        )
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, messages.ShardStats):
                self.job.last_counts(place.index, answer)
            elif not isinstance(answer, DownpourError):
                raise answer

    def _build(self) -> dict[str, Any]:
        report = build_report(
            self.job,
            _now(),
            version=_core.__version__,
            rss_peak_bytes=process.rss_peak_bytes(),
            storage=self._recorder.storage,
        )
        return {**report, **self._recorder.kept()}

    async def _interrupted(self) -> None:
        """Cancelled a second time: keep what is known, within the time that leaves."""
        if self.report is not None:
            return
        self.job.fail("interrupted", _now())
        report = self._build()
        self.job.conclude(_now())
        try:
            async with asyncio.timeout(self._limits.shutdown_s / 3):
                await self._recorder.flush(sync=True)
                await self._recorder.write_report(report)
        except TimeoutError:
            return


def _now() -> float:
    return asyncio.get_running_loop().time()
