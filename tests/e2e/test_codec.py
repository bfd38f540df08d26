"""Jobs with a codec, end to end: what shards apply is what the twin encodes, to the bit.

Blocks of 16 elements, as stripes and fragments are multiples of 16: so the twin may encode the
whole layout at once, wherever it is cut.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.optimizers import Part
from pydownpour.policy import (
    Apply,
    ClusterView,
    Decision,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    ShardRule,
)
from pydownpour.testing import FaultProxy, Faults
from tests.chaos.processes import ROOT, Command
from tests.e2e.stage import Stage
from tests.reference import codecs, optimizers
from tests.reference.codecs import Array

LENGTH = 3001
STEPS = 12
BLOCK = 16
TWIN = codecs.Int8(BLOCK)


def gradient(w: Array, step: int) -> Array:
    """A function of the parameters, of many magnitudes in each block."""
    index = np.arange(len(w), dtype=np.float32)
    values: Array = np.float32(0.25) * w + np.sin(index * np.float32(step + 1)) ** np.float32(5)
    return values


def job_of(optimizer: Part, **settings: Any) -> dp.Job:
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=optimizer,
        policy=settings.pop("policy", dp.Downpour(overlap=False)),
        data=dp.Work(STEPS, unit=STEPS, shuffle=False),
        codec=dp.Int8(block=BLOCK),
        **settings,
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                await replica.step({"w": gradient(replica.parameters["w"], int(batch[0]))})

    return job


def sequentially(rule: Part, applies: Callable[[int], bool] = lambda step: True) -> Array:
    """Quantise with error feedback, then the optimizer; a refused push gives back what it took."""
    parts = rule.parts()
    w, residual = np.zeros(LENGTH, "f4"), np.zeros(LENGTH, "f4")
    state, count = optimizers.initial(parts, LENGTH), 0
    for step in range(STEPS):
        g = gradient(w, step)
        data, residual = codecs.encode(TWIN, g, residual)
        decoded = TWIN.decode(data, LENGTH)
        if applies(step):
            count += 1
            w, state = optimizers.update(parts, w, decoded, state, optimizers.Context(count))
        else:
            residual = (residual + decoded) - g
    return w


@pytest.mark.parametrize("rule", [dp.SGD(lr=0.5), dp.Adagrad(lr=0.05)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("shards", [1, 2])
async def test_one_replica_is_the_twin_to_the_bit(rule: Any, shards: int, tmp_path: Path) -> None:
    async with Stage(job_of(rule), tmp_path / "run", shards=shards) as stage:
        await stage.replica()
    np.testing.assert_array_equal(stage.parameters()["w"], sequentially(rule))
    report = stage.report
    assert report["gradients"]["codec"] == "int8(block=16)"
    (counts,) = report["replicas"]
    # One byte an element, a scale for 16 of them, and some frames: less than a third of float32.
    assert STEPS * LENGTH * 1.25 < counts["bytes_sent"] < STEPS * LENGTH * 1.5 + 20_000


async def test_several_steps_make_one_push(tmp_path: Path) -> None:
    """The sum is encoded, not each gradient."""
    policy = dp.Downpour(push_every=3, fetch_every=3, local_rate=0.0, overlap=False)
    async with Stage(job_of(dp.SGD(lr=0.5), policy=policy), tmp_path / "run") as stage:
        await stage.replica()
    w, residual, pending = np.zeros(LENGTH, "f4"), np.zeros(LENGTH, "f4"), np.zeros(LENGTH, "f4")
    copy = w
    for step in range(STEPS):
        pending = pending + gradient(copy, step)
        if step % 3 == 0:
            data, residual = codecs.encode(TWIN, pending, residual)
            w, pending = w - np.float32(0.5) * TWIN.decode(data, LENGTH), np.zeros(LENGTH, "f4")
        if (step + 1) % 3 == 0:
            copy = w
    data, residual = codecs.encode(TWIN, pending, residual)  # the rest, at the end
    w = w - np.float32(0.5) * TWIN.decode(data, LENGTH)
    np.testing.assert_array_equal(stage.parameters()["w"], w)


async def test_two_replicas_add_up_to_what_each_has_sent(tmp_path: Path) -> None:
    """Each block has a 127, so that every scale is 1 and every decoded element a whole number."""
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.Downpour(local_rate=0.0),
        data=dp.Work(80, unit=5, shuffle=False),
        codec=dp.Int8(block=BLOCK),
    )
    given: dict[int, list[Array]] = {}

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for batch in unit.batches(1):
                values = np.random.default_rng(int(batch[0])).integers(-9, 10, LENGTH) / 4
                values[::BLOCK] = 127
                given.setdefault(replica.id, []).append(values.astype("f4"))
                await replica.step({"w": given[replica.id][-1]})

    async with Stage(job, tmp_path / "run") as stage:
        await asyncio.gather(stage.replica(), stage.replica())
    expected = np.zeros(LENGTH, "f4")
    for gradients in given.values():
        residual = np.zeros(LENGTH, "f4")
        for values in gradients:
            data, residual = codecs.encode(TWIN, values, residual)
            expected -= TWIN.decode(data, LENGTH)
    assert sum(map(len, given.values())) == 80
    np.testing.assert_array_equal(stage.parameters()["w"], expected)


async def test_without_upgrade_the_same_bytes_are_posted(tmp_path: Path) -> None:
    def without_upgrade(data: bytes) -> bytes:
        return data.replace(b"Upgrade: pydownpour/1\r\n", b"").replace(
            b"Connection: Upgrade\r\n", b""
        )

    def before(target: str) -> FaultProxy:
        return FaultProxy(target, rewrite=without_upgrade)

    rule = dp.SGD(lr=0.5)
    async with Stage(job_of(rule), tmp_path / "run", before_shards=before) as stage:
        await stage.replica()
    assert stage.report["replicas"][0]["fallback"] is True
    np.testing.assert_array_equal(stage.parameters()["w"], sequentially(rule))


async def test_broken_connections_send_the_same_bytes_again(tmp_path: Path) -> None:
    """A record that is sent twice has the residual in it once."""
    proxies: list[FaultProxy] = []

    def cut_after(number: int) -> Faults:
        size = 1500 + 977 * number
        return Faults(reset_after=(size, size)) if number <= 12 else Faults()

    def before(target: str) -> FaultProxy:
        proxies.append(FaultProxy(target, to_target=cut_after))
        return proxies[-1]

    rule = dp.SGD(lr=0.5)
    async with Stage(job_of(rule), tmp_path / "run", before_shards=before) as stage:
        await stage.replica()
    assert sum(proxy.statistics().resets for proxy in proxies) >= 10
    assert stage.report["replicas"][0]["reconnects"] >= 10
    np.testing.assert_array_equal(stage.parameters()["w"], sequentially(rule))


@dataclasses.dataclass(frozen=True)
class Picky(Policy):
    """Downpour, but shards refuse some pushes."""

    def replica(self) -> ReplicaRule:
        return dp.Downpour(overlap=False).replica()

    def shard(self) -> ShardRule:
        return PickyAtTheShard()


class PickyAtTheShard(ShardRule):
    """Takes no push of steps 3 to 6, nor the tenth."""

    def announce(self, push: PushInfo, view: ClusterView) -> Decision:
        return Refuse("not that one") if push.clock in REFUSED else Apply()


REFUSED = (3, 4, 5, 6, 10)


async def test_a_refused_push_gives_back_what_it_took_from_the_residual(tmp_path: Path) -> None:
    rule = dp.SGD(lr=0.5)
    job = dp.Job(
        parameters={"w": np.zeros(LENGTH, np.float32)},
        optimizer=rule,
        policy=Picky(),
        codec=dp.Int8(block=BLOCK),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        for step in range(STEPS):
            await replica.step({"w": gradient(replica.parameters["w"], step)})

    async with Stage(job, tmp_path / "run") as stage:
        await stage.replica()
    expected = sequentially(rule, lambda step: step + 1 not in REFUSED)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)
    assert stage.report["pushes"]["refused"] == len(REFUSED)


async def test_what_cannot_be_encoded_is_dropped_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Finite, and so large that a shard might decode it to infinity."""
    job = dp.Job(
        parameters={"w": np.zeros(100, np.float32)},
        optimizer=dp.SGD(lr=1e-3),
        policy=dp.Downpour(overlap=False),
        codec=dp.Int8(block=BLOCK),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        values = np.full(100, 127, np.float32)
        await replica.step({"w": values})
        too_large = values.copy()
        too_large[41] = np.finfo(np.float32).max
        await replica.step({"w": too_large})
        await replica.step({"w": values})

    async with Stage(job, tmp_path / "run", shards=1) as stage:
        await stage.replica()
    np.testing.assert_allclose(stage.parameters()["w"], -0.254, rtol=1e-5)
    assert stage.report["gradients"]["values_overflowed"] == 1
    assert "too large for the int8(block=16) they travel as, the first in 'w' at flat index 41" in (
        caplog.text
    )


def test_digits_learn_as_well_in_a_third_of_the_bytes(tmp_path: Path) -> None:
    demo = ROOT / "pydownpour" / "demo"
    (tmp_path / "mlp.py").write_text((demo / "mlp.py").read_text())
    text = (demo / "digits.py").read_text()
    job = tmp_path / "digits8.py"
    job.write_text(text.replace("    data=dp.Work(", "    codec=dp.Int8(),\n    data=dp.Work(", 1))
    arguments = ("--shards", "2", "--replicas", "4", "--json", "--run-folder", str(tmp_path / "r"))
    with Command("run", str(job), *arguments) as command:
        assert command.wait(110) == 0, command.said
    report = command.report
    assert report["gradients"]["codec"] == "int8(block=256)"
    assert report["accuracy"] >= 0.95
    sent = sum(replica["bytes_sent"] for replica in report["replicas"])
    # Of 4,810 parameters; headers and announcements are part of it.
    assert sent / report["pushes"]["sent"] < 4 * 4810 / 3
