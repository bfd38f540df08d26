"""Who is let in: the checks of a join or a hello, and the answers that let a role start."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from pydownpour.codecs import Entry
from pydownpour.coordinator.declared import Declared
from pydownpour.coordinator.membership import Member
from pydownpour.coordinator.places import Place
from pydownpour.errors import AuthError, ConfigError, LayoutMismatch
from pydownpour.layout import Partition
from pydownpour.limits import Limits
from pydownpour.net.access import check_not_plain
from pydownpour.optimizers import Parts
from pydownpour.policy import is_ours
from pydownpour.policy.phases import phases_of
from pydownpour.wire import messages
from pydownpour.wire.messages import (
    Join,
    Joined,
    PolicyEntry,
    ShardAssigned,
    ShardHello,
    ShardMap,
    Source,
    WorkEntry,
)
from pydownpour.wire.proof import Keeper

REPLICAS = "replicas"
"""Names the key that replicas' secrets are made with."""


def protocol(low: int, high: int, who: str) -> int:
    """The highest protocol version both sides speak.

    Raises:
        ConfigError: there is none; names both ranges.
    """
    best = min(high, messages.PROTOCOL)
    if best < max(low, messages.PROTOCOL_MIN):
        raise ConfigError(
            f"the {who} speaks protocol {low} to {high}, this coordinator "
            f"{messages.PROTOCOL_MIN} to {messages.PROTOCOL}; use the same pydownpour version"
        )
    return best


def check_layout(job: Declared, join: Join) -> None:
    """Refuse parameters that are not the job's.

    Raises:
        LayoutMismatch: the replica, which then asks for the job's layout, says what differs.
    """
    if join.fingerprint and join.fingerprint != job.layout.fingerprint:
        whose = f"replica {join.name!r}" if join.name else "the replica"
        raise LayoutMismatch(
            f"{whose} has other parameters (fingerprint {join.fingerprint[:16]}...) than job "
            f"{job.name!r} ({job.layout.fingerprint[:16]}...); GET /v1/layout lists the job's"
        )


def check_dtype(job: Declared, join: Join) -> None:
    """Refuse a replica that cannot send what the job's shards take.

    Raises:
        ConfigError: names what each side wants.
    """
    if join.wire_dtypes and job.wire_dtype not in join.wire_dtypes:
        raise ConfigError(
            f"this job sends gradients as {job.wire_dtype}, the replica can send "
            f"{', '.join(join.wire_dtypes)}; set wire_dtype in the job"
        )


def check_codec(job: Declared, peer: Join | ShardHello, who: str) -> None:
    """Refuse a replica that cannot encode, or a shard that cannot decode, what the job asks for.

    Raises:
        ConfigError: names what each side wants.
    """
    if job.codec is not None and job.codec.name not in peer.codecs:
        known = ", ".join(peer.codecs) or "none"
        raise ConfigError(
            f"this job encodes gradients by {job.codec.describe()}, the {who} knows {known} "
            f"(pydownpour {peer.version or 'of an unknown version'}); use a build that has "
            f"{job.codec.name}, or a job without codec="
        )


def check_policy(job: Declared, hello: ShardHello) -> None:
    """Refuse a shard that cannot build each policy that the job declares.

    Raises:
        ConfigError: says how to give it the class.
    """
    own = own_policies(job)
    if own and not hello.has_job:
        raise ConfigError(
            f"this job's policy {own[0]!r} is a class of its job file: start the shard "
            "with --job FILE"
        )


def own_policies(job: Declared) -> list[str]:
    """The names of the declared policies that are none of ours."""
    return [kind.name for kind in phases_of(job.policy).classes() if not is_ours(kind.name)]


