"""Connections of a server, on virtual time: who may stay, for how long, and what is parsed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from pydownpour import limits
from pydownpour.net import process
from pydownpour.net.server import Call, Route
from tests.fakes.network import STEADY, End
from tests.fakes.serving import HEAD, Serving, serving

GET = b"GET /v1/answer HTTP/1.1\r\n" + HEAD + b"\r\n"
SIZE = 1_000_000


def post(size: int) -> bytes:
    kind = b"Content-Type: application/octet-stream\r\n"
    return b"POST /v1/count HTTP/1.1\r\n" + HEAD + kind + b"Content-Length: %d\r\n\r\n" % size


async def answer(call: Call) -> str:
    return "answer"


async def count(call: Call) -> str:
    assert call.chunks is not None
    total = 0
    async for chunk in call.chunks:
        total += len(chunk)
    return f"{total} bytes"


ROUTES = [
    Route("GET", "/healthz", answer, public=True),
    Route("GET", "/v1/answer", answer),
    Route("POST", "/v1/count", count, streamed=True, body_size_max=SIZE),
]


@pytest.fixture
def net() -> Iterator[Serving]:
    with serving(ROUTES) as net:
        yield net


# -- how long ----------------------------------------------------------------------------------


def test_silence_half_a_header_and_half_a_second_request_are_cut_off(net: Serving) -> None:
    silent, half, second = net.call(), net.call(), net.call()
    net.say(half, GET[:-2])
    net.say(second, GET)
    net.wait(1.0)
    net.say(second, GET[:-2])
    net.wait(limits.DEFAULT.header_timeout_s + 1.0)
    assert second.got.endswith(b"answer")
    for end in (silent, half, second):
        assert "eof" in end.words, "cut off"


def test_a_header_that_dribbles_is_cut_off_all_the_same(net: Serving) -> None:
    slow = net.call()
    for byte in GET[:-2]:
        net.say(slow, bytes([byte]))
        net.wait(1.0)
        if "eof" in slow.words:
            break
    assert slow.told[0][0] <= limits.DEFAULT.header_timeout_s + 2.0


def test_half_a_request_behind_a_whole_one_does_not_keep_a_connection_for_ever(
    net: Serving,
) -> None:
    both = net.call()
    net.say(both, GET + GET[:-2])
    net.wait(limits.DEFAULT.keepalive_s + 1.0)
    assert "eof" in both.words


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_the_time_of_a_header_ends_with_the_header_however_its_body_comes(
    net: Serving, pieces: int
) -> None:
    """The body's second read may come before aiohttp has made a request of the header."""
    end = net.call()
    net.say(end, post(SIZE), *[b"x" * 1000] * pieces)
    net.wait(limits.DEFAULT.header_timeout_s + 1.0)
    net.say(end, b"y" * (SIZE - 1000 * pieces))
    net.wait(1.0)
    assert end.got.endswith(b"%d bytes" % SIZE)


