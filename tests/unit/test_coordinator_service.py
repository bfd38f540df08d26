"""The coordinator service without sockets: its handlers are called, its shards are faked."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from pydownpour import limits
from pydownpour.coordinator import view
from pydownpour.coordinator.evaluation import metrics_of
from pydownpour.coordinator.initial import InitialParameters
from pydownpour.coordinator.job_state import JobState
from pydownpour.coordinator.recorder import Recorder
from pydownpour.coordinator.service import CoordinatorService, serve_coordinator
from pydownpour.coordinator.shards import ShardReader
from pydownpour.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    ConnectFailed,
    DownpourError,
    Fenced,
    NotReady,
    RemoteProtocolError,
)
from pydownpour.job import Job, Work
from pydownpour.layout import Flat, Layout, Partition, ShardEntry
from pydownpour.net.access import Access, Bind
from pydownpour.net.server import Call, FrameBody
from pydownpour.optimizers import SGD
from pydownpour.storage.rundir import RunFolder
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    Completion,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Joined,
    LeaseAnswer,
    LeaseRequest,
    Leave,
    Message,
    ReplicaStats,
    ShardAssigned,
    ShardHello,
    ShardStats,
    Status,
    Stop,
)
from tests.fakes.coordination import KEY, make_job
from tests.fakes.disk import FakeDisk


class FakeShards(ShardReader):
    """Parameters count how often they were read; the first ``failures`` reads fail."""

    def __init__(self) -> None:
        self.reads = 0
        self.failures = 0
        self.lost: tuple[int, ...] = ()
        self.unreadable: DownpourError | None = None
        self.checked: list[str] = []

    async def parameters(
        self,
        shards: Sequence[ShardEntry],
        layout: Layout,
        partition: Partition,
        *,
        last: bool = False,
    ) -> Flat:
        self.reads += 1
        if self.failures:
            self.failures -= 1
            raise ConnectFailed("shard 0 is away")
        return np.full(layout.len, self.reads, np.float32)

    async def what_answers(
        self, shards: Sequence[ShardEntry], layout: Layout, partition: Partition
    ) -> tuple[Flat, dict[int, DownpourError]]:
        flat = np.full(layout.len, np.nan, np.float32)
        for shard in shards:
            if shard.index not in self.lost:
                flat[shard.start : shard.start + shard.len] = self.reads
        return flat, {index: ConnectFailed(f"shard {index} is away") for index in self.lost}

    async def check(self, url: str) -> None:
        self.checked.append(url)
        if self.unreadable is not None:
            raise self.unreadable

    async def stats(self, shard: ShardEntry) -> ShardStats:
        if shard.index == 1:
            raise ConnectFailed("shard 1 is away")
        return ShardStats(index=shard.index, ready=True, lsn=12, pushes=3)


class House:
    """A service and the roles that call its handlers; ``own`` are limits unlike the usual."""

    def __init__(
        self,
        job: Job | None = None,
        *,
        disk: FakeDisk | None = None,
        shards: FakeShards | None = None,
        loaded: Callable[[], object] = lambda: None,
        **own: Any,
    ) -> None:
        self.declared = job if job is not None else make_job(work=Work(8, unit=4, passes=2))
        self.disk = disk if disk is not None else FakeDisk()
        self.shards = shards if shards is not None else FakeShards()
        now = asyncio.get_running_loop().time()
        self.job = JobState(
            self.declared,
            shards=2,
            now=now,
            key=KEY,
            limits=limits.Limits(**own),
        )
        self.service = CoordinatorService(
            self.job,
            initial=InitialParameters(self.declared.layout, self.declared.parameters),
            reader=self.shards,
            recorder=Recorder(self.job, RunFolder("run", files=self.disk)),
            random=random.Random(0),
            loaded=loaded,
        )
        self.handlers = {(r.method, r.path): r.handler for r in self.service.routes()}
        self.running: asyncio.Task[dict[str, Any]] | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, secret: str = "", **query: str
    ) -> Any:
        headers = {messages.HEADER_SECRET: secret}
        return await self.handlers[method, path](Call(body, query, headers, "test"))

    @property
    def secret(self) -> str:
        """Of replica 1 in its first life."""
        return self.job.replica_keeper.secret("replica", 1, 1)

    async def post(self, path: str, message: Message) -> Any:
        return await self.ask("POST", path, messages.encode(message))

    async def begin(self) -> None:
        """Two shards load, one replica joins."""
        self.running = asyncio.create_task(self.service.run())
        await asyncio.sleep(0)
        for index in range(2):
            hello = ShardHello(url=f"http://{index}", nonce=str(index))
            assigned: ShardAssigned = await self.post("/v1/shard", hello)
            body: FrameBody = await self.ask(
                "GET", "/v1/initial", shard=str(index), secret=assigned.secret
            )
            part = packed(self.declared)[assigned.start : assigned.start + assigned.len]
            assert np.frombuffer(drained(body), "<f4").tolist() == part.tolist()
            await self.shard_beat(index)
        joined: Joined = await self.post("/v1/join", Join(name="r"))
        assert joined.replica == 1

    async def shard_beat(self, index: int) -> HeartbeatAnswer:
        stats = ShardStats(index=index, ready=True, lsn=5, pushes=3)
        secret = self.job.keeper.secret("shard", index, 1)
        beat = Heartbeat(role="shard", id=index, incarnation=1, secret=secret, epoch=1, shard=stats)
        answer: HeartbeatAnswer = await self.post("/v1/heartbeat", beat)
        return answer

    async def work(self, units: int = 99) -> None:
        """The replica computes up to so many units, as many as there are."""
        for _ in range(units):
            answer = await self.lease()
            if not answer.units:
                return
            (unit,) = answer.units
            done = Completion(
                pass_index=unit.pass_index, unit=unit.unit, lease=unit.lease, samples=4, loss=0.5
            )
            complete = Complete(replica=1, incarnation=1, secret=self.secret, units=[done])
            await self.post("/v1/complete", complete)

    async def lease(self, replica: int = 1) -> LeaseAnswer:
        secret = self.job.replica_keeper.secret("replica", replica, 1)
        request = LeaseRequest(replica=replica, incarnation=1, secret=secret)
        answer: LeaseAnswer = await self.post("/v1/lease", request)
        return answer

    async def leave(self) -> None:
        stats = ReplicaStats(steps=4, samples=16, units=4, pushes_sent=3, pushes_acked=3)
        leave = Leave(replica=1, incarnation=1, secret=self.secret, stats=stats)
        await self.post("/v1/leave", leave)

    async def beat_to_the_end(self) -> dict[str, Any]:
        """Shards send heartbeats until the service has returned."""
        assert self.running is not None
        while not self.running.done():
            await self.shard_beat(0)
            await self.shard_beat(1)
            await asyncio.sleep(0)
        return await self.running

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.disk.files["run/events.jsonl"].splitlines()]


def packed(job: Job) -> Flat:
    """All initial parameters end to end."""
    arrays = [np.ravel(job.parameters[spec.name]) for spec in job.layout.arrays]
    return np.concatenate(arrays).astype(np.float32)


def drained(body: FrameBody) -> bytes:
    """All of an answer's bytes."""
    return b"".join(b"".join(buffers) for buffers in iter(body.produce, None))


