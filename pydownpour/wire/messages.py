"""The control plane: every JSON body, and which route carries it to whom.

    route (all POST but where said)  from         to           body -> answer
    /healthz              GET        anybody      any role     -> "ok" (no token needed)
    /v1/join                         replica      coordinator  Join -> Joined | Problem(retry)
    /v1/shard                        shard        coordinator  ShardHello -> ShardAssigned
    /v1/initial?shard=I   GET        shard        coordinator  -> raw little-endian f32
    /v1/heartbeat                    both         coordinator  Heartbeat -> HeartbeatAnswer
    /v1/lease                        replica      coordinator  LeaseRequest -> LeaseAnswer
    /v1/complete                     replica      coordinator  Complete -> CompleteAnswer
    /v1/leave                        replica      coordinator  Leave -> HeartbeatAnswer
    /v1/status            GET        anybody      coordinator  -> Status
    /v1/stop                         operator     coordinator  Stop -> HeartbeatAnswer
    /v1/hello             GET        replica      shard        -> Hello
    /v1/stream            GET        replica      shard        Upgrade: pydownpour/1, then frames
    /v1/push                         replica      shard        frames -> frames
    /v1/fetch?since=L     GET        replica      shard        -> frames
    /v1/stats             GET        coordinator  shard        -> ShardStats

Every answer that is not 2xx is a ``Problem``: a code, words, and whether to try again.
Unknown fields are ignored, so that a newer peer may say more.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from pydownpour.errors import RemoteProtocolError
from pydownpour.layout import ArrayEntry as ArrayEntry
from pydownpour.layout import ShardEntry as ShardEntry

PROTOCOL: Final = 1
"""Version of frames and messages this build speaks."""
PROTOCOL_MIN: Final = 1
"""Oldest version it still understands."""
UPGRADE: Final = f"pydownpour/{PROTOCOL}"
"""The Upgrade token of the stream."""

HEADER_REPLICA: Final = "X-Downpour-Replica"
HEADER_INCARNATION: Final = "X-Downpour-Incarnation"
HEADER_EPOCH: Final = "X-Downpour-Epoch"
HEADER_FINGERPRINT: Final = "X-Downpour-Fingerprint"
"""What a stream, push or fetch request says of itself."""

JobState = Literal["waiting", "running", "evaluating", "done", "failed"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all bodies: immutable, keyword only."""


class Problem(Message, frozen=True, kw_only=True):
    """Why a request was not served. ``code`` is a stable slug, ``message`` is for people."""

    code: str
    """unauthorized, mismatch, protocol, fenced, busy, waiting, unknown, invalid, limit, ended."""
    message: str
    retry_after_s: float | None = None


class WorkEntry(Message, frozen=True, kw_only=True):
    """What ``Work`` the job declared."""

    len: int
    unit: int
    passes: int
    shuffle: bool
    seed: int


class Join(Message, frozen=True, kw_only=True):
    """A replica asks to take part. No arrays and no fingerprint: it takes the job's layout."""

    arrays: list[ArrayEntry]
    fingerprint: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL
    version: str = ""
    host: str = ""
    pid: int = 0
    name: str = ""
    replica: int = 0
    """An id it had before (a supervised restart): same id, next incarnation. 0: a new one."""
    nonce: str = ""
    """Random per process: a join whose answer was lost is asked again without a new incarnation."""
    wire_dtypes: list[str] = []
    codecs: list[str] = []


class Joined(Message, frozen=True, kw_only=True):
    """The coordinator takes a replica in."""

    replica: int
    incarnation: int
    epoch: int
    protocol: int
    stripe_len: int
    fragment_len: int
    shards: list[ShardEntry]
    arrays: list[ArrayEntry]
    """The job's layout."""
    policy: dict[str, Any]
    optimizer: list[tuple[str, dict[str, float]]]
    work: WorkEntry | None
    wire_dtype: str
    heartbeat_s: float
    lease_s: float
    job: str


class ShardHello(Message, frozen=True, kw_only=True):
    """A shard process offers itself."""

    url: str
    host: str = ""
    pid: int = 0
    index: int | None = None
    """Wanted place, or any."""
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL
    version: str = ""
    nonce: str = ""


class ShardAssigned(Message, frozen=True, kw_only=True):
    """Its place: which elements it owns and what it does with gradients."""

    index: int
    shards: int
    epoch: int
    start: int
    len: int
    stripe_len: int
    fragment_len: int
    fingerprint: str
    optimizer: list[tuple[str, dict[str, float]]]
    policy: dict[str, Any]
    heartbeat_s: float
    job: str


class ReplicaStats(Message, frozen=True, kw_only=True):
    """What a replica counts; totals since its process started."""

    steps: int = 0
    samples: int = 0
    units: int = 0
    pushes_sent: int = 0
    pushes_acked: int = 0
    pushes_refused: int = 0
    gradients_dropped: int = 0
    """Steps whose gradient held NaN or Inf: never pushed."""
    records_duplicate: int = 0
    fetches: int = 0
    reconnects: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    loss: float | None = None
    """Mean of the last reported losses."""
    staleness: dict[int, int] = {}
    """Staleness -> acknowledged pushes with it (the largest over shards and fragments)."""
    wait_s: float = 0.0
    """Seconds step() waited for the network, in all."""
    waiting_for: str = ""
    rss_bytes: int = 0
    fallback: bool = False
    """True when a proxy refused Upgrade and pushes travel as POST."""