def test_a_body_of_a_kilobyte_a_second_may_take_its_time(net: Serving) -> None:
    end, size = net.call(), 200_000
    net.say(end, post(size))
    for _ in range(size // 1000):
        net.say(end, b"x" * 1000)
        net.wait(1.0)
    assert end.got.endswith(b"%d bytes" % size)


def test_a_body_that_dribbles_is_given_up(net: Serving) -> None:
    end = net.call()
    net.say(end, post(SIZE))
    for _ in range(10):
        net.say(end, b"x")
        net.wait(limits.DEFAULT.body_window_s / 8)
    assert b"400 Bad Request" in end.got
    assert b"body stalled after" in end.got
    assert "eof" in end.words


# -- what is parsed ----------------------------------------------------------------------------


def test_headers_without_end_are_cut_off_at_their_limit(net: Serving) -> None:
    end = net.call()
    net.say(end, b"GET / HTTP/1.1\r\n", *[b"X-%d: %s\r\n" % (i, b"y" * 4000) for i in range(30)])
    net.wait(0.1 + 2 * 0.5)
    assert "eof" in end.words or "ECONNRESET" in end.words


def test_a_body_in_chunks_is_refused_before_its_chunks_are_parsed(net: Serving) -> None:
    head = b"POST /v1/count HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    before = net.loop.events
    got = net.ask(head + b"1\r\nx\r\n" * 100_000)
    assert b"411 Length Required" in got
    assert net.loop.events - before < 100, "turns of the loop"


def test_another_upgrade_is_answered_as_a_request_and_what_follows_is_not_parsed(
    net: Serving,
) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    end = net.call()
    net.say(end, GET[:-2] + upgrade, b"POST / HTTP/1.1\r\n" + b"z" * 100_000)
    net.wait(1.0)
    assert end.got.count(b"HTTP/1.1 ") == 1
    assert "eof" in end.words or "ECONNRESET" in end.words


def test_requests_in_a_row_leave_a_turn_for_others_between_them() -> None:
    served: list[str] = []

    async def note(call: Call) -> str:
        served.append(call.query["from"])
        return "noted"

    with serving([Route("GET", "/v1/note", note)]) as net:
        many, other = net.call(), net.call()
        get = b"GET /v1/note?from=%s HTTP/1.1\r\n" + HEAD + b"\r\n"
        net.say(many, get % b"many" * 1000)
        net.say(other, get % b"other")
        net.wait(2.0)
        assert many.got.count(b"200 OK") == 1000
    assert served.index("other") < 10


# -- who may stay ------------------------------------------------------------------------------


POOR = 50
"""Room for so many connections, half of them strangers'."""


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    few = (2 * POOR, 0)
    monkeypatch.setattr(process, "descriptors", lambda: few)
    near = dataclasses.replace(STEADY, latency_s=0.0)
    with serving(ROUTES, here=near, there=near) as net:
        yield net


def is_open(end: End) -> bool:
    return not {"eof", "lost", "ECONNRESET"} & set(end.words)


def test_strangers_in_silence_make_room_for_each_other_and_never_for_want_of_a_place_for_peers(
    poor: Serving,
) -> None:
    known = [poor.call() for _ in range(POOR // 2 - 1)]
    for end in known:
        poor.say(end, GET)
    poor.wait(0.1)
    strangers = []
    for _ in range(4 * POOR):
        strangers.append(poor.call())
        assert b"answer" in poor.ask(GET), "an honest peer that has no connection yet"
    poor.wait(1.0)
    assert all(is_open(end) for end in known)
    assert sum(map(is_open, strangers)) <= POOR // 2
    assert not is_open(strangers[0]), "the oldest goes"
    assert is_open(strangers[-1])


def test_when_all_are_known_those_at_rest_make_room_and_none_at_work_does(poor: Serving) -> None:
    busy, resting = [], []
    for _ in range(10):
        busy.append(poor.call())
        poor.say(busy[-1], post(11) + b"half")
        poor.wait(0.1)
    for _ in range(POOR - 10):
        resting.append(poor.call())
        poor.say(resting[-1], GET)
        poor.wait(0.1)
    assert all(is_open(end) for end in (*busy, *resting))
    late = [poor.call() for _ in range(5)]
    poor.wait(1.0)
    assert [is_open(end) for end in resting[:6]] == [False] * 5 + [True]
    assert all(is_open(end) for end in (*busy, *late))
    for end in busy:
        poor.say(end, b" a body")
    poor.wait(1.0)
    assert all(end.got.endswith(b"11 bytes") for end in busy)


# -- what is said ------------------------------------------------------------------------------

NOT_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a header without colon": b"GET / HTTP/1.1\r\nnonsense\r\n\r\n",
    "a length that is none": post(1).replace(b": 1\r", b": +1\r"),
    "a length and chunks": post(1)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n",
    "two lengths": post(1)[:-2] + b"Content-Length: 2\r\n\r\n",
    "a long line": b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n",
    "a new version": b"GET / HTTP/9.9\r\nHost: 10.0.0.2\r\n\r\n",
    "a bad URL": b"GET http://[::1 HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n",
}


@pytest.mark.parametrize("case", NOT_HTTP)
def test_what_is_no_http_is_answered_400_and_said_in_one_line_a_minute(
    net: Serving, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        got = net.ask(NOT_HTTP[case])
        assert got.startswith(b"HTTP/1.1 400 ") or got.startswith(b"HTTP/1.0 400 "), got
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert lines[0].startswith("test: 10.0.0.1: "), lines
    assert all("\n" not in line and len(line) <= 300 for line in lines)
    assert not any(record.exc_info for record in caplog.records)
    net.wait(limits.DEFAULT.noise_s)
    net.ask(NOT_HTTP[case])
    assert "(19 more like it were not said)" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /v1/answer HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n", 401),
        (b"GET /nowhere%c3%28%0a HTTP/1.1\r\n" + HEAD + b"\r\n", 404),
        (b"BREW /v1/answer HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
        (b"DELETE /v1/answer HTTP/1.1\r\n" + HEAD + b"\r\n", 404),
        (b"CONNECT 10.0.0.2:80 HTTP/1.1\r\n" + HEAD + b"\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\n" + HEAD + b"\r\n", 404),
        (post(1).replace(b"octet-stream", b"x-www-form-urlencoded") + b"x", 415),
        (b"GET /v1/answer HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999\r\n\r\n", 413),
    ],
    ids=["token", "path", "method", "other method", "connect", "star", "type", "size"],
)
def test_a_request_we_do_not_serve_gets_its_status_and_no_traceback(
    net: Serving, request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    got = net.ask(request_)
    assert b" %d " % status in got[:20], got
    assert all(record.levelno < logging.ERROR and not record.exc_info for record in caplog.records)


def test_a_fault_of_ours_is_one_traceback_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(call: Call) -> str:
        raise ZeroDivisionError

    with serving([Route("GET", "/v1/broken", broken)]) as net:
        for _ in range(10):
            got = net.ask(b"GET /v1/broken HTTP/1.1\r\n" + HEAD + b"\r\n")
            assert b"500 Internal" in got
    assert [record.exc_info is not None for record in caplog.records] == [True]


# -- who takes its time over an answer ---------------------------------------------------------


def test_long_answers_that_nobody_reads_are_bounded_and_given_up() -> None:
    size = 2_000_000
    three = limits.Limits(bodies_size_max=3 * size)

    async def long(call: Call) -> bytes:
        return bytes(size)

    with serving([Route("GET", "/v1/long", long)], limits=three) as net:
        get = b"GET /v1/long HTTP/1.1\r\n" + HEAD + b"\r\n"
        slow = [net.call() for _ in range(5)]
        for end in slow:
            end.transport.pause_reading()
            net.say(end, get)
        net.wait(1.0)
        bodies = net.server_._bodies
        assert bodies.used == 3 * size
        assert net.ask(get).startswith(b"HTTP/1.1 429 ")
        net.wait(2 * limits.DEFAULT.reader_window_s)
        assert bodies.used == 0
        honest = net.call()
        net.say(honest, get)
        net.wait(limits.DEFAULT.reader_window_s)
        assert honest.got.count(b"\0") == size
