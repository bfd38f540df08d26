"""Whatever a peer sends: our errors and no others, no growth, and work that its bytes pay for.

Messages go into a running job's state, frames into a shard and into a replica's link. Work is
counted in calls of Python functions, never in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from pydownpour import _core, limits
from pydownpour.errors import DownpourError, RemoteProtocolError
from pydownpour.job import Work
from pydownpour.layout import ShardEntry
from pydownpour.net.access import Access
from pydownpour.net.client import Client
from pydownpour.replica.encoded import EncodedPush
from pydownpour.replica.link import Link
from pydownpour.replica.pushes import Base, Push
from pydownpour.shard.state import Shard
from pydownpour.shard.stream import PushHandler
from pydownpour.wire import frames, messages
from pydownpour.wire.frames import Kind
from pydownpour.wire.messages import (
    Complete,
    Heartbeat,
    Join,
    LeaseRequest,
    Leave,
    Message,
    ShardAssigned,
    ShardHello,
)
from tests.fakes.coordination import KEY, Cast, make_job
from tests.unit.test_fields import all_messages

U32, U64 = 2**32 - 1, 2**64 - 1
CALLS_A_BYTE, CALLS_MIN = 2, 3000
"""What a message may cost in calls: a few for each of its bytes, and those of any message."""

NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([U32, U32 + 1, 2**53, 2**53 + 1, 2**61 - 1, U64, 10**400, -(10**30)]),
    st.floats(allow_nan=True, allow_infinity=True),
)
SCALARS = st.one_of(NUMBERS, st.booleans(), st.none(), st.text(max_size=5), st.just("x" * 5000))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=3), st.just("2305843009213693951")), inner,
                        max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


def field_names(kind: type[Message]) -> list[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [field.name for field in info.fields]


def bodies(kind: type[Message], **known: Any) -> st.SearchStrategy[bytes]:
    """JSON of a message whose fields are anything, or there, or as they should be."""
    names = st.sampled_from(field_names(kind))
    wild = st.dictionaries(names, ANYTHING, max_size=6)
    return st.tuples(st.sampled_from([{}, known]), wild).map(
        lambda both: json.dumps({**both[0], **both[1]}).encode("utf-8", "replace")
    )


def check_words(error: DownpourError, length: int) -> None:
    """What a peer is told, or a log."""
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    assert len(str(error)) <= length


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions run while it does."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", all_messages(), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_body_is_a_message_or_one_line(kind: type[Message], data: st.DataObject) -> None:
    body = data.draw(bodies(kind))
    try:
        message = messages.decode(kind, body)
    except RemoteProtocolError as error:
        check_words(error, 400)
    else:
        assert messages.decode(kind, messages.encode(message)) == message


def running() -> tuple[Cast, dict[type[Message], dict[str, Any]]]:
    """A job, and what an honest replica 1 and shard 0 would say."""
    cast = Cast(make_job(work=Work(1000, unit=1)))
    cast.shards_ready()
    cast.join("one")
    who = {"replica": 1, "incarnation": 1, "secret": cast.secret(1, 1)}
    beat = {"role": "replica", "id": 1, "incarnation": 1, "secret": cast.secret(1, 1)}
    return cast, {
        Join: {"fingerprint": ""},
        ShardHello: {"url": "http://a"},
        Heartbeat: beat,
        LeaseRequest: who,
        Complete: {**who, "units": []},
        Leave: who,
    }


def decide(cast: Cast, kind: type[Message], body: bytes) -> None:
    """What the coordinator does with a body."""
    job = cast.job
    deciders: dict[type[Message], Callable[[Any, float], object]] = {
        Join: job.join,
        ShardHello: job.hello,
        Heartbeat: job.heartbeat,
        LeaseRequest: job.lease,
        Complete: job.complete,
        Leave: job.leave,
    }
    try:
        answer = deciders[kind](messages.decode(kind, body), cast.now)
    except DownpourError as error:
        check_words(error, 2 * limits.WORDS_LEN_MAX)
    else:
        assert isinstance(answer, Message)
        messages.decode(type(answer), messages.encode(answer))


KINDS: list[type[Message]] = [Join, ShardHello, Heartbeat, LeaseRequest, Complete, Leave]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_coordinator_answers_anything_in_words_and_does_not_grow(data: st.DataObject) -> None:
    from pydownpour.coordinator import view

    cast, known = running()
    for _ in range(8):
        kind = data.draw(st.sampled_from(KINDS))
        body = data.draw(bodies(kind, **known[kind]))
        calls = calls_of(functools.partial(decide, cast, kind, body))
        assert calls <= CALLS_MIN + CALLS_A_BYTE * len(body), (kind, body[:200])
        cast.now += 0.25
        cast.job.tick(cast.now)
    assert len(cast.job.members) <= 9
    status = view.status(cast.job, cast.now, run_folder="", report=None)
    assert messages.decode(messages.Status, messages.encode(status)).job == cast.declared.name


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes of it changed, cut out, doubled or added."""
    body = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del body[at : at + rng.randint(1, 20)]
            case 2:
                body[at:at] = body[at : at + 30]
            case 3:
                body[at:at] = rng.choice([b"9" * 400, b"[" * 50, b'{"a":', b"1e999", b"\xff", b"-"])
            case _:
                body[at : at + 8] = rng.randbytes(8)
    return bytes(body)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bodies_are_answered_in_words(seed: int) -> None:
    rng = random.Random(seed)
    cast, known = running()
    for number in range(400):
        kind = rng.choice(KINDS)
        decide(cast, kind, mutated(json.dumps(known[kind]).encode(), rng))
        if number % 50 == 0:
            cast.now += 0.1
            cast.job.tick(cast.now)
    assert len(cast.job.members) < 100