async def until(reached: Callable[[], bool]) -> None:
    """Let the loop run until something is so; the test's timeout is its patience."""
    while not reached():
        await asyncio.sleep(0.001)


async def test_a_whole_job_from_hello_to_report() -> None:
    job = make_job(work=Work(8, unit=4, passes=2))
    seen: list[float] = []

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        assert parameters["w"].shape == (64,)
        assert parameters["b"].shape == ()
        seen.append(float(parameters["b"]))
        return {"accuracy": 0.25 * len(seen), "loss": 1.0}

    house = House(job)
    await house.begin()
    await house.work(2)
    await until(lambda: len(house.job.progress.evaluations) == 1)
    await house.work()
    assert (await house.lease()).done
    await house.leave()
    report = await house.beat_to_the_end()

    assert report["state"] == "done"
    assert house.job.are_parameters_secured
    assert report["accuracy"] == 0.25 * len(seen)
    assert [e["passes"] for e in report["evaluations"]] == [1, 2]
    assert (report["samples"], report["units"], report["passes"]) == (16, 4, 2)
    assert report["pushes"]["sent"] == report["pushes"]["applied"] == 3
    assert [s["lsn"] for s in report["shards"]] == [12, 5], "asked last, or as last heard"
    assert report["replicas"][0]["state"] == "left"
    assert report["storage"] == "ok"
    stored = house.disk.files
    assert json.loads(stored["run/report.json"]) == json.loads(messages._encoder.encode(report))
    kept = safetensors.numpy.load(stored["run/parameters.safetensors"])
    assert kept["b"].item() == seen[-1] == house.shards.reads
    kinds = [event["event"] for event in house.events()]
    for kind in ("start", "shard", "shard ready", "join", "pass", "evaluation", "leave", "end"):
        assert kind in kinds
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert "run/events.jsonl" in house.disk.synced
    status: Status = await house.ask("GET", "/v1/status")
    assert status.report == {k: v for k, v in report.items() if k not in view.ROWS}
    assert status.run_folder == "run"
    assert await house.ask("GET", "/healthz") == "ok"


