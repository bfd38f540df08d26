"""Slips that would lose or double gradients without a word: refused at once, with words."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour import limits
from pydownpour.cli.failures import tell_engine
from pydownpour.engines.base import EXIT_USER
from pydownpour.errors import GradientMismatch, MisuseError
from tests.e2e.stage import Stage

G = {"w": np.ones(3, np.float32)}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A job without work of its own, in which every step waits for its push."""
    job = dp.Job(
        parameters={"w": np.zeros(3, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(overlap=False),
    )
    async with Stage(
        job, tmp_path / "run", shards=1, limits=limits.Limits(heartbeat_s=0.05)
    ) as stage:
        yield stage


# -- a forgotten await -----------------------------------------------------------------------------


async def test_a_step_nobody_awaits_is_an_error_at_the_next_call_and_names_its_line(
    stage: Stage,
) -> None:
    async with dp.join(stage.url) as replica:
        replica.step(G)  # type: ignore[unused-coroutine]  # the line that is named
        with pytest.raises(MisuseError, match="was never awaited") as refused:
            replica.step(G)  # type: ignore[unused-coroutine]
        words = str(refused.value)
        line = test_a_step_nobody_awaits_is_an_error_at_the_next_call_and_names_its_line
        first = line.__code__.co_firstlineno
        assert f"replica.step(...) at {__file__}:{first + 4} was never" in words
        assert "write: await replica.step(...)" in words
        await replica.step(G)


async def test_the_last_step_of_a_loop_is_no_exception(stage: Stage) -> None:
    joining = dp.join(stage.url)
    replica = await joining.__aenter__()
    await replica.step(G)
    replica.step(G)  # type: ignore[unused-coroutine]
    with pytest.raises(MisuseError, match=r"replica\.step\(\.\.\.\) at .* was never awaited"):
        await joining.__aexit__(None, None, None)


@pytest.mark.parametrize("call", ["fetch", "flush"])
async def test_fetch_and_flush_are_no_exceptions(stage: Stage, call: str) -> None:
    async with dp.join(stage.url) as replica:
        getattr(replica, call)()
        with pytest.raises(
            MisuseError, match=rf"replica\.{call}\(\.\.\.\) at .* was never awaited"
        ):
            await replica.step(G)


async def test_a_job_s_function_that_forgets_to_await_fails_and_is_no_success(
    stage: Stage,
) -> None:
    @stage.job.replica
    async def train(replica: dp.Replica) -> None:
        for _ in range(3):
            replica.step(G)  # type: ignore[unused-coroutine]

    with pytest.raises(MisuseError, match="was never awaited"):
        await stage.replica()


async def test_a_step_may_be_awaited_in_any_way(stage: Stage) -> None:
    async with dp.join(stage.url) as replica:
        await replica.step(G)
        await asyncio.create_task(replica.step(G))
        await asyncio.wait_for(replica.step(G), 60)
        await asyncio.gather(replica.step(G))
        async with asyncio.TaskGroup() as group:
            group.create_task(replica.step(G))
        later = replica.step(G)
        await later
        unwanted = asyncio.create_task(replica.step(G))
        unwanted.cancel()
        await asyncio.gather(unwanted, return_exceptions=True)
        replica.step(G).close()
        assert replica.steps == 6


# -- two at once -----------------------------------------------------------------------------------


async def test_two_tasks_in_one_replica_at_once_are_refused(stage: Stage) -> None:
    async with dp.join(stage.url) as replica:
        found = await asyncio.gather(replica.step(G), replica.step(G), return_exceptions=True)
        assert found[0] is None
        assert isinstance(found[1], MisuseError)
        assert "replica.step() was called while replica.step() of another task" in str(found[1])
        await replica.step(G)
        await replica.fetch()
        assert replica.parameters["w"].tolist() == [-2.0] * 3


async def test_two_threads_in_one_replica_at_once_are_refused(stage: Stage) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        """A gradient that takes its time."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            inside.set()
            go_on.wait()
            return G["w"]

    def train() -> None:
        with dp.join(stage.url) as replica:
            other = threading.Thread(target=replica.step, args=({"w": Slow()},))
            other.start()
            inside.wait()
            try:
                for call in (replica.step, replica.fetch, replica.flush):
                    arguments = (G,) if call == replica.step else ()
                    with pytest.raises(MisuseError, match="of another thread had not returned"):
                        call(*arguments)
            finally:
                go_on.set()
                other.join()
            replica.step(G)
            replica.fetch()
            assert replica.parameters["w"].tolist() == [-2.0] * 3

    await asyncio.to_thread(train)


# -- a forked child --------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_a_forked_child_is_refused_at_once_and_leaves_without_a_goodbye(
    stage: Stage,
) -> None:
    def refused_in_child(replica: Any, leave: Any) -> int:
        """What the child exits with; it must not return into the test."""
        code = 1
        try:
            for call in (lambda: replica.step(G), replica.fetch, replica.flush):
                try:
                    call()
                except MisuseError as error:
                    code = 0 if "was forked from the one that joined" in str(error) else 2
                else:
                    code = 3
                    break
            leave()
        finally:
            os._exit(code)

    def train() -> None:
        joining = dp.join(stage.url)
        with joining as replica:
            replica.step(G)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
                pid = os.fork()
            if pid == 0:
                refused_in_child(replica, lambda: joining.__exit__(None, None, None))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            replica.step(G)
            replica.fetch()
            assert replica.parameters["w"].tolist() == [-2.0] * 3

    await asyncio.to_thread(train)


def test_such_errors_are_shown_with_the_user_s_own_lines() -> None:
    for error in (MisuseError("x"), GradientMismatch("x")):
        assert tell_engine(None, error, users=True) == EXIT_USER