# -- frames ----------------------------------------------------------------------------------------

LENGTH, FRAGMENT_LEN = 64, 16
HEADER_FIELDS = {
    "flags": st.sampled_from([0, 1]),
    "replica": st.sampled_from([0, 1, 2, U32]),
    "incarnation": st.sampled_from([0, 1, 2, U32]),
    "fragment": st.sampled_from([0, 1, 3, 4, U32]),
    "seq": st.sampled_from([0, 1, 2, 5, 1023, 1024, 1025, 2**40, 2**62, U64 - 1, U64]),
    "version": st.sampled_from([0, 1, 2**62, U64]),
    "aux": st.sampled_from([0, 1, 9, 10, 11, 0x7FC0_0000, U32]),
    "count": st.sampled_from([0, 1, 2, 1023, 1024, 1025, U32]),
}
PAYLOADS = st.one_of(
    st.tuples(*[st.sampled_from([0, 1, 2, 6, 1024, 2**40, 2**62, U64])] * 3).map(
        lambda three: frames.PUSH_NOTICE.pack(*three)
    ),
    st.just(np.full(FRAGMENT_LEN, np.nan, "f4").tobytes()),
    st.binary(max_size=80),
)


@st.composite
def any_frame(draw: st.DrawFn, kinds: tuple[Kind, ...] = tuple(Kind)) -> bytes:
    """A frame whose checksums are right and whose numbers are anything."""
    kind = draw(st.sampled_from(kinds))
    fields = {name: draw(values) for name, values in HEADER_FIELDS.items()}
    if kind not in (Kind.PUSH, Kind.ACK):
        fields["flags"] = 0
    if draw(st.booleans()):  # one's own name, so that more gets through
        fields["replica"] = fields["incarnation"] = 1
    if kind in (Kind.FRAGMENT, Kind.PARAMETERS):
        fields["dtype"] = draw(st.sampled_from([0, 1, 2, 3, 4, 9]))
    return _core.encode_frame(kind=kind, payload=draw(PAYLOADS), **fields)


def make_shard() -> Shard:
    return Shard(
        ShardAssigned(
            index=0, incarnation=1, secret="", key=KEY.hex(), shards=1, epoch=1, start=0,
            len=LENGTH, stripe_len=16, fragment_len=FRAGMENT_LEN, fingerprint="f",
            optimizer=[("sgd", {"lr": 1.0})], policy={"name": "downpour"}, heartbeat_s=0.5,
            job="sample",
        )
    )  # fmt: skip


def say(shard: Shard, replica: int, data: bytes) -> tuple[bytes, int]:
    """Hold a conversation; (the answers, turns of its loop). It may end by an error of ours."""
    handler = PushHandler(shard, replica, 1)
    inlet, answers, turns = handler.inlet, b"", 0
    scratch = memoryview(inlet)
    try:
        while data:
            start, stop = inlet.window()
            n = min(stop - start, len(data))
            scratch[start : start + n], data = data[:n], data[n:]
            event = inlet.advance(n)
            while event is not None:
                turns += 1
                if not isinstance(event, _core.Frame) or event.kind == Kind.PUSH:
                    answers += handler.answer(event) or b""
                event = inlet.advance(0)
    except RemoteProtocolError as error:
        check_words(error, 400)
    finally:
        handler.close()
    return answers, turns


