"""What ends a role: the coordinator's word, or its absence; nothing else that goes wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pydownpour.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    Fenced,
    JobFailed,
    LimitExceeded,
    NotReady,
    PeerLost,
    RemoteProtocolError,
    TooLarge,
)
from pydownpour.limits import DEFAULT
from pydownpour.net.heartbeat import Heartbeats, Patience
from pydownpour.net.waiting import Stalls
from pydownpour.wire.messages import Heartbeat, HeartbeatAnswer, ShardStats

REFUSED = ConnectFailed("nobody listens", refused=True)
RUNNING = HeartbeatAnswer(state="running")


class Coordinator:
    """Answers one heartbeat after the other with what it was given."""

    url, limits = "http://coordinator", DEFAULT

    def __init__(self, answers: Iterable[HeartbeatAnswer | Exception]) -> None:
        self._answers = iter(answers)
        self.had_counts: list[bool] = []

    async def post(self, path: str, beat: Heartbeat, *_: Any, **__: Any) -> HeartbeatAnswer:
        assert path == "/v1/heartbeat"
        self.had_counts.append(beat.shard is not None)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def beat(*answers: HeartbeatAnswer | Exception) -> tuple[HeartbeatAnswer, Coordinator]:
    coordinator = Coordinator(answers)
    heard: list[HeartbeatAnswer] = []
    heartbeats = Heartbeats(
        coordinator,  # type: ignore[arg-type]
        every_s=0.0,
        make=lambda counts: Heartbeat(role="shard", id=0, shard=ShardStats() if counts else None),
        heard=heard.append,
    )
    verdict = await heartbeats.run()
    assert heard == [answer for answer in answers if isinstance(answer, HeartbeatAnswer)]
    return verdict, coordinator


@pytest.mark.parametrize("verdict", [
    HeartbeatAnswer(state="done"), HeartbeatAnswer(state="failed", reason="a shard died"),
    HeartbeatAnswer(state="running", fenced=True),
], ids=["done", "failed", "fenced"])  # fmt: skip
async def test_only_the_coordinator_s_word_ends_a_role(verdict: HeartbeatAnswer) -> None:
    trouble = (
        PeerLost("a router"), NotReady("later"), RemoteProtocolError("too long"), AuthError("no"),
        LimitExceeded("too many"), ConfigError("what"), DeadlineExceeded("slow"), REFUSED,
        OSError("no descriptors"), OverflowError("a counter"), ImportError("no descriptors"),
        TooLarge("4 MB"),
    )  # fmt: skip
    between = [answer for error in trouble for answer in (error, RUNNING)]
    answer, coordinator = await beat(*between, HeartbeatAnswer(state="evaluating"), verdict)
    assert answer is verdict
    assert len(coordinator.had_counts) == len(between) + 2


@pytest.mark.parametrize("error", [Fenced("replaced"), JobFailed("failed"), ClosedError("over")])
async def test_its_word_may_come_as_an_error(error: Exception) -> None:
    with pytest.raises(type(error)):
        await beat(RUNNING, error)


async def test_a_heartbeat_that_was_refused_is_sent_without_its_counts() -> None:
    oversize = RemoteProtocolError("body of 5 MB, the limit here is 4 MiB")
    _, coordinator = await beat(
        PeerLost("x"), oversize, RUNNING, RUNNING, HeartbeatAnswer(state="done")
    )
    assert coordinator.had_counts == [True, True, False, True, True]


def test_a_silent_coordinator_is_waited_for_and_one_that_is_gone_is_not() -> None:
    patience = Patience("http://c")
    patience.heard(100.0, state="running")
    slow = DeadlineExceeded("slow")
    assert patience.spent(slow, 100.0 + DEFAULT.join_patience_s) is None
    spent = patience.spent(slow, 101.0 + DEFAULT.join_patience_s)
    assert isinstance(spent, JobFailed)
    assert "no answer from the coordinator at http://c for 61 s" in str(spent)

    patience.heard(200.0, state="running")
    assert patience.spent(REFUSED, 201.0) is None
    assert patience.spent(slow, 210.0) is None, "it was not refused all the time"
    assert patience.spent(REFUSED, 211.0) is None
    spent = patience.spent(REFUSED, 211.0 + DEFAULT.coordinator_refused_s)
    assert isinstance(spent, JobFailed)
    assert "the coordinator at http://c is gone" in str(spent)


def test_time_in_which_we_stood_still_ourselves_counts_for_nobody() -> None:
    patience = Patience("http://c")
    patience.heard(100.0, state="running")
    stalls = Stalls(100.0, 2.0)
    assert [stalls.look(now) for now in (101.0, 103.0, 103.0 + 2.0 + DEFAULT.stall_s)] == [
        0,
        0,
        0,
    ]
    gap = stalls.look(500.0)
    assert gap == 500.0 - 106.0 - 2.0
    patience.forgive(gap)
    assert patience.spent(DeadlineExceeded("slow"), 500.0) is None
    assert isinstance(patience.spent(DeadlineExceeded("slow"), 560.0), JobFailed)


def test_a_coordinator_that_was_finishing_is_gone_for_good_when_nobody_listens() -> None:
    patience = Patience("http://c")
    patience.heard(100.0, state="evaluating")
    assert patience.spent(REFUSED, 100.5) is None
    spent = patience.spent(REFUSED, 100.5 + DEFAULT.finished_refused_s)
    assert isinstance(spent, ClosedError)
    assert "was finishing the job and is gone" in str(spent)
