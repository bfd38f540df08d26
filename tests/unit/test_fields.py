"""What comes from outside has a bound: every field of every message, and the decoder's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from pydownpour import fields, limits
from pydownpour.errors import RemoteProtocolError
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    Heartbeat,
    JobLayout,
    LeaseRequest,
    Leave,
    Message,
    ShardHello,
    ShardStats,
)

FREE = {("Status", "report")}
"""A coordinator's report, for a person to read: bounded by its body's size alone."""


def all_messages() -> list[type[Message]]:
    found: list[type[Message]] = []
    waiting = [Message]
    while waiting:
        below = waiting.pop().__subclasses__()
        found += below
        waiting += below
    return sorted(found, key=lambda kind: kind.__name__)


def unbounded(kind: inspect.Type, where: str) -> Iterator[str]:
    """The places of a type where a peer may send as much as it likes."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
                yield f"{where}: a number without a least and a greatest"
        case inspect.StrType() | inspect.BytesType():
            if kind.max_length is None:
                yield f"{where}: a string without max_length"
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            if kind.max_length is None:
                yield f"{where}: a list without max_length"
            yield from unbounded(kind.item_type, f"{where}[]")
        case inspect.TupleType():
            for i, item in enumerate(kind.item_types):
                yield from unbounded(item, f"{where}[{i}]")
        case inspect.DictType():
            if kind.max_length is None:
                yield f"{where}: a dictionary without max_length"
            if not isinstance(kind.key_type, inspect.StrType):
                yield f"{where}: a dictionary whose keys the peer can make collide"
            yield from unbounded(kind.key_type, f"{where} key")
            yield from unbounded(kind.value_type, f"{where}{{}}")
        case inspect.UnionType():
            for item in kind.types:
                yield from unbounded(item, where)
        case inspect.Metadata():
            yield from unbounded(kind.type, where)
        case inspect.StructType():
            for field in kind.fields:
                place = (kind.cls.__name__, field.name)
                if place not in FREE:
                    yield from unbounded(field.type, f"{where}.{field.name}")
        case inspect.BoolType() | inspect.NoneType() | inspect.LiteralType():
            pass
        case _:
            yield f"{where}: {type(kind).__name__} is not a type with a bound"


@pytest.mark.parametrize("kind", all_messages(), ids=lambda kind: kind.__name__)
def test_every_field_of_every_message_has_a_bound(kind: type[Message]) -> None:
    assert list(unbounded(inspect.type_info(kind), kind.__name__)) == []


def test_the_walk_notices_fields_without_bounds() -> None:
    class Loose(msgspec.Struct):
        number: int
        fraction: float
        half: Any
        words: str
        many: list[bool]
        table: dict[int, int]
        pair: tuple[str, int] | None

    found = list(unbounded(inspect.type_info(Loose), "Loose"))
    for field in ("number", "fraction", "half", "words", "many", "table", "pair[0]", "pair[1]"):
        assert any(f"Loose.{field}" in problem for problem in found), field


NUMBER = b'{"replica":%s,"incarnation":1}'
DEEP = 100_000

