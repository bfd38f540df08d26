"""Shards move between processes while replicas train: real services, real sockets."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pydownpour as dp
from pydownpour.optimizers import Part
from tests.e2e.stage import Stage, ones


def events(stage: Stage, kind: str) -> list[dict[str, object]]:
    """What happened of a kind, from the run folder."""
    lines = (stage.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("replicas", [1, 3])
async def test_shards_move_while_replicas_train_and_each_push_counts_once(
    replicas: int, tmp_path: Path
) -> None:
    """They push for as long as shards move."""
    job = dp.Job(
        parameters={"w": np.zeros(3000, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        name="moving",
    )
    moved, steps = asyncio.Event(), 0

    @job.replica
    async def train(replica: dp.Replica) -> None:
        nonlocal steps
        while not moved.is_set():
            steps += 1
            await replica.step(ones(job, -1.0), loss=1.0)

    async with Stage(job, tmp_path / "run") as stage:
        training = [asyncio.create_task(stage.replica()) for _ in range(replicas)]
        while steps < 10 * replicas:
            await asyncio.sleep(0.01)
        for index in (0, 1, 0):
            before = steps
            await stage.move(index)
            while steps == before:
                await asyncio.sleep(0.01)
        moved.set()
        await asyncio.gather(*training)
    np.testing.assert_array_equal(stage.parameters()["w"], float(steps))
    assert stage.report["pushes"]["acked"] == stage.report["pushes"]["applied"] == steps
    assert stage.report["state"] == "done"
    assert [(e["shard"], e["epoch"]) for e in events(stage, "moved")] == [(0, 2), (1, 3), (0, 4)]


async def test_everything_a_shard_has_comes_along(tmp_path: Path) -> None:
    """Adam, moved in the middle, ends where it ends without a move: to the bit."""
    fresh = functools.partial(trained, dp.Adam(lr=0.1), fetch_every=1)
    stayed = await fresh(tmp_path / "stays", moves=0)
    np.testing.assert_array_equal(await fresh(tmp_path / "moves", moves=2), stayed)


async def test_so_do_the_versions_that_what_is_in_flight_was_computed_from(tmp_path: Path) -> None:
    """Gradients that are up to three updates old, or older than what is kept."""
    looks_back = dp.chain(
        dp.DelayCompensated(1.0, history=2), dp.GapAware(history=2), dp.Adam(lr=0.1)
    )
    stale = functools.partial(trained, looks_back, fetch_every=4)
    stayed = await stale(tmp_path / "stays", moves=0)
    np.testing.assert_array_equal(await stale(tmp_path / "moves", moves=2), stayed)
    # It matters: without what the parts look back at, it ends elsewhere.
    plain = await trained(dp.Adam(lr=0.1), tmp_path / "plain", fetch_every=4, moves=0)
    assert not np.array_equal(plain, stayed)
    shards = json.loads((tmp_path / "moves" / "report.json").read_text())["shards"]
    # Of twenty steps, those that are three behind: one in four.
    assert [shard["bases_gone"] for shard in shards] == [5 * fragments(shard) for shard in shards]


def fragments(shard: dict[str, Any]) -> int:
    """Each push has as many records as its shard has fragments, and each record its LSN."""
    return int(shard["lsn"]) // 20


async def trained(
    optimizer: Part, folder: Path, *, fetch_every: int, moves: int
) -> NDArray[np.float32]:
    """Parameters after twenty steps of one replica; so many shards move after ten."""
    job = dp.Job(
        parameters={"w": np.linspace(-1.0, 1.0, 3000, dtype=np.float32)},
        optimizer=optimizer,
        policy=dp.Downpour(fetch_every=fetch_every, overlap=False),
        name="bits",
    )
    at_half, go_on = asyncio.Event(), asyncio.Event()

    @job.replica
    async def train(replica: dp.Replica) -> None:
        for step in range(20):
            if step == 10:
                at_half.set()
                await go_on.wait()
            await replica.step({"w": replica.parameters["w"] * np.float32(0.5)}, loss=1.0)

    async with Stage(job, folder) as stage:
        training = asyncio.create_task(stage.replica())
        await at_half.wait()
        for index in range(moves):
            await stage.move(index)
        go_on.set()
        await training
    return stage.parameters()["w"]