def honest(number: int) -> bytes:
    """A push of ones under the name of replica 7, when those before it are settled."""
    notice = frames.PushNotice(number, 1, 1, 1.0)
    data = frames.push(replica=7, incarnation=1, push=number, fragment=0, count=4, notice=notice)
    for i in range(4):
        data += _core.encode_frame(
            kind=Kind.FRAGMENT, dtype=1, replica=7, incarnation=1, fragment=i, seq=number,
            payload=np.full(FRAGMENT_LEN, -1.0, np.float32),
        )  # fmt: skip
    return data


@settings(max_examples=80, deadline=None)
@given(streams=st.lists(st.lists(any_frame(), max_size=6), max_size=4))
def test_a_shard_survives_any_frames_and_others_are_counted_exactly(
    streams: list[list[bytes]],
) -> None:
    shard = make_shard()
    shard.welcome(1, 1)
    shard.welcome(7, 1)
    memory = shard.store.memory()["parameters"]
    pushed = 0
    for listed in streams:
        data = b"".join(listed)
        answers, turns = say(shard, 1, data)
        assert turns <= 2 * len(listed) + 2, "an event for each frame, and one for what ended"
        assert len(answers) <= 1000 * (len(listed) + 1)
        before = shard.store.applied(7)
        assert before is not None
        acked, _ = say(shard, 7, honest(1 + pushed))
        ack = _core.scan_frames(acked)[-1]
        assert (ack.kind, frames.receipt(ack).applied) == (Kind.ACK, ack.count)
        pushed += 1
        assert shard.store.applied(7) == (1, pushed, 4 * pushed)
    values = np.empty(LENGTH, np.float32)
    shard.store.read(values)
    np.testing.assert_array_equal(values, float(pushed))
    assert shard.store.replicas <= 2, "nobody else got a window"
    assert shard.store.memory()["parameters"] == memory
    assert shard.reserved_bytes == 0


@pytest.mark.parametrize("seed", range(4))
def test_damaged_streams_apply_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    shard = make_shard()
    shard.welcome(7, 1)
    good = honest(1)
    for _ in range(300):
        say(shard, 7, mutated(good, rng))
    say(shard, 7, good)
    values = np.empty(LENGTH, np.float32)
    shard.store.read(values)
    np.testing.assert_array_equal(values, 1.0)


ANSWERS = (Kind.ACK, Kind.REFUSE, Kind.FETCHED, Kind.PING, Kind.PONG, Kind.ERROR, Kind.BYE)


async def hear(listed: list[bytes]) -> Link:
    """A link that has sent a push once, and what it makes of the answers."""
    link = Link(
        ShardEntry(index=0, url="http://a", start=0, len=LENGTH),
        lambda entry: Client(entry.url, access=Access()),
        replica=1,
        incarnation=1,
        headers={},
        fragment_len=FRAGMENT_LEN,
        wire_dtype="float32",
        codec=None,
        staging=np.zeros(LENGTH, np.float32),
        versions=np.zeros(-(-LENGTH // FRAGMENT_LEN), np.uint64),
        rng=random.Random(0),
    )
    encoded = EncodedPush(64 * len(link.fragments) + 4 * LENGTH, 64 + 4 * FRAGMENT_LEN, 1)
    link.push(Push(1, encoded, Base(link.versions, (0,)), 1, 1, 0.0, open_portions=1))
    for portion in link.queue:
        portion.send(portion.first, portion.count)
    for data in listed:
        for frame in _core.scan_frames(data):
            with contextlib.suppress(DownpourError):
                assert calls_of(functools.partial(link.on_frame, frame)) < 300
    return link


@settings(max_examples=80, deadline=None)
@given(listed=st.lists(any_frame(ANSWERS), max_size=8))
def test_a_link_survives_any_answers(listed: list[bytes]) -> None:
    link = asyncio.run(hear(listed))
    assert 0 <= link.open_records <= len(link.fragments)
    assert link.duplicates == 0, "nothing was sent twice, and nobody is believed who says so"