MALFORMED: dict[str, tuple[type[Message], bytes]] = {
    "a replica id of 33 bits": (LeaseRequest, NUMBER % b"4294967296"),
    "a negative id": (LeaseRequest, NUMBER % b"-1"),
    "5,000 digits": (LeaseRequest, NUMBER % (b"9" * 5000)),
    "3,000 digits": (LeaseRequest, NUMBER % (b"9" * 3000)),
    "an integer as 1e3": (LeaseRequest, NUMBER % b"1e3"),
    "an integer as 1e400": (LeaseRequest, NUMBER % b"1e400"),
    "true for a number": (LeaseRequest, NUMBER % b"true"),
    "an infinite loss": (
        Heartbeat,
        b'{"role":"replica","id":1,"replica":{"loss":1e400}}',
    ),
    "a loss of 4,000 digits": (
        Heartbeat,
        b'{"role":"replica","id":1,"replica":{"loss":' + b"9" * 4000 + b"}}",
    ),
    "negative seconds": (Heartbeat, b'{"role":"replica","id":1,"replica":{"waited_work_s":-1}}'),
    "more steps than can be": (
        Heartbeat,
        b'{"role":"replica","id":1,"replica":{"steps":9007199254740993}}',
    ),
    "deep nesting in a field nobody knows": (Leave, b'{"mood":' + b"[" * DEEP + b"}"),
    "deep and well formed": (Leave, b'{"mood":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "deep objects": (Leave, b'{"mood":' + b'{"a":' * DEEP + b"}"),
    "bytes that are no UTF-8": (Leave, b'{"replica":1,"incarnation":1,"reason":"\xff\xfe"}'),
    "half a surrogate pair": (Leave, b'{"replica":1,"incarnation":1,"reason":"\\ud800"}'),
    "an unknown role of 100 kB and of two lines": (
        Heartbeat,
        b'{"role":"' + b"x\\ny" * 30_000 + b'","id":1}',
    ),
    "a host of 4 MB": (ShardHello, b'{"url":"http://a","host":"' + b"h" * 4_000_000 + b'"}'),
    "a URL of 5,000 characters": (ShardHello, b'{"url":"http://' + b"h" * 5000 + b'"}'),
    "words of 5,000 characters": (
        Leave,
        b'{"replica":1,"incarnation":1,"reason":"' + b"w" * 5000 + b'"}',
    ),
    "too many dimensions": (
        JobLayout,
        b'{"fingerprint":"","arrays":[{"name":"a","dtype":"float32","shape":['
        + b",".join([b"1"] * 65)
        + b"]}]}",
    ),
    "a negative extent": (
        JobLayout,
        b'{"fingerprint":"","arrays":[{"name":"a","dtype":"float32","shape":[-1]}]}',
    ),
    "200,000 arrays": (
        JobLayout,
        b'{"fingerprint":"","arrays":['
        + b",".join([b'{"name":"a","dtype":"float32","shape":[1]}'] * 100_001)
        + b"]}",
    ),
    "a thousand and more held leases": (
        LeaseRequest,
        b'{"replica":1,"incarnation":1,"held":[' + b",".join([b"1"] * 1025) + b"]}",
    ),
    "a thousand and more units": (
        Complete,
        b'{"replica":1,"incarnation":1,"units":['
        + b",".join([b'{"pass_index":0,"unit":0,"lease":1,"samples":1}'] * 1025)
        + b"]}",
    ),
    "a memory account of 65 rows": (
        ShardStats,
        b'{"memory":{' + b",".join(b'"%d":1' % i for i in range(65)) + b"}}",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_out_of_bounds_is_one_error_in_one_short_line(what: str) -> None:
    kind, body = MALFORMED[what]
    with pytest.raises(RemoteProtocolError, match=f"bad {kind.__name__} message: ") as caught:
        messages.decode(kind, body)
    words = str(caught.value)
    assert len(words) < 400
    assert "\n" not in words


def test_a_problem_of_any_depth_is_somebody_else_s_page() -> None:
    from pydownpour.wire import problems

    assert problems.parse(b"[" * DEEP) is None
    assert problems.parse(b'{"code":"x","message":"' + b"w" * 5000 + b'"}') is None


def test_long_words_are_clipped_before_they_travel() -> None:
    from pydownpour.errors import ConfigError
    from pydownpour.wire import problems

    _, problem = problems.describe(ConfigError("w" * 100_000))
    assert len(problem.message) == limits.WORDS_LEN_MAX
    assert messages.decode(messages.Problem, messages.encode(problem)) == problem
    assert fields.clip("short") == "short"


def test_what_a_job_declares_fits_into_the_messages_that_carry_it() -> None:
    from pydownpour.errors import ConfigError
    from pydownpour.job import Work
    from pydownpour.layout import ArrayEntry, Layout, partition
    from pydownpour.policy.downpour import Downpour

    def array(name: str = "w", shape: tuple[int, ...] = (4,)) -> list[ArrayEntry]:
        return [ArrayEntry(name=name, shape=shape, dtype="float32")]

    too_much = limits.COUNT_MAX + 1
    for build, words in (
        (lambda: Work(10, seed=too_much), "seed"),
        (lambda: Work(2**40, unit=2**40, passes=2**20), "fewer passes"),
        (lambda: Downpour(push_every=too_much), "push_every"),
        (lambda: Downpour(warm_start=too_much), "warm_start"),
        (lambda: Layout.from_entries(array("n" * 2000)), "ARRAY_NAME_LEN_MAX"),
        (lambda: Layout.from_entries(array(shape=(1,) * 65)), "shape"),
        (lambda: Layout.from_entries(array(shape=(limits.COUNT_MAX,) * 64)), "LAYOUT_LEN_MAX"),
        (lambda: partition(2**40, limits.SHARDS_MAX + 1), "SHARDS_MAX"),
    ):
        with pytest.raises(ConfigError, match=words):
            build()