class ShardStats(Message, frozen=True, kw_only=True):
    """What a shard counts; totals since its process started."""

    index: int = 0
    ready: bool = False
    lsn: int = 0
    pushes: int = 0
    pushes_duplicate: int = 0
    pushes_refused: int = 0
    records_duplicate: int = 0
    records_refused: int = 0
    refused_by_replica: dict[int, int] = {}
    fetches: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    streams: int = 0
    staleness: dict[int, int] = {}
    memory: dict[str, int] = {}
    rss_bytes: int = 0
    rss_peak_bytes: int = 0


class Heartbeat(Message, frozen=True, kw_only=True):
    """I live, and these are my counts."""

    role: Literal["replica", "shard"]
    id: int
    """Replica id or shard index."""
    incarnation: int = 0
    epoch: int = 0
    replica: ReplicaStats | None = None
    shard: ShardStats | None = None
    rss_peak_bytes: int = 0


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """How the job stands. On done or failed the role ends; on fenced it must not push again."""

    state: JobState
    reason: str = ""
    fenced: bool = False


class LeaseRequest(Message, frozen=True, kw_only=True):
    """Give me up to ``count`` units."""

    replica: int
    incarnation: int
    count: int = 1
    held: list[int] | None = None
    """Leases the replica knows of. Others given to it are offered again: their answer was lost.
    None: not told, nothing is offered again."""


class UnitEntry(Message, frozen=True, kw_only=True):
    """One leased unit: elements [start, stop) of pass ``number``'s order."""

    number: int
    """The pass, from 0."""
    unit: int
    start: int
    stop: int
    lease: int


class LeaseAnswer(Message, frozen=True, kw_only=True):
    """Units, or none: then wait (and for whom), unless done."""

    units: list[UnitEntry] = []
    done: bool = False
    wait_s: float = 0.0
    reason: str = ""


class Completion(Message, frozen=True, kw_only=True):
    """One finished unit; recorded once, whoever else also computed it."""

    number: int
    unit: int
    lease: int
    samples: int
    loss: float | None = None
    seconds: float = 0.0


class Complete(Message, frozen=True, kw_only=True):
    """Units this replica finished: their gradients are acknowledged."""

    replica: int
    incarnation: int
    units: list[Completion]


class CompleteAnswer(Message, frozen=True, kw_only=True):
    """True for each unit whose completion counted, False where another's already did."""

    counted: list[bool]


class Leave(Message, frozen=True, kw_only=True):
    """A replica says goodbye; its open units go to others at once."""

    replica: int
    incarnation: int
    reason: str = ""
    stats: ReplicaStats | None = None


class Stop(Message, frozen=True, kw_only=True):
    """End the job early."""

    reason: str = ""


class Hello(Message, frozen=True, kw_only=True):
    """Who a shard is."""

    job: str
    index: int
    epoch: int
    protocol_min: int
    protocol_max: int
    fingerprint: str
    version: str


class ReplicaStatus(Message, frozen=True, kw_only=True):
    """One replica as the coordinator sees it."""

    id: int
    name: str
    incarnation: int
    state: Literal["live", "suspect", "dead", "left"]
    host: str
    pid: int
    joins: int
    age_s: float
    """Seconds since its last heartbeat."""
    units: int
    samples: int
    """Completed and counted, over all incarnations."""
    stats: ReplicaStats


class ShardStatus(Message, frozen=True, kw_only=True):
    """One shard as the coordinator sees it."""

    index: int
    state: Literal["missing", "loading", "ready", "dead"]
    url: str
    pid: int
    age_s: float
    stats: ShardStats


class EvaluationEntry(Message, frozen=True, kw_only=True):
    """One evaluation: after how much work, and what the job's function returned."""

    number: int
    """Passes finished."""
    at_s: float
    samples: int
    metrics: dict[str, float]


class Status(Message, frozen=True, kw_only=True):
    """Everything a progress display shows."""

    job: str
    state: JobState
    reason: str
    elapsed_s: float
    passes: int
    pass_number: int
    units_done: int
    units: int
    """Over all passes."""
    samples_done: int
    samples: int
    losses: list[tuple[float, int, float]]
    """(seconds, samples, mean loss) points, oldest first, thinned to a few hundred."""
    evaluations: list[EvaluationEntry]
    replicas: list[ReplicaStatus]
    shards: list[ShardStatus]
    run_folder: str
    report: dict[str, Any] | None = None
    """The final report once the state is done or failed."""


M = TypeVar("M", bound=Message)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Message], msgspec.json.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    """The JSON bytes of a message."""
    return _encoder.encode(message)


def decode(kind: type[M], data: bytes | bytearray | memoryview) -> M:
    """Parse and validate a body.

    Raises:
        RemoteProtocolError: not JSON, or a field is missing or of the wrong type; the message
            names the field.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"bad {kind.__name__} message: {error}") from error
