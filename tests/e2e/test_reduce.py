"""Replicas that add up gradients among themselves, over real sockets and in real processes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

import pydownpour as dp
from pydownpour.errors import AuthError, NotReady
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.net.upgrade import StreamProtocol
from pydownpour.policy.reductions import TOPOLOGIES
from pydownpour.replica.reduction.listening import Listening
from pydownpour.replica.reduction.member import ROUTE
from pydownpour.replica.replica import Replica
from pydownpour.wire import messages
from pydownpour.wire.messages import Stop
from tests.chaos.processes import QUICK, ROOT, Command, events, replica_named, until
from tests.e2e.stage import Stage
from tests.e2e.test_hard_sync import LEN, gradient, job_of, sequentially, together, whole

HOW = pytest.mark.parametrize("how", TOPOLOGIES)
JOB = ROOT / "tests" / "chaos" / "jobs" / "reducing.py"
FRAGMENT_LEN, FRAGMENTS = 65_536, 16
SIZE = 4 * FRAGMENT_LEN * FRAGMENTS
"""Bytes of the parameters of the jobs whose bytes are counted: 4 MiB, in 16 fragments."""


@pytest.mark.parametrize(
    "rule",
    [dp.chain(dp.SqrtScaling(batch=2), dp.SGD(lr=0.0625)), dp.Adagrad(lr=0.1)],
    ids=["sqrt", "adagrad"],
)
@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@HOW
async def test_whole_numbers_are_large_batch_sgd_to_the_bit(
    tmp_path: Path, how: Any, members: int, combine: Any, rule: Any
) -> None:
    policy = dp.HardSync(combine=combine, replicas=members, reduce=how)
    stage = await together(job_of(policy, rule, whole), tmp_path, members)
    expected = sequentially(policy, rule, whole, members)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)
    assert stage.report["bytes"]["among_replicas"] > 0 or members == 1


@pytest.mark.parametrize("by_samples", [False, True])
@HOW
async def test_in_any_order_it_is_the_same_but_for_the_last_bits(
    tmp_path: Path, how: Any, by_samples: bool
) -> None:
    policy = dp.HardSync(replicas=3, by_samples=by_samples, reduce=how)
    stage = await together(job_of(policy, dp.SGD(lr=0.0625), gradient), tmp_path, 3)
    expected = sequentially(policy, dp.SGD(lr=0.0625), gradient, 3)
    np.testing.assert_allclose(stage.parameters()["w"], expected, atol=1e-5)
    assert len(stage.parameters()["w"]) == LEN


@pytest.mark.parametrize("members", [2, 4, 8, 16])
@HOW
async def test_bytes_are_what_the_formulae_say(tmp_path: Path, how: Any, members: int) -> None:
    """Of elements, at each member and of all, and at the shards; W is the parameters.

    Tree: W up and W down, and W each way for each child. Ring: 2 (p - 1)/p W, whoever it is.
    """
    rounds = 2
    job = dp.Job(
        parameters={"w": np.zeros(FRAGMENT_LEN * FRAGMENTS, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.HardSync(combine="sum", replicas=members, reduce=how),
    )
    ones = np.full(FRAGMENT_LEN * FRAGMENTS, -1.0, np.float32)
    seen: dict[int, tuple[int, int]] = {}
    together_ = asyncio.Barrier(members)

    @job.replica
    async def train(replica: Replica) -> None:
        for _ in range(rounds):
            await replica.step({"w": ones})
        reducer = replica._trainer.session.reducer
        assert reducer is not None
        seen[replica.id] = reducer.traffic()
        await together_.wait()

    stage = await together(job, tmp_path, members)
    np.testing.assert_array_equal(stage.parameters()["w"], float(members * rounds))
    for place, who in enumerate(sorted(seen)):
        children = sum(child in range(members) for child in (2 * place + 1, 2 * place + 2))
        expected = SIZE * (children + (place > 0))
        if how == "ring":
            expected = 2 * (members - 1) * SIZE // members
        assert seen[who] == (rounds * expected, rounds * expected), f"place {place} of {members}"
    assert sum(sent for sent, _ in seen.values()) == 2 * (members - 1) * rounds * SIZE
    # One pushes and fetches all, or each its share; headers and announcements are the rest.
    to_shards = stage.report["bytes"]["to_shards"]
    assert rounds * SIZE <= to_shards < 1.02 * rounds * SIZE + 20_000 * members
    # Whoever has nothing yet fetches all: when it joins, and when it looks in its first group.
    from_shards = stage.report["bytes"]["from_shards"]
    whole_fetches = (2 * members + rounds + 1) * SIZE  # and the coordinator, in the end
    assert whole_fetches <= from_shards < 1.001 * whole_fetches + 20_000 * members


@pytest.mark.parametrize("listening", [1, 2])
@HOW
async def test_who_may_not_listen_is_a_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, listening: int
) -> None:
    """Four members, of which one or two listen: the others send to these."""
    begin = Listening.begin
    urls: list[str] = []

    async def once(self: Listening, *arguments: Any) -> str:
        place = len(urls)
        urls.append("")
        urls[place] = await begin(self, *arguments) if place < listening else ""
        return urls[place]

    monkeypatch.setattr(Listening, "begin", once)
    policy = dp.HardSync(replicas=4, reduce=how)
    stage = await together(job_of(policy, dp.SGD(lr=0.0625), whole), tmp_path, 4)
    expected = sequentially(policy, dp.SGD(lr=0.0625), whole, 4)
    np.testing.assert_array_equal(stage.parameters()["w"], expected)
    assert sum(map(bool, urls)) == listening


async def test_where_nobody_listens_the_job_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nowhere(self: Listening, *arguments: Any) -> str:
        return ""

    monkeypatch.setattr(Listening, "begin", nowhere)
    policy = dp.HardSync(replicas=2, reduce="tree")
    async with Stage(job_of(policy, dp.SGD(lr=0.1), whole), tmp_path) as stage:
        ends = await asyncio.gather(*(stage.replica() for _ in range(2)), return_exceptions=True)
        assert any("--advertise" in str(end) for end in ends), ends
        stage.service.stop(Stop(reason="nobody listens"))


@HOW
async def test_a_sum_that_is_not_finite_is_pushed_nowhere(tmp_path: Path, how: Any) -> None:
    """Each gradient is finite, and their sum is not, in one fragment: nothing of it is applied."""
    elements = 4 * FRAGMENT_LEN
    job = dp.Job(
        parameters={"w": np.zeros(elements, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.HardSync(combine="sum", replicas=3, reduce=how),
    )

    @job.replica
    async def train(replica: Replica) -> None:
        gradient = np.ones(elements, np.float32)
        gradient[3 * FRAGMENT_LEN + 5] = 3e38
        await replica.step({"w": gradient})
        await replica.step({"w": np.ones(elements, np.float32)})

    stage = await together(job, tmp_path, 3)
    np.testing.assert_array_equal(stage.parameters()["w"], -3.0)
    assert stage.report["pushes"]["refused"] == 3, "the gradient of each"
    assert stage.report["records"]["refused"] == 0, "no shard has seen it"


@HOW
async def test_what_max_norm_bounds_is_the_whole_sum(tmp_path: Path, how: Any) -> None:
    """No share of it is above the bound, and the sum is: it is refused everywhere."""
    elements = 4 * FRAGMENT_LEN
    job = dp.Job(
        parameters={"w": np.zeros(elements, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        policy=dp.HardSync(combine="sum", replicas=4, reduce=how),
        max_norm=3.0 * 512,  # a gradient of ones has 512, and 256 in each of four fragments
    )

    @job.replica
    async def train(replica: Replica) -> None:
        await replica.step({"w": np.ones(elements, np.float32)})
        await replica.step({"w": np.full(elements, 0.5, np.float32)})

    stage = await together(job, tmp_path, 4)
    np.testing.assert_array_equal(stage.parameters()["w"], -2.0)
    assert stage.report["pushes"]["refused"] == 4, "the gradient of each"


async def test_a_stranger_s_sums_are_not_taken(tmp_path: Path) -> None:
    """With the job's token, and without the secret of the two."""

    class Silent(StreamProtocol):
        def get_buffer(self, sizehint: int) -> Any:
            return bytearray(100)

        def received(self, n: int) -> None: ...

    policy = dp.HardSync(replicas=2, reduce="tree")
    job = dp.Job(
        parameters={"w": np.zeros(64, np.float32)}, optimizer=dp.SGD(lr=1.0), policy=policy
    )
    asked: list[str] = []

    @job.replica
    async def train(replica: Replica) -> None:
        await replica.step({"w": np.ones(64, np.float32)})
        reducer = replica._trainer.session.reducer
        assert reducer is not None
        group = reducer._member.group
        if replica.id == 1:
            headers = {
                messages.HEADER_REPLICA: "2", messages.HEADER_INCARNATION: "1",
                messages.HEADER_SECRET: "0" * 64, messages.HEADER_GROUP: str(group.number),
            }  # fmt: skip
            async with Client(group.members[0].url, access=Access()) as client:
                with pytest.raises(AuthError, match="no member of group"):
                    await client.upgrade(ROUTE, headers, Silent())
                headers[messages.HEADER_GROUP] = "99"
                with pytest.raises(NotReady, match="and not by 99"):
                    await client.upgrade(ROUTE, headers, Silent())
            asked.append("both")
        await replica.step({"w": np.ones(64, np.float32)})

    stage = await together(job, tmp_path, 2)
    assert asked == ["both"]
    np.testing.assert_array_equal(stage.parameters()["w"], -2.0)


