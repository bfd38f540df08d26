"""``dp.simulate``: reports, plain functions, seeds."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour.errors import ConfigError
from pydownpour.sim.machines.process import SimProcess
from pydownpour.sim.report import first_difference, is_good, verdict
from pydownpour.sim.trace import Trace
from pydownpour.sim.world import swarm
from pydownpour.sim.world.world import World
from pydownpour.testing import Check, audit_report

LENGTH = 50
STEPS = 40
ONES = {"w": np.full(LENGTH, -1.0, np.float32)}


def counting_job(*, plain: bool, ends: list[str] | None = None, units: int = 10) -> dp.Job:
    """Every parameter counts the steps; the loss is a global random number."""
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        data=dp.Work(4 * units, unit=4),
    )

    def plain_train(replica: dp.BlockingReplica) -> None:
        try:
            for unit in replica.work():
                for _ in unit.batches(1):
                    replica.step(ONES, loss=random.random() + float(np.random.rand()))
            replica.fetch()
        finally:
            if ends is not None:
                ends.append(threading.current_thread().name)

    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ONES, loss=random.random() + float(np.random.rand()))
        await replica.fetch()

    function: Callable[..., Any] = plain_train if plain else train
    job.replica(function)

    @job.evaluate
    def total(parameters: dict[str, Any]) -> float:
        return float(parameters["w"].sum())

    return job


def test_the_report_is_a_real_run_s_and_more() -> None:
    report = dp.simulate(counting_job(plain=False), replicas=3, shards=2, seed=5)
    assert is_good(report)
    assert verdict(report) == "ok"
    assert (report["job"], report["state"], report["units"]) == ("job", "done", 10)
    assert report["pushes"]["sent"] == report["pushes"]["applied"] == STEPS
    assert report["metrics"] == {"accuracy": STEPS * LENGTH}  # a bare number is called that
    assert sum(report["staleness"]["histogram"].values()) == STEPS
    assert [len(report[name]) for name in ("replicas", "shards")] == [3, 2]
    times = [at_s for at_s, _, _ in report["losses"]]
    assert times == sorted(times)
    assert 0 < times[-1] < report["virtual_s"]
    assert report["seed"] == 5
    assert report["messages"] > 100
    assert report["settings"]["link"]["latency_s"] == dp.LinkModel().latency_s
    json.dumps(report)


def test_an_async_evaluation_works_and_is_repeatable() -> None:
    def run() -> dict[str, Any]:
        job = counting_job(plain=False)
        job._evaluation = None

        @job.evaluate
        async def total(parameters: dict[str, Any]) -> float:
            await asyncio.sleep(0)
            return float(parameters["w"].sum()) + random.random()

        return dp.simulate(job, replicas=2, shards=1, seed=3)

    first, second = run(), run()
    assert is_good(first)
    assert STEPS * LENGTH <= first["metrics"]["accuracy"] < STEPS * LENGTH + 1
    assert first["metrics"] == second["metrics"]


def corrupt_job(*, corrupt: Container[int] = (5,), plain: bool = False, **settings: Any) -> dp.Job:
    """A job some of whose samples raise."""
    job = dp.Job(
        parameters={"w": np.zeros(40, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        data=dp.Work(20, unit=2, shuffle=False),
        **settings,
    )

    def gradient(unit: dp.Unit) -> dict[str, Any]:
        if any(int(sample) in corrupt for sample in unit.indices):
            raise ValueError("corrupt")
        return {"w": np.zeros(40, np.float32)}

    def train(replica: Any) -> None:
        for unit in replica.work():
            replica.step(gradient(unit))

    async def train_async(replica: dp.Replica) -> None:
        async for unit in replica.work():
            await replica.step(gradient(unit))

    job.replica(train if plain else train_async)
    return job


@pytest.mark.parametrize("faults", ["calm", "kill", "reset"])
def test_a_plain_function_runs_the_same_run(faults: str) -> None:
    """Also under faults, event by event: a thread is no excuse."""
    settings: dict[str, Any] = {"replicas": 3, "seed": 3, "faults": faults}
    reports = [dp.simulate(counting_job(plain=plain), **settings) for plain in (False, True, True)]
    assert len({report["trace_hash"] for report in reports}) == 1
    assert len({str(report["losses"]) for report in reports}) == 1
    assert all(map(is_good, reports))


def test_a_killed_plain_function_is_unwound_when_the_world_ends() -> None:
    ends: list[str] = []
    job = counting_job(plain=True, ends=ends, units=400)
    compute = dp.ComputeModel(base_s=0.02)
    report = dp.simulate(job, replicas=3, seed=1, faults="kill", compute=compute)
    assert is_good(report)
    assert report["restarts"] > 0
    assert len(ends) == 3 + report["restarts"]  # every thread ran its finally
    assert not [t for t in threading.enumerate() if t.name.startswith("simulated")]


def test_what_a_plain_function_raises_is_the_replica_s_failure() -> None:
    job = counting_job(plain=True)
    job._train = lambda replica: 1 / 0
    said: list[str] = []
    report = dp.simulate(job, replicas=1, virtual_s_max=30, say=said.append)
    assert not is_good(report)
    assert report["state"] == "failed"
    assert report["user_errors"] == said
    (words,) = said
    assert "ZeroDivisionError: division by zero (test_sim_api.py:" in words
    assert "job._train = lambda replica: 1 / 0" in words, "the user's own line"
    assert "During handling of" not in words
    assert "That is the third time in a row" in report["failure"]
    assert report["restarts"] == 2


@pytest.mark.parametrize("plain", [True, False])
def test_a_corrupt_sample_ends_a_simulated_job_as_it_does_a_real_one(plain: bool) -> None:
    report = dp.simulate(corrupt_job(plain=plain), replicas=3, virtual_s_max=60)
    assert report["state"] == "failed"
    assert "unit 2 of pass 1 (places 4 to 5 of the pass's order)" in report["failure"]
    assert "ValueError: corrupt (test_sim_api.py:" in report["failure"]
    (words,) = report["user_errors"]
    assert "at unit 2 of pass 1" in words
    assert report["violations"] == [f"the job ends well: {report['failure']}"]


@pytest.mark.parametrize("faults", ["calm", "kill", "partition", "churn"])
@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_job_that_skips_it_goes_on_without_the_unit(faults: str, seed: int) -> None:
    compute = dp.ComputeModel(base_s=0.3)
    report = dp.simulate(
        corrupt_job(on_error="skip"), replicas=3, seed=seed, faults=faults, compute=compute
    )
    assert is_good(report), report["failure"]
    assert report["units"] == 9
    assert [aside["unit"] for aside in report["units_aside"]] == [2]


def test_code_that_is_broken_ends_the_job_even_where_units_are_skipped() -> None:
    job = corrupt_job(on_error="skip", corrupt=range(20))
    report = dp.simulate(job, replicas=3, virtual_s_max=600)
    assert report["state"] == "failed"
    assert "units_aside_in_a_row_max" in report["failure"]


def test_another_seed_is_another_run_and_the_same_is_the_same() -> None:
    job = counting_job(plain=False)
    hashes = [dp.simulate(job, seed=seed)["trace_hash"] for seed in (1, 2, 1)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_global_randomness_follows_the_seed_and_is_put_back() -> None:
    job = counting_job(plain=False)
    random.seed(7)
    np.random.seed(7)
    expected = (random.random(), np.random.rand())
    random.seed(7)
    np.random.seed(7)
    one = dp.simulate(job, seed=1)["losses"]
    assert (random.random(), np.random.rand()) == expected
    assert dp.simulate(job, seed=1)["losses"] == one != dp.simulate(job, seed=2)["losses"]


def test_links_and_compute_take_their_time() -> None:
    job = counting_job(plain=False)
    fast = dp.simulate(job, replicas=1)["seconds"]
    far = dp.simulate(job, replicas=1, links=dp.LinkModel(latency_s=0.2))["seconds"]
    slow = dp.simulate(job, replicas=1, compute=dp.ComputeModel(base_s=1.0, jitter=0.0))["seconds"]
    assert fast < far
    assert slow == pytest.approx(STEPS * 1.0001, rel=0.1)


def test_machines_may_be_unequal() -> None:
    far = dp.LinkModel(latency_s=0.2, jitter=0.0)
    job = counting_job(plain=False)
    alike, unlike = (
        dp.simulate(job, replicas=2, links=links)
        for links in (dp.LinkModel(jitter=0.0), {"replica-1": far})
    )
    by_name = {replica["name"]: replica["units"] for replica in unlike["replicas"]}
    assert by_name["replica-0"] > 2 * by_name["replica-1"]
    assert unlike["seconds"] > alike["seconds"]
    assert unlike["settings"]["own_links"]["replica-1"]["latency_s"] == 0.2
    role = dp.simulate(job, replicas=1, links={"replica": far})["seconds"]
    assert role > dp.simulate(job, replicas=1, links={"replica-9": far})["seconds"]
    with pytest.raises(ConfigError, match="no host is called 'worker-1'"):
        dp.simulate(job, links={"worker-1": far})


@pytest.mark.parametrize("slow", ["bytes_per_s", "down_bytes_per_s"])
def test_a_link_has_two_directions(slow: str) -> None:
    job = counting_job(plain=False)
    link = dp.LinkModel(**{slow: 1e4})  # type: ignore[arg-type]
    report = dp.simulate(job, replicas=1, links={"replica": link})
    assert is_good(report), verdict(report)
    assert report["seconds"] > dp.simulate(job, replicas=1)["seconds"]


@pytest.mark.parametrize(
    "wrong", [{"bytes_per_s": 0.0}, {"latency_s": -1.0}, {"jitter": 2.0}, {"slices_max": 0}]
)
def test_impossible_links_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dp.LinkModel(**wrong)  # type: ignore[arg-type]


def test_checks_of_ones_own_are_asked_too() -> None:
    class Asked(Check):
        name = "asked"

        def look(self) -> Iterator[str]:
            yield f"{len(self.shards())} shards"

        def end(self) -> Iterator[str]:
            yield "and at the end"

    violations = dp.simulate(counting_job(plain=False), shards=2, checks=[Asked])["violations"]
    assert violations[-2:] == ["asked: 2 shards", "asked: and at the end"]


def test_an_audit_adds_up_a_report() -> None:
    report = dp.simulate(counting_job(plain=False), replicas=2, shards=2)
    assert audit_report(report) == []
    report["pushes"]["acked"] += 1
    report["replicas"][0]["units"] -= 1
    words = audit_report(report)
    assert [line.split(":")[0].split(" were")[0] for line in words] == ["replicas", "units"]
    assert audit_report({**report, "state": "failed"}) == []


def test_a_job_far_longer_than_any_patience_is_no_hang() -> None:
    report = dp.simulate(
        counting_job(plain=False), replicas=1, compute=dp.ComputeModel(base_s=20.0, jitter=0.0)
    )
    assert is_good(report), verdict(report)
    assert report["virtual_s"] > 800


def test_a_timing_only_run_computes_and_judges_nothing() -> None:
    job = counting_job(plain=False)
    job._train = None
    report = dp.simulate(job, replicas=3, timing_only=True)
    assert is_good(report)
    assert (report["units"], report["metrics"]) == (10, {})
    with pytest.raises(ConfigError, match=r"@job\.replica"):
        dp.simulate(job)


def test_budgets_turn_a_long_run_into_a_failure_in_words() -> None:
    report = dp.simulate(counting_job(plain=False), virtual_s_max=0.1)
    assert "virtual seconds" in report["failure"]
    assert "virtual seconds" in verdict(report)
    assert (report["state"], report["job"]) == ("failed", "job")
    assert "500 events" in dp.simulate(counting_job(plain=False), events_max=500)["failure"]


def test_no_proxy_of_the_environment_reaches_into_a_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = dp.simulate(counting_job(plain=False))["trace_hash"]
    monkeypatch.setenv("http_proxy", "http://gate.example:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    assert dp.simulate(counting_job(plain=False))["trace_hash"] == expected
    assert os.environ["no_proxy"] == "near.example"


def test_the_run_folder_can_be_kept(tmp_path: Path) -> None:
    report = dp.simulate(counting_job(plain=False), run_folder=tmp_path / "run")
    parameters = safetensors.numpy.load_file(tmp_path / "run" / "parameters.safetensors")
    np.testing.assert_array_equal(parameters["w"], float(STEPS))
    kept = json.loads((tmp_path / "run" / "report.json").read_text())
    assert kept["pushes"] == report["pushes"]
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(events[0])["event"] == "start"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        dp.simulate(counting_job(plain=False), run_folder=tmp_path / "file")
    with pytest.raises(ConfigError, match="already holds a run"):
        dp.simulate(counting_job(plain=False), run_folder=tmp_path / "run")


def test_lines_align_and_say_when_what_who() -> None:
    lines: list[str] = []
    report = dp.simulate(counting_job(plain=False), faults="kill", seed=2, trace=lines.append)
    assert len(lines) > report["messages"]
    assert {line[14:].split()[0] for line in lines} >= {"start", "connect", "message", "exit"}
    assert all(line[12:14] == "  " and float(line[:12]) >= 0 for line in lines)


def test_where_two_runs_part_is_shown() -> None:
    traces = [Trace(keep=True) for _ in range(3)]
    job = counting_job(plain=False)
    for trace, seed in zip(traces, (1, 1, 2), strict=True):
        dp.simulate(job, seed=seed, trace=trace)
    one, same, other = [trace.kept or [] for trace in traces]
    assert first_difference(one, same) == ""
    words = first_difference(one, other).splitlines()
    assert words[0].startswith("the runs differ from event")
    assert words[1].split()[0] == "both"
    assert words[2].split(maxsplit=1)[1] != words[3].split(maxsplit=1)[1]
    assert "(the end)" in first_difference(one, one[:-1])


async def test_it_works_where_a_loop_runs_already() -> None:
    """As in a notebook."""
    job = counting_job(plain=True)
    report = dp.simulate(job, seed=4)
    elsewhere = await asyncio.to_thread(dp.simulate, job, seed=4)
    assert report["trace_hash"] == elsewhere["trace_hash"]
    with pytest.raises(ConfigError, match="no fault plan"):
        dp.simulate(job, faults="nope")


@pytest.mark.parametrize("at", [0.05, 0.08, 0.4, 1.1])
def test_a_world_that_is_cut_off_ends_in_order(at: float) -> None:
    """Whatever goes wrong in it: nothing strikes any more, and each frame that is left ends.

    What is not ended says so when the collector finds it, and then this test fails.
    """
    for seed in range(3):
        world = swarm.synced(seed, "swarm")
        processes: list[SimProcess] = []

        def interrupt(world: World = world, found: list[SimProcess] = processes) -> None:
            found += [*world.processes.graveyard, *world.processes.alive]
            world.loop.is_interrupted = True

        world.loop.at(at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.run()
        assert world.failure == "stopped by SIGINT"
        assert processes
        assert not any(process.tasks for process in processes)
        del world, processes, interrupt
        gc.collect()


def test_ctrl_c_says_what_there_is() -> None:
    """Between two turns of the loop, and the handler is as it was before."""
    before, lines = signal.getsignal(signal.SIGINT), list[str]()

    def press(line: str) -> None:
        lines.append(line)
        if len(lines) == 100:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        dp.simulate(counting_job(plain=False), trace=press)
    assert signal.getsignal(signal.SIGINT) is before
    assert stopped.value.report["state"] == "stopped"  # type: ignore[attr-defined]