async def test_the_end_waits_for_goodbyes_so_that_counts_are_final() -> None:
    house = House()
    await house.begin()
    await house.work()
    assert house.job.state == "evaluating"
    for _ in range(20):
        await asyncio.sleep(0)
    assert house.shards.reads == 0, "replica 1 may still push what it has accrued"
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["replicas"][0]["steps"] == 4


async def test_patience_with_a_replica_that_does_not_leave_ends() -> None:
    house = House(leave_patience_s=0.01, notice_s=0.01)
    await house.begin()
    await house.work()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert report["replicas"][0]["state"] == "live"


async def test_a_slow_evaluation_skips_passes_but_never_the_last() -> None:
    job = make_job(work=Work(4, unit=4, passes=6))
    gate, entered = threading.Event(), threading.Event()
    calls: list[float] = []

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        calls.append(float(parameters["b"]))
        entered.set()
        gate.wait()
        return 0.5

    house = House(job)
    await house.begin()
    await house.work(1)
    await until(entered.is_set)
    await house.work()
    await house.leave()
    gate.set()
    report = await house.beat_to_the_end()
    assert [e["passes"] for e in report["evaluations"]] == [1, 6]
    assert report["accuracy"] == 0.5
    assert calls == [1.0, 2.0]


async def test_an_async_evaluation_that_computes_stops_nobody() -> None:
    job = make_job(work=Work(4, unit=4, passes=2))
    gate, entered = threading.Event(), threading.Event()
    threads = []

    @job.evaluate
    async def evaluate(parameters: dict[str, Any]) -> float:
        threads.append(threading.current_thread())
        await asyncio.sleep(0)  # a loop is there to be used
        entered.set()
        gate.wait()  # as a computation would: the thread does nothing else
        return 0.5

    house = House(job)
    await house.begin()
    await house.work(1)
    await until(entered.is_set)
    await house.work()  # the coordinator goes on lending and recording
    await house.leave()
    gate.set()
    report = await house.beat_to_the_end()
    assert report["accuracy"] == 0.5
    assert threading.current_thread() not in threads


async def test_evaluations_see_the_declared_dtypes() -> None:
    job = Job(
        parameters={
            "b": np.float32(7),
            "double": np.zeros((2, 3)),
            "half": np.zeros(2, np.float16),
            "w": np.zeros(64, np.float32),
        },
        optimizer=SGD(lr=1.0),
        data=Work(4, unit=4),
    )
    seen: dict[str, tuple[str, tuple[int, ...]]] = {}

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        seen.update({name: (a.dtype.name, a.shape) for name, a in parameters.items()})
        return 1.0

    house = House(job)
    await house.begin()
    await house.work()
    await house.leave()
    _ = await house.beat_to_the_end()
    assert seen == {
        "b": ("float32", ()),
        "double": ("float64", (2, 3)),
        "half": ("float16", (2,)),
        "w": ("float32", (64,)),
    }


async def test_no_parameters_are_held_between_two_evaluations() -> None:
    job = make_job(work=Work(4, unit=4, passes=3))
    live: list[weakref.ref[Flat]] = []

    class Once(FakeShards):
        """Nobody has what was read before when it is read again."""

        async def parameters(self, *arguments: Any, last: bool = False) -> Flat:
            # The evaluation's thread may still be on its way out of the function it returned from.
            await until(lambda: all(ref() is None for ref in live))
            flat = await super().parameters(*arguments, last=last)
            live.append(weakref.ref(flat))
            return flat

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        return 1.0

    house = House(job, shards=Once())
    await house.begin()
    evaluations = house.job.progress.evaluations
    await house.work(1)
    await until(lambda: len(evaluations) == 1)
    await house.work(1)
    await until(lambda: len(evaluations) == 2)
    await house.work()
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert [e["passes"] for e in report["evaluations"]] == [1, 2, 3]