@pytest.mark.parametrize("reduce", TOPOLOGIES)
def test_one_of_four_is_killed_in_the_middle_and_the_rest_go_on(
    tmp_path: Path, reduce: str
) -> None:
    """Real processes: its gradients are in the parameters as often as the books say."""
    command = Command(
        "run", JOB, "--shards", "2", "--replicas", "4", "--json", "--run-folder", tmp_path / "run",
        *QUICK, env={"REDUCE": reduce, "CHAOS_FOLDER": str(tmp_path)},
    )  # fmt: skip
    with command as run:
        url = run.url
        victim = until(
            lambda: (
                (one := replica_named(url, "replica-0")) and one["stats"]["steps"] >= 10 and one
            ),
            "ten steps of replica-0",
        )
        psutil.Process(victim["pid"]).send_signal(signal.SIGKILL)
        assert run.wait() == 0, run.said
        report = json.loads(run.out[-1])
    assert report["state"] == "done"
    assert report["audit"] == []
    assert report["units"] == report["work"]["units_total"]
    counts = safetensors.numpy.load_file(tmp_path / "run" / "parameters.safetensors")["counts"]
    assert counts.min() >= report["work"]["passes"], "each sample of each pass was applied"
    assert counts.sum() < 1.2 * report["work"]["samples_total"], "and hardly any of them twice"
    np.testing.assert_array_equal(counts, np.floor(counts))
    groups = events(tmp_path / "run", "group")
    assert any("left out" in event["reason"] or "back" in event["reason"] for event in groups[1:])
