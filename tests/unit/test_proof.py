"""Nobody speaks for another: every message to the coordinator without the right secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import msgspec
import pytest

from pydownpour.errors import AuthError, ConfigError, Fenced, RemoteProtocolError
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Complete,
    Heartbeat,
    Join,
    LeaseRequest,
    Leave,
    ReplicaStats,
    ShardHello,
    ShardStats,
)
from pydownpour.wire.proof import Keeper
from tests.fakes.coordination import KEY, Cast

KEEPER = Keeper(KEY)


def test_a_secret_is_the_keyed_hash_of_who_shows_it() -> None:
    expected = hmac.new(KEY, b"replica|7|2", hashlib.sha256).hexdigest()
    assert KEEPER.secret("replica", 7, 2) == expected
    KEEPER.check("replica", 7, 2, expected)
    for role, who, life in (("shard", 7, 2), ("replica", 72, 2), ("replica", 7, 1)):
        with pytest.raises(AuthError, match=f"{role} {who} incarnation {life} did not show"):
            KEEPER.check(role, who, life, expected)
    for wrong in ("", expected[:-1], expected.upper(), "é", "\ud800", expected + "0"):
        with pytest.raises(AuthError):
            KEEPER.check("replica", 7, 2, wrong)


def test_keys_travel_as_hex_and_derived_ones_are_others() -> None:
    assert Keeper.from_text(KEEPER.text()).secret("shard", 0, 1) == KEEPER.secret("shard", 0, 1)
    derived = KEEPER.derive("replicas")
    assert derived.text() != KEEPER.text()
    assert derived.secret("shard", 0, 1) != KEEPER.secret("shard", 0, 1)
    assert KEEPER.text() not in repr(KEEPER)
    for wrong in ("", "00", "zz" * 32, "00" * 33):
        with pytest.raises(RemoteProtocolError, match="32 bytes in hex"):
            Keeper.from_text(wrong)


def running() -> Cast:
    cast = Cast()
    cast.shards_ready()
    cast.join("victim")
    cast.join("hostile")
    return cast


VICTIM, HOSTILE = 1, 2


def wrong_secrets(cast: Cast) -> list[str]:
    """What a peer of the job can show: nothing, its own, another life's, a shard's."""
    keeper = cast.job.replica_keeper
    return [
        "",
        "0" * 64,
        keeper.secret("replica", HOSTILE, 1),
        keeper.secret("replica", VICTIM, 2),
        keeper.secret("shard", VICTIM, 1),
    ]


SAID_FOR_ANOTHER: dict[str, Callable[[Cast, str], object]] = {
    "a heartbeat": lambda cast, secret: cast.job.heartbeat(
        Heartbeat(
            role="replica",
            id=VICTIM,
            incarnation=1,
            secret=secret,
            replica=ReplicaStats(samples=10**6),
            rss_peak_bytes=10**9,
        ),
        cast.now,
    ),
    "a request for work": lambda cast, secret: cast.job.lease(
        LeaseRequest(replica=VICTIM, incarnation=1, secret=secret, count=4), cast.now
    ),
    "a completion": lambda cast, secret: cast.job.complete(
        Complete(replica=VICTIM, incarnation=1, secret=secret, units=[]), cast.now
    ),
    "a goodbye": lambda cast, secret: cast.job.leave(
        Leave(replica=VICTIM, incarnation=1, secret=secret, reason="gone"), cast.now
    ),
}


@pytest.mark.parametrize("what", SAID_FOR_ANOTHER)
def test_what_is_said_for_another_is_refused_and_changes_nothing(what: str) -> None:
    cast = running()
    member = cast.job.members.get(VICTIM)
    assert member is not None
    cast.pass_time(1.0, beating=(HOSTILE,))
    before = (member.seen_at, member.state, member.stats, member.rss_peak_bytes)
    events = len(cast.job.events)
    for secret in wrong_secrets(cast):
        with pytest.raises(AuthError, match="nobody speaks for another"):
            SAID_FOR_ANOTHER[what](cast, secret)
    assert (member.seen_at, member.state, member.stats, member.rss_peak_bytes) == before
    assert len(cast.job.events) == events


def test_a_shard_s_heartbeat_is_its_own() -> None:
    cast = running()
    shards = [cast.job.places.get(index) for index in range(2)]
    before = shards[0].stats
    other = cast.job.keeper.secret("shard", 1, 1)
    from_replicas_key = cast.job.replica_keeper.secret("shard", 0, 1)
    for secret in ("", other, from_replicas_key, cast.secret(VICTIM, 1)):
        beat = Heartbeat(
            role="shard",
            id=0,
            incarnation=1,
            secret=secret,
            epoch=1,
            shard=ShardStats(index=0, ready=True, lsn=10**9),
        )
        for played in (beat, msgspec.structs.replace(beat, epoch=0)):
            with pytest.raises(AuthError):
                cast.job.heartbeat(played, cast.now)
    assert shards[0].stats is before


def test_a_shard_that_lost_its_place_is_fenced_though_its_secret_was_good() -> None:
    cast = Cast()
    first = cast.hello("a")
    cast.pass_time(61)  # it never loads
    second = cast.hello("b")
    assert (first.index, second.index) == (0, 0)
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.secret != second.secret
    assert first.key == second.key
    beat = Heartbeat(role="shard", id=0, incarnation=1, secret=first.secret, epoch=1)
    assert cast.job.heartbeat(beat, cast.now).fenced
    with pytest.raises(AuthError):
        cast.job.loading(0, first.secret, cast.now)


def test_coming_back_needs_the_owner_s_key() -> None:
    cast = running()
    for owner in ("", "guessed", "hostile"):
        joined = cast.job.join(Join(name="victim", owner=owner), cast.now)
        assert joined.replica != VICTIM
    victim = cast.job.members.get(VICTIM)
    assert victim is not None
    assert victim.incarnation == 1
    again = cast.join("victim")
    assert (again.replica, again.incarnation) == (VICTIM, 2)
    assert again.secret == cast.secret(VICTIM, 2)
    old = Leave(replica=VICTIM, incarnation=1, secret=cast.secret(VICTIM, 1))
    with pytest.raises(Fenced):
        cast.job.leave(old, cast.now)


def test_no_secret_stands_where_everybody_may_read() -> None:
    from pydownpour.coordinator import view
    from pydownpour.coordinator.report import build_report

    cast = running()
    cast.job.join(Join(owner="an owner's", nonce="a nonce"), cast.now)
    status = messages.encode(view.status(cast.job, cast.now, run_folder="", report=None)).decode()
    report = str(build_report(cast.job, cast.now, version="0", rss_peak_bytes=0, storage="off"))
    secrets = [cast.job.keeper.text(), cast.job.replica_keeper.text(), cast.secret(VICTIM, 1)]
    secrets += [cast.job.keeper.secret("shard", 0, 1), "an owner's", "a nonce"]
    for text in (status, report, str(list(cast.job.events))):
        for secret in secrets:
            assert secret not in text


def test_a_hello_repeated_needs_the_nonce() -> None:
    cast = Cast()
    first = cast.hello("a", index=0)
    assert cast.hello("a", index=0).secret == first.secret
    for nonce in ("", "b"):
        with pytest.raises(Exception, match="has that place"):
            cast.job.hello(ShardHello(url="http://x", index=0, nonce=nonce), cast.now)


@pytest.mark.parametrize(
    "url",
    [
        "", "a", "ftp://a", "http://", "https://:1", "http://a:99999", "http://a:x", "http://u@a",
        "http://a/?q", "http://a/#f", "http://a b", "http://a\r\nX: y", "http://[::1",
        "file:///etc",
    ],
)  # fmt: skip
def test_a_shard_s_url_is_one_that_replicas_can_use(url: str) -> None:
    cast = Cast()
    with pytest.raises(ConfigError, match="must be http:// or https://"):
        cast.job.hello(ShardHello(url=url), cast.now)


def test_a_job_of_https_takes_no_plain_shard() -> None:
    cast = Cast()
    cast.job.tls = True
    for url in ("http://10.0.0.5:7001", "http://localhost:1"):
        with pytest.raises(ConfigError, match="token would travel in the clear"):
            cast.job.hello(ShardHello(url=url), cast.now)
    assert cast.job.hello(ShardHello(url="https://a/shard-0"), cast.now).index == 0
    plain = Cast()
    assert plain.job.hello(ShardHello(url="https://a/shard-0"), plain.now).index == 0, (
        "a coordinator behind a proxy does not know that it is reached by https"
    )
