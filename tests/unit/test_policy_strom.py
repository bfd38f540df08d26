"""Strom, step by step; and that its inside is the codec's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pydownpour as dp
from pydownpour.errors import ConfigError
from pydownpour.policy import Actions, Apply, ClusterView, PushInfo

PARAMETERS = {"w": np.zeros(8, np.float32)}


def test_a_replica_says_after_each_step_what_is_large_enough_and_looks_now_and_then() -> None:
    rule = dp.Strom(fetch_every=3, local_rate=0.5, in_flight=4).replica()
    actions = [rule.after_step(k, ClusterView()) for k in range(6)]
    assert actions == 2 * [*2 * [Actions(push=True, fetch=False)], Actions(push=True, fetch=True)]
    assert (rule.payload, rule.in_flight, rule.local_rate) == ("accrued", 4, 0.5)


def test_a_shard_applies_every_message_as_it_is() -> None:
    rule = dp.Strom().shard()
    for clock in range(3):
        assert rule.announce(PushInfo(1, clock, 8, 1.0), ClusterView(live=(1, 2))) == Apply()
    assert not rule.combines


def test_without_its_codec_it_is_downpour() -> None:
    """The schedule and the shard's half are those of Downpour; what differs is what travels."""
    strom, downpour = dp.Strom(fetch_every=2, in_flight=3), dp.Downpour(fetch_every=2, in_flight=3)
    ours, theirs = strom.replica(), downpour.replica()
    for k in range(9):
        assert ours.after_step(k, ClusterView()) == theirs.after_step(k, ClusterView())
    assert downpour.codec() is None
    assert strom.codec() == dp.Threshold(tau=0.1)


def test_a_job_has_the_codec_that_its_policy_brings() -> None:
    job = dp.Job(parameters=PARAMETERS, optimizer=dp.SGD(lr=0.1), policy=dp.Strom(threshold=0.5))
    assert job.codec == dp.Threshold(tau=0.5)
    rest: dict[str, Any] = {"parameters": PARAMETERS, "optimizer": dp.SGD(lr=0.1)}
    with pytest.raises(ConfigError, match=r"int8\(block=256\), but policy strom brings threshold"):
        dp.Job(policy=dp.Strom(), codec=dp.Int8(), **rest)
    with pytest.raises(ConfigError, match=r"wire_dtype='float16' would not be used"):
        dp.Job(policy=dp.Strom(), wire_dtype="float16", **rest)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 0.0}, "threshold: tau=0 .* above 0"),
        ({"threshold": 1e38}, "threshold: tau is 10+, must be from"),
        ({"fetch_every": 0}, "fetch_every=0 must be at least 1"),
        ({"in_flight": 0}, "in_flight=0 must be at least 1"),
        ({"local_rate": -1.0}, "local_rate=-1 .* at least 0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dp.Strom(**settings)
