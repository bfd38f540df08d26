"""Control messages, problems and the Python side of frames."""

import math
from typing import Any

import pytest

from pydownpour import _core, errors
from pydownpour.errors import DownpourError, RemoteProtocolError
from pydownpour.wire import frames, messages, problems
from pydownpour.wire.frames import Code, Kind, PushNotice
from pydownpour.wire.messages import Heartbeat, Join, Problem, ReplicaStats
from tests.fakes.coordination import histogram


def test_messages_round_trip_and_ignore_what_they_do_not_know() -> None:
    beat = Heartbeat(role="replica", id=3, replica=ReplicaStats(staleness=histogram(0, 7, 2**40)))
    assert messages.decode(Heartbeat, messages.encode(beat)) == beat
    newer = messages.encode(beat)[:-1] + b',"mood":"good"}'
    assert messages.decode(Heartbeat, newer) == beat


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"fingerprint": 3}', b'{"pid": -1}'])
def test_bad_bodies_are_refused_in_words(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad Join message"):
        messages.decode(Join, body)


@pytest.mark.parametrize("kind", [kind for kind, _, _ in problems.TABLE])
def test_errors_cross_the_wire_as_the_same_class_and_words(kind: Any) -> None:
    status, problem = problems.describe(kind("the words"))
    again = problems.revive(status, messages.encode(problem), peer="http://x")
    assert type(again) is kind
    assert str(again) == "the words"
    assert again.retryable == kind.retryable
    assert 400 <= status < 600


def test_the_table_names_the_most_derived_class_first() -> None:
    seen: list[type[DownpourError]] = []
    for kind, _, _ in problems.TABLE:
        assert not any(issubclass(kind, earlier) for earlier in seen), kind
        seen.append(kind)
    codes = [code for _, code, _ in problems.TABLE]
    assert len(set(codes)) == len(codes)


def test_an_answer_that_is_not_ours_is_told_apart() -> None:
    error = problems.revive(502, b"<html>Bad gateway</html>", peer="http://x")
    assert type(error) is errors.RemoteProtocolError
    assert "502" in str(error)
    assert "is the URL right?" in str(error)
    unknown = messages.encode(Problem(code="future", message="later"))
    assert "later" in str(problems.revive(400, unknown, peer="p"))


def test_push_announcement_round_trips() -> None:
    notice = PushNotice(first_open=7, clock=2**40, samples=128, norm=1.5)
    data = frames.push(
        replica=3, incarnation=2, push=9, fragment=4, count=5, notice=notice, continues=True
    )
    (frame,) = _core.scan_frames(data)
    assert (frame.kind, frame.seq, frame.fragment, frame.count) == (Kind.PUSH, 9, 4, 5)
    assert frame.flags == frames.PUSH_CONTINUES
    assert frames.push_notice(frame) == notice


@pytest.mark.parametrize("norm", [math.inf, math.nan, 1e300])
def test_a_norm_beyond_float32_travels_as_infinity(norm: float) -> None:
    notice = PushNotice(1, 1, 1, norm)
    data = frames.push(replica=1, incarnation=1, push=1, fragment=0, count=1, notice=notice)
    assert frames.push_notice(_core.scan_frames(data)[0]).norm == math.inf


def test_a_push_notice_of_another_length_is_refused() -> None:
    (frame,) = _core.scan_frames(_core.encode_frame(kind=Kind.PUSH, payload=b"short"))
    with pytest.raises(RemoteProtocolError, match="PUSH payload of 5 bytes"):
        frames.push_notice(frame)


@pytest.mark.parametrize(
    ("numbers", "aux"),
    [((1, 2**53 + 1, 1), 0), ((1, 1, 2**64 - 1), 0), ((1, 1, 1), 0x7FC0_0000)],
    ids=["a clock beyond counting", "samples beyond counting", "a norm that is no number"],
)
def test_a_push_notice_with_numbers_nobody_can_mean_is_refused(
    numbers: tuple[int, int, int], aux: int
) -> None:
    payload = frames.PUSH_NOTICE.pack(*numbers)
    (frame,) = _core.scan_frames(_core.encode_frame(kind=Kind.PUSH, aux=aux, payload=payload))
    with pytest.raises(RemoteProtocolError, match="PUSH with clock"):
        frames.push_notice(frame)


def test_a_receipt_may_have_more_to_say_and_never_less() -> None:
    fields = {"kind": Kind.ACK, "count": 3}
    view = frames.View(epoch=1, least_clock=17, round=5, deviation=0.25, policy=2)
    whole = frames.RECEIPT.pack(2, 7, 1, *view)
    (frame,) = _core.scan_frames(_core.encode_frame(**fields, payload=whole + b"more"))
    assert frames.receipt(frame) == frames.Receipt(applied=2, staleness=7, level=1, view=view)
    for payload, words in (
        (whole[:-1], "ACK payload of 63 bytes"),
        (frames.RECEIPT.pack(4, 0, 1, *view), "ACK of 3 records, of which 4"),
    ):
        (frame,) = _core.scan_frames(_core.encode_frame(**fields, payload=payload))
        with pytest.raises(RemoteProtocolError, match=words):
            frames.receipt(frame)


def test_refusals_carry_words_and_become_errors() -> None:
    data = frames.refuse(push=4, fragment=6, count=2, code=Code.NON_FINITE, words="NaN in w")
    (frame,) = _core.scan_frames(data)
    assert (frame.kind, frame.seq, frame.fragment, frame.count) == (Kind.REFUSE, 4, 6, 2)
    assert frame.aux == Code.NON_FINITE
    assert frame.payload == b"NaN in w"
    assert isinstance(frames.refusal_error(Code.FENCED, "x"), errors.Fenced)
    assert isinstance(frames.refusal_error(Code.UNKNOWN, "x"), errors.JobFailed)


def test_every_kind_and_code_is_one_the_core_knows() -> None:
    kinds = {getattr(_core, n) for n in dir(_core) if n.startswith("KIND_")}
    codes = {getattr(_core, n) for n in dir(_core) if n.startswith("CODE_")}
    assert {int(k) for k in Kind} == kinds
    assert {int(c) for c in Code} == codes
