"""The job's policy as a versioned value: commands, phases, and who is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pydownpour import limits
from pydownpour.coordinator import view
from pydownpour.coordinator.policies import Policies
from pydownpour.coordinator.report import build_report
from pydownpour.errors import ClosedError, ConfigError
from pydownpour.job import Job, Work
from pydownpour.limits import Limits
from pydownpour.optimizers import SGD
from pydownpour.policy.bfasgd import BFASGD
from pydownpour.policy.downpour import Downpour
from pydownpour.policy.hard_sync import HardSync
from pydownpour.policy.phases import Phases
from pydownpour.policy.strom import Strom
from pydownpour.wire.messages import SetPolicy
from tests.fakes.coordination import Cast
from tests.fakes.policies import EveryFew

HALF: Any = 2.5


def cast_of(policy: Any, **work: Any) -> Cast:
    job = Job(
        parameters={"w": [0.0] * 64},
        optimizer=SGD(lr=0.5),
        policy=policy,
        data=Work(20, unit=5, **work),
    )
    cast = Cast(job, shards=1)
    if isinstance(policy, EveryFew):
        return cast
    cast.shards_ready()
    cast.join("one")
    return cast


def test_each_policy_that_is_asked_for_is_a_version_of_its_own() -> None:
    policies = Policies(Downpour())
    assert (policies.entry.version, policies.status.by) == (1, "the job")
    assert policies.newer(1) is None
    settings = HardSync(combine="sum").to_wire()
    assert policies.set(settings, 40, 2.5, "somebody")
    assert policies.current == HardSync(combine="sum")
    assert policies.newer(1) == policies.newer(0) == policies.entry
    assert policies.entry.settings == settings
    assert (policies.status.samples, policies.status.at_s, policies.status.by) == (
        40, 2.5, "somebody",
    )  # fmt: skip
    assert not policies.set(settings, 50, 3.5, "an answer that was lost")
    assert policies.entry.version == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "nix"}, "unknown policy 'nix'"),
        ({}, "unknown policy 'None'"),
        ({"name": "hardsync", "combine": "most"}, "combine='most': choose mean or sum"),
        ({"name": "downpour", "push_every": 0}, "push_every=0 must be at least 1"),
        ({"name": "downpour", "pace": 1}, "unknown settings pace"),
        ({"name": "everyfew"}, "unknown policy 'everyfew'"),
    ],
)
def test_a_wrong_one_is_refused_in_its_class_own_words(
    settings: dict[str, Any], words: str
) -> None:
    cast = cast_of(Downpour())
    with pytest.raises(ConfigError, match=words):
        cast.job.set_policy(SetPolicy(settings=settings), cast.now)
    assert cast.job.policies.entry.version == 1
    assert cast.events("policy") == []


def test_a_class_that_the_job_declares_may_be_asked_for() -> None:
    policies = Policies(Phases((Downpour(), 5), EveryFew()))
    assert policies.set(EveryFew(count=5).to_wire(), 1, 0.1, "me")
    assert policies.current == EveryFew(count=5)


def test_many_versions_keep_the_first_and_the_last_ones() -> None:
    policies = Policies(Downpour(), dataclasses.replace(limits.DEFAULT, policies_told_max=4))
    for push_every in range(2, 12):
        policies.set(Downpour(push_every=push_every).to_wire(), push_every, 0.0, "me")
    assert [status.entry.version for status in policies.versions] == [1, 9, 10, 11]


def test_phases_come_by_samples_and_a_command_ends_them() -> None:
    phases = Phases((Downpour(), 10), (HardSync(), 20), Downpour(push_every=4))
    policies = Policies(phases)
    assert policies.status.plan == "phase 1 of the 3 that the job declares, until 10 samples"
    assert not policies.advance(9, 1.0)
    assert policies.advance(10, 1.0)
    assert policies.current == HardSync()
    assert policies.status.by == "phase 2 of 3"
    assert not policies.advance(19, 1.5)
    assert policies.advance(25, 2.0)
    assert policies.status.plan == "phase 3 of the 3 that the job declares, until the end"
    policies = Policies(phases)
    assert policies.advance(30, 1.0), "two boundaries at once are one change"
    assert policies.entry.version == 2
    policies = Policies(phases)
    assert not policies.set(Downpour().to_wire(), 1, 0.1, "me")
    assert policies.status.plan == "a command has ended the 3 phases that the job declares"
    assert not policies.advance(15, 1.0)


def test_roles_are_told_until_they_have_heard() -> None:
    cast = cast_of(Downpour())
    assert cast.beat(1, policy=1).policy is None
    assert cast.shard_beat(0, policy=1).policy is None
    status = cast.job.set_policy(SetPolicy(settings=HardSync().to_wire(), by="me"), cast.now)
    for answer in (cast.beat(1, policy=1), cast.shard_beat(0, policy=1)):
        assert answer.policy == status.entry == cast.job.policies.entry
    assert cast.beat(1, policy=2).policy is None
    assert cast.join("two").policy == HardSync().to_wire()
    assert cast.join("three").policy_version == 2
    assert [event["by"] for event in cast.events("policy")] == ["me"]


def test_a_shard_that_obeys_it_is_on_record() -> None:
    cast = cast_of(Downpour())
    cast.job.set_policy(SetPolicy(settings=HardSync().to_wire()), cast.now)
    cast.shard_beat(0, policy=1, obeys=1)
    assert cast.events("policy obeyed") == []
    cast.shard_beat(0, policy=2, obeys=2)
    cast.shard_beat(0, policy=2, obeys=2)
    (event,) = cast.events("policy obeyed")
    assert (event["shard"], event["version"]) == (0, 2)


def test_who_may_have_work_is_the_newest_policy_s_to_say() -> None:
    cast = cast_of(Downpour(warm_start=10))
    cast.join("two")
    assert "warm start" in cast.lease(2).reason
    cast.job.set_policy(SetPolicy(settings=Downpour().to_wire()), cast.now)
    assert cast.lease(2).units != []


def test_a_phase_ends_with_the_unit_that_completes_it() -> None:
    cast = cast_of(Phases((Downpour(), 8), HardSync()))
    (unit,) = cast.lease(1).units
    cast.complete(1, unit)
    assert cast.job.policies.entry.version == 1
    (unit,) = cast.lease(1).units
    cast.complete(1, unit)
    (event,) = cast.events("policy")
    assert (event["version"], event["samples"], event["by"]) == (2, 10, "phase 2 of 2")


def test_a_job_that_is_over_takes_none() -> None:
    cast = cast_of(Downpour())
    cast.finish_all(1)
    with pytest.raises(ClosedError):
        cast.job.set_policy(SetPolicy(settings=HardSync().to_wire()), cast.now)


def test_status_and_report_say_all_of_it() -> None:
    cast = cast_of(Phases((Downpour(), 10), HardSync()), passes=2)
    cast.finish_all(1)
    status = view.status(cast.job, cast.now, run_folder="", report=None)
    assert status.policy is not None
    assert (status.policy.entry.version, status.policy.samples) == (2, 20)
    report = build_report(cast.job, cast.now, version="0", rss_peak_bytes=0, storage="ok")
    assert report["policy"] == HardSync().to_wire()
    assert [(one["version"], one["samples"], one["by"]) for one in report["policies"]] == [
        (1, 0, "the job"),
        (2, 20, "phase 2 of 2"),
    ]
    assert [one["until"] for one in report["phases"]] == [10, None]


def test_limits_have_room_for_the_first_version() -> None:
    assert Limits().policies_told_max >= 2


# -- what a job may declare ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Phases(), "0 phases, must be 1 to 64"),
        (lambda: Phases(*[(Downpour(), n) for n in range(1, 65)], Downpour()), "65 phases"),
        (lambda: Phases((Downpour(), 5)), "the last phase, .* must be a policy by itself"),
        (lambda: Phases(Downpour(), HardSync()), r"must be \(policy, samples\)"),
        (lambda: Phases((Downpour(), 0), HardSync()), "samples=0 must be at least 1"),
        (lambda: Phases((Downpour(), 9), (HardSync(), 9), Downpour()), "must be at least 10"),
        (lambda: Phases((Downpour(), HALF), HardSync()), "samples=2.5 must be a whole number"),
        (lambda: Phases((Downpour(), 2**54), HardSync()), "at most 2\\*\\*53"),
        (lambda: cast_of(Phases((Downpour(), 20), HardSync())), "begins after 20 samples, and"),
        (lambda: cast_of((Downpour(), 20)), "must be a Policy"),
    ],
)
def test_phases_that_cannot_be_are_refused_at_once(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_each_phase_is_checked_as_a_policy_is() -> None:
    class Unfrozen(EveryFew):
        """No dataclass of its own."""

    with pytest.raises(ConfigError, match="policy Unfrozen"):
        cast_of(Phases((Downpour(), 5), Unfrozen()))

    @dataclasses.dataclass(frozen=True)
    class Other(EveryFew):
        name = "everyfew"

    with pytest.raises(ConfigError, match="two classes of policies have the name 'everyfew'"):
        cast_of(Phases((EveryFew(), 5), Other()))


def test_whoever_cannot_build_a_later_phase_is_not_let_in() -> None:
    job = Job(
        parameters={"w": [0.0] * 64},
        optimizer=SGD(lr=0.5),
        policy=Phases((Downpour(), 5), EveryFew()),
    )
    cast = Cast(job, shards=1)
    with pytest.raises(ConfigError, match="policy 'everyfew' is a class of its job file"):
        cast.hello("shard-0", index=0)


def test_a_policy_that_the_job_s_optimizer_or_codec_does_not_suit_is_refused() -> None:
    cast = cast_of(Downpour())
    for settings, words in (
        (BFASGD(c_fetch=1.0).to_wire(), "bfasgd goes by how much gradients differ"),
        (Strom(threshold=0.5).to_wire(), "strom brings .* travel as they are"),
    ):
        with pytest.raises(ConfigError, match=words):
            cast.job.set_policy(SetPolicy(settings=settings), cast.now)
    with pytest.raises(ConfigError, match="strom brings"):
        cast_of(Phases((Strom(threshold=0.5), 5), Strom(threshold=0.25)))
    assert cast.job.policies.entry.version == 1