async def test_the_final_parameters_wait_for_an_evaluation_that_still_looks_at_others() -> None:
    job = make_job(work=Work(4, unit=4, passes=2))
    gate, entered = threading.Event(), threading.Event()

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        entered.set()
        gate.wait()
        return 1.0

    house = House(job)
    await house.begin()
    await house.work(1)
    await until(entered.is_set)
    await house.work()
    await house.leave()
    for _ in range(20):
        await asyncio.sleep(0)
    assert house.shards.reads == 1
    gate.set()
    report = await house.beat_to_the_end()
    assert [e["passes"] for e in report["evaluations"]] == [1, 2]


@pytest.mark.parametrize("why", ["patience", "a stop"])
async def test_but_not_for_long(why: str) -> None:
    job = make_job(work=Work(4, unit=4, passes=2))
    gate, entered = threading.Event(), threading.Event()

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        entered.set()
        gate.wait()
        return 1.0

    house = House(job, evaluation_patience_s=0.01 if why == "patience" else 60.0)
    await house.begin()
    await house.work(1)
    await until(entered.is_set)
    await house.work()
    await house.leave()
    if why == "a stop":
        _ = await house.post("/v1/stop", Stop())
    await until(lambda: "run/parameters.safetensors" in house.disk.files)
    gate.set()
    assert (await house.beat_to_the_end())["state"] == "done"


async def test_an_evaluation_that_still_reads_when_the_job_ends_is_dropped() -> None:
    job = make_job(work=Work(4, unit=4, passes=2))
    reading = asyncio.Event()
    cancelled: list[int] = []

    class Slow(FakeShards):
        """The first read never ends by itself."""

        async def parameters(self, *arguments: Any, last: bool = False) -> Flat:
            flat = await super().parameters(*arguments, last=last)
            if self.reads == 1:
                reading.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(self.reads)
            return flat

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        return float(parameters["b"])

    house = House(job, shards=Slow())
    await house.begin()
    await house.work(1)
    await reading.wait()
    await house.work()
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert cancelled == [1], "before the final parameters were read"
    assert report["metrics"] == {"accuracy": 2.0}


async def test_initial_parameters_are_dropped_when_every_shard_has_its_own() -> None:
    job = make_job(work=Work(4, unit=4))
    array = weakref.ref(job.parameters["w"])
    house = House(job, loaded=job.forget_parameters)
    await house.begin()
    assert array() is None
    with pytest.raises(ClosedError, match="no longer has its initial parameters"):
        _ = job.parameters
    await house.work()
    await house.leave()
    assert (await house.beat_to_the_end())["state"] == "done"


async def test_an_evaluation_that_raises_is_shown_and_fails_nothing() -> None:
    job = make_job(work=Work(4, unit=4, passes=1))

    @job.evaluate
    def evaluate(parameters: dict[str, Any]) -> float:
        return 1 / 0

    house = House(job)
    await house.begin()
    await house.work()
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert "accuracy" not in report
    (error,) = report["evaluation_errors"]
    assert error.startswith("evaluation after pass 1: ZeroDivisionError: division by zero (")
    assert "test_coordinator_service.py" in error
    assert error in report["reason"]
    assert "evaluation failed" in [event["event"] for event in house.events()]


@pytest.mark.parametrize(
    ("result", "metrics", "dropped"),
    [
        (0.5, {"accuracy": 0.5}, []),
        (np.float32(0.5), {"accuracy": 0.5}, []),
        (np.array(2), {"accuracy": 2.0}, []),
        ({"loss": 1, "x": np.float64(2)}, {"loss": 1.0, "x": 2.0}, []),
        ({"loss": float("nan"), "x": 1}, {"x": 1.0}, ["loss=nan"]),
        ({}, {}, []),
    ],
)
def test_what_evaluations_may_return(
    result: object, metrics: dict[str, float], dropped: list[str]
) -> None:
    assert metrics_of(result) == (metrics, dropped)


@pytest.mark.parametrize("result", [None, "0.5", {"a": "1"}, {1: 1.0}, [1.0, 2.0], {"a": None}])
def test_what_evaluations_may_not_return(result: object) -> None:
    with pytest.raises(TypeError, match="evaluate returned"):
        metrics_of(result)


async def test_the_final_parameters_are_asked_for_again() -> None:
    house = House(heartbeat_s=0.001)
    house.shards.failures = 1
    await house.begin()
    await house.work()
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert house.shards.reads == 2


