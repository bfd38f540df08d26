"""Replicas that reduce among themselves: seeds under every plan, and each moment at which one dies.

``swarm.reduced`` draws a small world of one of the two oracles, in which the sum of a round is made
by a tree or a ring of replicas.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest

from pydownpour.limits import DEFAULT, KIB
from pydownpour.policy.hard_sync import HardSync
from pydownpour.replica.reduction.member import Member
from pydownpour.replica.reduction.peers import Peer
from pydownpour.sim.checks.oracle import Oracle
from pydownpour.sim.compute.cost import ComputeModel
from pydownpour.sim.faults.plans import PLANS, FaultPlan
from pydownpour.sim.machines.host import LinkModel
from pydownpour.sim.machines.process import current
from pydownpour.sim.world import swarm
from pydownpour.sim.world.settings import Settings
from pydownpour.sim.world.world import World
from pydownpour.wire.frames import Kind

SEEDS = max(1, int(os.environ.get("DOWNPOUR_SEEDS", "60")) // 5)
FIRST = int(os.environ.get("DOWNPOUR_SEED_FIRST", "0"))
REPLICAS, FRAGMENTS = 5, 8


@pytest.mark.parametrize("plan", [name for name in PLANS if not PLANS[name].is_doom])
def test_a_gradient_is_in_the_parameters_once_whoever_dies_in_the_middle_of_a_sum(
    plan: str,
) -> None:
    summed, given = 0.0, 0
    for seed in range(FIRST, FIRST + SEEDS):
        world = swarm.reduced(seed, plan).run()
        assert not world.checks.violations, f"seed {seed}, {plan}: {world.checks.violations}"
        assert world.coordinator is not None
        fragments = world.coordinator.job.partition.fragment_count
        summed += world.report["records"]["applied"] / fragments
        given += world.report["gradients"]["computed"]
    assert given > 1.2 * summed, "few of the sums are of more than one gradient"


# -- each moment at which one dies -----------------------------------------------------------------


def small_world(how: Any) -> World:
    """Five replicas, in a tree of three levels or a ring; two shards of four fragments each."""
    oracle = Oracle(
        pushes=40,
        parameters=FRAGMENTS * 256,
        policy=HardSync(combine="sum", replicas=REPLICAS, reduce=how),
    )
    settings = Settings(
        seed=3,
        replicas=REPLICAS,
        shards=2,
        link=LinkModel(latency_s=0.005, bytes_per_s=1e6),
        compute=ComputeModel(base_s=0.05),
        faults=FaultPlan(),
        virtual_s_max=120.0,
        limits=dataclasses.replace(DEFAULT, fragment_size=KIB, lease_retry_s=0.5),
    )
    return World(oracle.job, settings, oracle=oracle)


class Death:
    """Kills the replica that runs, when something has happened to it so many times."""

    def __init__(self, world: World, place: int, times: int) -> None:
        self._world, self._place, self._times = world, place, times
        self.victim = ""

    def comes(self, member: Member) -> None:
        """It has happened; the process ends before it does anything else."""
        process = current()
        place = member.place
        if process is None or place is None or place.index != self._place or self.victim:
            return
        if len(member.group.members) < REPLICAS:
            return
        self._times -= 1
        if self._times == 0:
            self.victim = process.name
            self._world.loop.call_soon(self._world.kill_replica, process.name)


def before(name: str) -> Callable[[pytest.MonkeyPatch, Death], None]:
    """As a method of a member is called."""

    def patch_it(patch: pytest.MonkeyPatch, death: Death) -> None:
        method = getattr(Member, name)

        async def dying(self: Member, *arguments: Any) -> Any:
            death.comes(self)
            return await method(self, *arguments)

        patch.setattr(Member, name, dying)

    return patch_it


def sending(kind: Kind) -> Callable[[pytest.MonkeyPatch, Death], None]:
    """In the middle of what is sent, fragment by fragment."""

    def patch_it(patch: pytest.MonkeyPatch, death: Death) -> None:
        send = Peer.send

        async def dying(self: Peer, which: Kind, fragment: int, *what: Any, **named: Any) -> None:
            if which is kind and fragment == FRAGMENTS // 2:
                assert isinstance(self._owner, Member)
                death.comes(self._owner)
            await send(self, which, fragment, *what, **named)

        patch.setattr(Peer, "send", dying)

    return patch_it


def one_shard_has_it(patch: pytest.MonkeyPatch, death: Death) -> None:
    """The first member has the answer of one shard, and not of the other."""
    push_own = Member._push_own

    async def dying(self: Member, *arguments: Any) -> Any:
        outbox = self._means.outbox
        answered = outbox.answered

        def heard(push: Any) -> None:
            answered(push)
            if push.open_portions == 1:
                death.comes(self)

        for link in self._means.links:
            link.on_answered = heard
        return await push_own(self, *arguments)

    patch.setattr(Member, "_push_own", dying)


MOMENTS: dict[str, tuple[str, int, Callable[[pytest.MonkeyPatch, Death], None]]] = {
    "the first one has the whole sum, and pushes nothing": ("tree", 0, before("_push_own")),
    "the first one has pushed half": ("tree", 0, one_shard_has_it),
    "the first one gives nothing down": ("tree", 0, before("_give_down")),
    "the first one gives down half": ("tree", 0, sending(Kind.PARAMETERS)),
    "one in the middle sends half a sum": ("tree", 1, sending(Kind.SUM)),
    "one in the middle gives nothing down": ("tree", 1, before("_give_down")),
    "one in the middle gives down half": ("tree", 1, sending(Kind.PARAMETERS)),
    "a leaf gives nothing": ("tree", 4, before("_add_up")),
    "a leaf sends half": ("tree", 4, sending(Kind.SUM)),
    "one of a ring gives nothing": ("ring", 0, before("_add_up")),
    "one of a ring sends half": ("ring", 1, sending(Kind.SUM)),
    "one of a ring says nothing of its share": ("ring", 4, before("_agree")),
    "others have pushed their shares, and one has not": ("ring", 3, before("_push_own")),
    "one of a ring has pushed its share, and gives nothing down": ("ring", 2, before("_give_down")),
    "one of a ring gives down half": ("ring", 1, sending(Kind.PARAMETERS)),
}


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_who_dies_is_left_out_of_the_next_group_and_nothing_is_lost(
    moment: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, place, kill = MOMENTS[moment]
    world = small_world(how)
    death = Death(world, place, times)
    kill(monkeypatch, death)
    world.run()
    assert world.checks.violations == []
    assert world.report["state"] == "done"
    assert death.victim, "it died"
    assert world.report["units"] == world.report["work"]["units_total"]
    assert world.coordinator is not None
    groups = world.coordinator.job.groups
    assert groups.number >= 2


@pytest.mark.parametrize(
    ("how", "place"), [*(("tree", place) for place in range(REPLICAS)), ("ring", 0), ("ring", 3)]
)
def test_one_that_stands_still_comes_back_to_another_group(
    how: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own sum goes on where it was, and is refused, or what it had given is done again."""
    world = small_world(how)
    stopped: list[str] = []
    add_up = Member._add_up

    async def stopping(self: Member, *arguments: Any) -> None:
        process = current()
        assert process is not None
        assert self.place is not None
        full = len(self.group.members) == REPLICAS
        if full and self.place.index == place and not stopped:
            stopped.append(process.name)
            world.loop.call_soon(world.processes.pause, process)
            world.loop.at(world.loop.now + 8.0, world.processes.resume, process)
        await add_up(self, *arguments)

    monkeypatch.setattr(Member, "_add_up", stopping)
    world.run()
    assert stopped
    assert world.checks.violations == []
    assert world.report["state"] == "done"