def check_url(url: str, *, tls: bool) -> None:
    """Refuse an advertised URL that replicas could not use, or should not.

    Args:
        url: The shard's.
        tls: Whether the coordinator itself is reached by https.

    Raises:
        ConfigError: it is no http or https URL of a host, or not https although we are.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    odd = " " in url or not url.isprintable()
    if odd or not good or parts.username or parts.query or parts.fragment:
        raise ConfigError(
            f"shard URL {url[:200]!r} must be http:// or https://, a host, and maybe a port and a "
            "path"
        )
    if tls:
        check_not_plain("https://", url, "the shard")


def assigned(
    job: Declared,
    policy: PolicyEntry,
    partition: Partition,
    place: Place,
    keeper: Keeper,
    limits: Limits,
) -> ShardAssigned:
    """What a shard needs to start."""
    return ShardAssigned(
        index=place.index,
        incarnation=place.incarnation,
        secret=keeper.secret("shard", place.index, place.incarnation),
        key=keeper.derive(REPLICAS).text(),
        shards=partition.shards,
        epoch=place.epoch,
        start=place.start,
        len=place.len,
        stripe_len=partition.stripe_len,
        fragment_len=partition.fragment_len,
        fingerprint=job.layout.fingerprint,
        optimizer=job.shard_optimizer.parts(),
        policy=policy.settings,
        policy_version=policy.version,
        max_norm=job.max_norm,
        codec=_entry(job),
        durability=job.durability,
        heartbeat_s=limits.heartbeat_s,
        job=job.name,
    )


def successor(
    declared: Declared,
    policy: PolicyEntry,
    partition: Partition,
    place: Place,
    keeper: Keeper,
    limits: Limits,
) -> ShardAssigned:
    """What a process needs that takes a shard over."""
    taking = place.successor
    assert taking is not None
    return msgspec.structs.replace(
        assigned(declared, policy, partition, place, keeper, limits),
        incarnation=taking.incarnation,
        secret=keeper.secret("shard", place.index, taking.incarnation),
        epoch=0,
        source=Source(url=place.url, secret=handover_secret(place, keeper)),
    )


def ticket(place: Place, keeper: Keeper) -> str:
    """What the next process shows that may take the place over."""
    return keeper.secret("ticket", place.index, place.incarnations + 1)


def check_ticket(place: Place, shown: str, keeper: Keeper) -> None:
    """Whether a process may take the place over.

    Raises:
        AuthError: it has no ticket, or an old one.
    """
    if not place.is_to_move:
        raise AuthError(f"{place.describe()} is not to move, or its ticket was used before")
    keeper.check("ticket", place.index, place.incarnations + 1, shown)


def handover_secret(place: Place, keeper: Keeper) -> str:
    """What a successor shows to the shard whose place it takes over; "" if there is none."""
    if place.successor is None:
        return ""
    return keeper.secret("successor", place.index, place.successor.incarnation)


def joined(
    job: Declared,
    policy: PolicyEntry,
    partition: Partition,
    shard_map: ShardMap,
    work: WorkEntry | None,
    member: Member,
    version: int,
    keeper: Keeper,
    limits: Limits,
) -> Joined:
    """What a replica needs to start."""
    return Joined(
        replica=member.id,
        incarnation=member.incarnation,
        secret=keeper.derive(REPLICAS).secret("replica", member.id, member.incarnation),
        protocol=version,
        stripe_len=partition.stripe_len,
        fragment_len=partition.fragment_len,
        shard_map=shard_map,
        fingerprint=job.layout.fingerprint,
        policy=policy.settings,
        policy_version=policy.version,
        policies_own=own_policies(job),
        optimizer=parts_of(job),
        work=work,
        wire_dtype=job.wire_dtype,
        max_norm=job.max_norm,
        codec=_entry(job),
        durability=job.durability,
        heartbeat_s=limits.heartbeat_s,
        lease_s=limits.lease_s,
        job=job.name,
    )


def parts_of(job: Declared) -> Parts:
    """What replicas hear of the job's optimizer: none where each user's loop has its own."""
    return [] if job.optimizer is None else job.optimizer.parts()


def _entry(job: Declared) -> Entry | None:
    return None if job.codec is None else job.codec.entry()