async def test_parameters_that_cannot_be_read_are_waited_for_and_that_is_said() -> None:
    house = House(request_timeout_s=0.0, heartbeat_s=0.001)
    house.shards.failures = 100
    await house.begin()
    await house.work()
    await house.leave()
    await until(lambda: 0 < house.shards.failures < 90)
    assert (await house.shard_beat(0)).state == "evaluating", "shards are kept alive"
    status: Status = await house.ask("GET", "/v1/status")
    assert "parameters that cannot be read (shard 0 is away)" in status.reason
    report = await house.beat_to_the_end()
    assert (report["state"], report["parameters_missing"]) == ("done", [])
    assert "run/parameters.safetensors" in house.disk.files


@pytest.mark.parametrize("lost", [(), (1,), (0, 1)], ids=["none lost", "one lost", "all lost"])
async def test_an_operator_who_gives_up_keeps_what_can_be_read(lost: tuple[int, ...]) -> None:
    house = House(request_timeout_s=0.0, heartbeat_s=0.001)
    house.shards.failures, house.shards.lost = 1000_000, lost
    await house.begin()
    await house.work()
    await house.leave()
    await until(lambda: house.shards.failures < 1000_000)
    assert house.running is not None
    house.running.cancel()
    report = await house.beat_to_the_end()
    assert report["state"] == "failed"
    assert "could not read the final parameters: shard 0 is away" in report["reason"]
    assert json.loads(house.disk.files["run/report.json"])["state"] == "failed"
    missing = [(part["shard"], part["why"]) for part in report["parameters_missing"]]
    assert missing == [(index, f"shard {index} is away") for index in lost]
    whole, partial = ("run/parameters.safetensors", "run/parameters.partial.safetensors")
    assert (whole in house.disk.files) == (lost == ())
    assert (partial in house.disk.files) == (lost == (1,))
    if lost == (1,):
        kept = safetensors.numpy.load(bytes(house.disk.files[partial]))
        flat = np.concatenate([kept[spec.name].ravel() for spec in house.declared.layout.arrays])
        (part,) = report["parameters_missing"]
        assert np.isnan(flat[part["start"] : part["stop"]]).all()
        assert np.isfinite(flat[: part["start"]]).all()
        assert f"elements {part['start']} to {part['stop'] - 1} (w) of shard 1" in report["reason"]


async def test_a_stop_ends_early_and_keeps_what_was_trained() -> None:
    house = House(stop_patience_s=0.0)
    await house.begin()
    await house.work(1)
    answer: HeartbeatAnswer = await house.post("/v1/stop", Stop(reason="lunch"))
    assert (answer.state, answer.reason) == ("evaluating", "stopped: lunch")
    await house.work()
    assert (await house.lease()).done
    await house.leave()
    report = await house.beat_to_the_end()
    assert (report["state"], report["reason"]) == ("stopped", "stopped: lunch")
    assert report["samples"] == 4
    assert report["audit"] == []
    assert "run/parameters.safetensors" in house.disk.files


async def test_a_stop_before_any_shard_reads_nothing() -> None:
    house = House()
    running = asyncio.create_task(house.service.run())
    await house.post("/v1/stop", Stop())
    report = await running
    assert report["reason"] == "stopped"
    assert house.shards.reads == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_full_disk_does_not_end_training(code: int) -> None:
    disk = FakeDisk()
    disk.break_with(code)
    house = House(disk=disk)
    await house.begin()
    await house.work()
    await house.leave()
    report = await house.beat_to_the_end()
    assert report["state"] == "done"
    assert errno.errorcode[code] in report["storage"]
    assert disk.files == {}


async def test_interrupted_it_stops_in_order_and_tells_everybody() -> None:
    house = House(stop_patience_s=0.0)
    await house.begin()
    await house.work(1)
    assert house.running is not None
    house.running.cancel("stopped by SIGINT")
    await asyncio.sleep(0)
    assert (await house.lease()).done
    await house.leave()
    report = await house.beat_to_the_end()
    assert (report["state"], report["reason"]) == ("stopped", "stopped by SIGINT")
    assert report["units"] == 1
    assert "run/parameters.safetensors" in house.disk.files
    assert house.job.everyone_knows()


async def test_interrupted_twice_it_keeps_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    house.shards.failures = 1000_000
    await house.begin()
    await house.work(1)
    assert house.running is not None
    house.running.cancel("interrupted")
    await asyncio.sleep(0)
    house.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await house.running
    kept = json.loads(house.disk.files["run/report.json"])
    assert (kept["state"], kept["reason"], kept["units"]) == ("failed", "interrupted", 1)
    assert house.events()[-1]["event"] == "end"
    left = [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert left == []


async def test_a_fault_of_our_own_ends_the_job_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()

    def broken(now: float) -> None:
        raise ValueError("boom")

    monkeypatch.setattr(house.job, "tick", broken)
    report = await house.service.run()
    assert report["state"] == "failed"
    assert report["reason"] == "internal error in sweep: ValueError('boom')"


async def test_waits_are_spread_by_the_injected_randomness() -> None:
    house = House()
    await house.begin()
    for _ in range(4):
        await house.lease()
    await house.post("/v1/join", Join())
    waits = set()
    for _ in range(5):
        answer = await house.lease(2)
        assert answer.units == []
        waits.add(answer.wait_s)
        assert 0.75 <= answer.wait_s / limits.DEFAULT.lease_retry_s <= 1.25
    assert len(waits) == 5
    assert house.running is not None
    house.running.cancel()
    await asyncio.gather(house.running, return_exceptions=True)


@pytest.mark.parametrize("shard", ["", "x", "-1", "²", "2"])
async def test_initial_parameters_of_no_shard(shard: str) -> None:
    with pytest.raises(RemoteProtocolError):
        await House().ask("GET", "/v1/initial", shard=shard)


async def test_initial_parameters_go_only_to_shards_that_said_hello() -> None:
    house = House()
    with pytest.raises(Fenced, match="has no place"):
        await house.ask("GET", "/v1/initial", shard="0")
    await house.begin()
    secret = house.job.keeper.secret("shard", 0, 1)
    with pytest.raises(ConfigError, match="the job runs"):
        await house.ask("GET", "/v1/initial", shard="0", secret=secret)
    for secret in ("", "0" * 64, house.secret, house.job.keeper.secret("shard", 1, 1)):
        with pytest.raises(AuthError):
            await house.ask("GET", "/v1/initial", shard="0", secret=secret)
    assert house.running is not None
    house.running.cancel()
    await asyncio.gather(house.running, return_exceptions=True)


@pytest.mark.parametrize("path", ["/v1/join", "/v1/lease", "/v1/heartbeat", "/v1/shard"])
async def test_malformed_bodies_are_protocol_errors(path: str) -> None:
    for body in (b"", b"{", b"[]", b'{"replica": "x", "name": 3}'):
        with pytest.raises(RemoteProtocolError, match=r"bad .* message"):
            await House().ask("POST", path, body)


@pytest.mark.parametrize(("error", "kind"), [
    (ConfigError("a certificate we do not trust"), ConfigError),
    (AuthError("the token is wrong"), ConfigError),
    (ConnectFailed("nobody there"), NotReady),
])  # fmt: skip
async def test_a_shard_that_cannot_be_read_where_it_says_is_refused_at_once_in_words(
    error: DownpourError, kind: type[DownpourError]
) -> None:
    house = House()
    house.shards.unreadable = error
    with pytest.raises(kind, match=f"must be able to read from a shard, .*http://0: {error}"):
        await house.post("/v1/shard", ShardHello(url="http://0", nonce="0"))
    assert house.job.places.get(0).state == "missing"
    house.shards.unreadable = None
    assert (await house.post("/v1/shard", ShardHello(url="http://0", nonce="0"))).index == 0


async def test_nobody_is_called_for_an_offer_that_has_no_place() -> None:
    house = House()
    await house.begin()
    house.shards.checked.clear()
    for index in (None, 0, 5):
        with pytest.raises(ConfigError, match=r"all there|has that place|outside this job"):
            await house.post("/v1/shard", ShardHello(url="http://elsewhere", index=index))
    assert house.shards.checked == [], "whoever has the token could send it, and us, anywhere"
    assert house.running is not None
    house.running.cancel()
    await asyncio.gather(house.running, return_exceptions=True)


async def test_on_a_real_socket_it_announces_its_url_and_a_bad_folder_stops_it_first() -> None:
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    disk = FakeDisk()
    options: dict[str, Any] = {
        "shards": 1,
        "bind": Bind(),
        "access": Access(),
        "run_folder": "run",
        "random": random.Random(0),
        "files": disk,
        "reader": FakeShards(),
    }
    serving = asyncio.create_task(
        serve_coordinator(make_job(), announce=heard.set_result, **options)
    )
    assert (await heard).startswith("http://127.0.0.1:")
    serving.cancel()
    assert (await serving)["reason"] == "interrupted"
    disk.break_with(errno.EROFS)
    with pytest.raises(ConfigError, match="cannot make the run folder run"):
        await serve_coordinator(make_job(), announce=lambda url: None, **options)
