"""The control plane: every JSON body, and which route carries it to whom.

    route (all POST but where said)  from         to           body -> answer
    /healthz              GET        anybody      any role     -> "ok" (no token needed)
    /v1/layout            GET        replica      coordinator  -> JobLayout
    /v1/join                         replica      coordinator  Join -> Joined | Problem(retry)
    /v1/shard                        shard        coordinator  ShardHello -> ShardAssigned
    /v1/initial?shard=I   GET        shard        coordinator  -> raw little-endian f32
    /v1/heartbeat                    both         coordinator  Heartbeat -> HeartbeatAnswer
    /v1/lease                        replica      coordinator  LeaseRequest -> LeaseAnswer
    /v1/complete                     replica      coordinator  Complete -> CompleteAnswer
    /v1/leave                        replica      coordinator  Leave -> HeartbeatAnswer
    /v1/status            GET        anybody      coordinator  -> Status
    /v1/shard/ended                  engine       coordinator  ShardEnded -> HeartbeatAnswer
    /v1/stop                         operator     coordinator  Stop -> HeartbeatAnswer
    /v1/policy            GET        anybody      coordinator  -> PolicyStatus
    /v1/policy                       operator     coordinator  SetPolicy -> PolicyStatus
    /v1/stream            GET        replica      shard        Upgrade: pydownpour/1, then frames
    /v1/reduce           GET         replica      replica      Upgrade: pydownpour/1, then frames
    /v1/give                         shard        shard        Give -> Contents
    /v1/state?plane=P&start=S  GET   shard        shard        -> raw little-endian f32
    /v1/state            GET         shard        shard        -> versions, windows, LSN
    /v1/push                         replica      shard        frames -> frames
    /v1/fetch?since=L     GET        replica      shard        -> frames
    /v1/stats             GET        coordinator  shard        -> ShardStats

Every answer that is not 2xx is a ``Problem``: a code, words, and whether to try again.
Unknown fields are ignored, so that a newer peer may say more. Every field has a bound, in its type
(``pydownpour.fields``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from pydownpour import limits
from pydownpour.errors import RemoteProtocolError
from pydownpour.fields import (
    CodecEntry,
    Count,
    Finite,
    Json,
    Label,
    Norm,
    Parts,
    Seconds,
    Settings,
    Url,
    Word,
    Words,
    clip,
)
from pydownpour.histogram import HistogramEntry as HistogramEntry
from pydownpour.layout import ArrayEntry as ArrayEntry
from pydownpour.layout import ShardEntry as ShardEntry
from pydownpour.waits import WaitEntry as WaitEntry
from pydownpour.waits import WaitsEntry as WaitsEntry

PROTOCOL: Final = 1
"""Version of frames and messages this build speaks."""
PROTOCOL_MIN: Final = 1
"""Oldest version it still understands."""
UPGRADE: Final = f"pydownpour/{PROTOCOL}"
"""The Upgrade token of the stream."""

HEADER_REPLICA: Final = "X-Downpour-Replica"
HEADER_INCARNATION: Final = "X-Downpour-Incarnation"
HEADER_SECRET: Final = "X-Downpour-Secret"
HEADER_EPOCH: Final = "X-Downpour-Epoch"
HEADER_FINGERPRINT: Final = "X-Downpour-Fingerprint"
HEADER_GROUP: Final = "X-Downpour-Group"
"""What a stream, push or fetch request says of itself, and the secret that proves it."""

Arrays: TypeAlias = Annotated[list[ArrayEntry], Meta(max_length=limits.LAYOUT_ARRAYS_MAX)]
Shards: TypeAlias = Annotated[list[ShardEntry], Meta(max_length=limits.SHARDS_MAX)]
Missed: TypeAlias = Annotated[list[Word], Meta(max_length=limits.MISSED_TOLD_MAX)]
Labels: TypeAlias = Annotated[list[Label], Meta(max_length=limits.SETTINGS_MAX)]

Level: TypeAlias = Literal["memory", "logged", "synced", "replicated"]
"""What an acknowledged record survives: nothing, the process's death, the machine's, its loss."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""From the least on: a level's place is its number on the wire."""
JobStateName: TypeAlias = Literal["waiting", "running", "evaluating", "done", "failed"]
MemberState: TypeAlias = Literal["live", "suspect", "dead", "left"]
PlaceState: TypeAlias = Literal["missing", "loading", "ready", "silent", "dead"]
"""``docs/states.md`` says what becomes what, and when."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all bodies: immutable, keyword only."""


class ShardMap(Message, frozen=True, kw_only=True):
    """Which process serves which part of the parameters: a value, replaced as a whole.

    Only the coordinator makes one. Whoever sees a higher epoch goes by that map from then on; what
    is open at a shard that has moved goes to its new owner, under its old identity.
    """

    epoch: Word
    """Each map has a higher one than the map before it."""
    entries: Shards
    """By index; together they are the layout, without a hole."""
    fragments: Count
    """Fragments of the whole layout."""


class PolicyEntry(Message, frozen=True, kw_only=True):
    """The job's policy: a value, replaced as a whole. Only the coordinator makes one.

    Whoever hears of a higher version goes over to it: a shard between two records, a replica
    between two steps. Until everybody has, several are at work side by side.
    """

    version: Count
    settings: Settings
    """Its name among them."""


class Problem(Message, frozen=True, kw_only=True):
    """Why a request was not served. ``code`` is a stable slug, ``message`` is for people."""

    code: Label
    """unauthorized, mismatch, protocol, fenced, epoch, waiting, unknown, invalid, limit, ended."""
    message: Words
    retry_after_s: Seconds | None = None
    entry: ShardEntry | None = None
    """Of code epoch: where the shard is in the newest map that the peer knows."""


class WorkEntry(Message, frozen=True, kw_only=True):
    """What ``Work`` the job declared."""

    len: Count
    unit: Count
    passes: Count
    shuffle: bool
    seed: Count
    backup: Seconds = 0.0
    """How many times longer than usual a unit is held before it is lent once more. 0: never."""


class JobLayout(Message, frozen=True, kw_only=True):
    """The job's parameters. It travels only to those who do not have it."""

    arrays: Arrays


class Join(Message, frozen=True, kw_only=True):
    """A replica asks to take part."""

    fingerprint: Label = ""
    """Of its layout, which is compared here; "": it takes the job's (GET /v1/layout)."""
    protocol_min: Word = PROTOCOL_MIN
    protocol_max: Word = PROTOCOL
    version: Label = ""
    host: Label = ""
    pid: Word = 0
    name: Label = ""
    owner: Label = ""
    """Known to whoever starts this replica, the same for all its lives: who shows it again gets
    the same id, next incarnation, and nobody else can. "": a replica without another life."""
    nonce: Label = ""
    """Random per process and nobody else's to know: a join whose answer was lost is asked again
    without a new incarnation."""
    wire_dtypes: Labels = []
    codecs: Labels = []
    """What its build can encode, beside sending elements as they are."""


class Joined(Message, frozen=True, kw_only=True):
    """The coordinator takes a replica in."""

    replica: Word
    incarnation: Word
    secret: Label
    """To be shown with everything this life sends: nobody else can speak for it."""
    protocol: Word
    stripe_len: Count
    fragment_len: Count
    shard_map: ShardMap
    fingerprint: Label
    """Of the job's layout: the joining process compares it with its own."""
    policy: Settings
    policy_version: Count = 1
    policies_own: Labels = []
    """Names of the policies that are classes of the job file's own, now or in a later phase."""
    optimizer: Parts
    work: WorkEntry | None
    wire_dtype: Label
    max_norm: Norm | None = None
    """Of a whole push, as it is sent: what is larger is never sent."""
    codec: CodecEntry | None = None
    """How gradients are encoded; None: elements of ``wire_dtype`` as they are."""
    durability: Level = "memory"
    """What an acknowledgement must be worth at least."""
    heartbeat_s: Seconds
    lease_s: Seconds
    job: Label


class ShardHello(Message, frozen=True, kw_only=True):
    """A shard process offers itself."""

    url: Url
    host: Label = ""
    pid: Word = 0
    index: Word | None = None
    """The place wanted; None for any."""
    ticket: Label = ""
    """With the coordinator's leave to have what the process has that is at the place ``index``,
    and then the place."""
    has_job: bool = False
    """It was given the job file: it can build a policy that is a class of the job's own."""
    protocol_min: Word = PROTOCOL_MIN
    protocol_max: Word = PROTOCOL
    version: Label = ""
    nonce: Label = ""
    codecs: Labels = []
    """What its build can decode."""


class Give(Message, frozen=True, kw_only=True):
    """Stop, and give me everything: the coordinator has told you that I may ask."""

    secret: Label


class Contents(Message, frozen=True, kw_only=True):
    """What a shard has, for the process that takes it over. Planes and windows come in bytes."""

    state_size: Count
    """Bytes of its LSN, versions, windows and open rounds."""
    planes: Word
    """Of the optimizer's state, beside the parameters."""
    history: Word = 0
    """Past versions of the parameters, as planes that come after those."""
    counts: ShardStats
    ids_version: Count
    rounds: Json
    """What the policy's rule knows here, and the clocks it was told."""


class Source(Message, frozen=True, kw_only=True):
    """From whom a process that takes a shard over gets everything the shard has."""

    url: Url
    secret: Label
    """The coordinator has told it to the source, too: nobody else gets anything."""


class ShardAssigned(Message, frozen=True, kw_only=True):
    """Its place: which elements it owns and what it does with gradients."""

    index: Word
    incarnation: Word
    """Which process that had this place it is, from 1."""
    secret: Label
    """To be shown with everything it sends to the coordinator."""
    key: Label
    """With it the shard checks the secrets of replicas."""
    shards: Word
    epoch: Word
    """It serves under this one; 0 if it is to take over: then the coordinator says when."""
    source: Source | None = None
    """It is to take over from there, not to begin with the job's initial parameters."""
    start: Count
    len: Count
    stripe_len: Count
    fragment_len: Count
    fingerprint: Label
    optimizer: Parts
    policy: Settings
    policy_version: Count = 1
    max_norm: Norm | None = None
    """The L2 norm above which nothing of a push is applied."""
    codec: CodecEntry | None = None
    """What gradients may be encoded by, beside not at all."""
    durability: Level = "memory"
    """What its acknowledgements must be worth at least."""
    heartbeat_s: Seconds
    job: Label


class ReplicaStats(Message, frozen=True, kw_only=True):
    """What a replica counts; totals since its process started."""

    policy: Count = 0
    """The version of the job's policy that it obeys."""
    switches: Count = 0
    """Times it went over to a newer one."""
    steps: Count = 0
    samples: Count = 0
    units: Count = 0
    pushes_sent: Count = 0
    pushes_acked: Count = 0
    pushes_repeated: Count = 0
    """Of those, in which a shard took the gradient of an earlier one again."""
    pushes_refused: Count = 0
    pushes_silent: Count = 0
    """Pushes of which the job's codec had nothing to say: they were not sent, and their gradients
    are in the residual."""
    records_left_out: Count = 0
    """Fragments of pushes of which it had nothing to say, those of silent pushes among them."""
    payload_bytes: Count = 0
    """What the records of all pushes carry, without frames and however often they are sent."""
    gradients_dropped: Count = 0
    """Steps whose gradient held NaN or Inf, was too large for the wire's dtype, or was in a push
    whose norm is above the job's ``max_norm``: never pushed."""
    values_overflowed: Count = 0
    """Values of gradients that were too large for it."""
    values_underflowed: Count = 0
    """Values of gradients that became zero in it."""
    records_duplicate: Count = 0
    fetches: Count = 0
    reconnects: Count = 0
    bytes_sent: Count = 0
    bytes_received: Count = 0
    loss: Finite | None = None
    """Mean of the last reported losses that were finite."""
    losses_not_finite: Count = 0
    """Reported losses that were NaN or infinite."""
    staleness: HistogramEntry = HistogramEntry()
    """Of acknowledged pushes (each push's largest over shards and fragments)."""
    residual_bytes: Count = 0
    """Memory of what the job's codec left out of pushes, to go with later ones."""
    state_bytes: Count = 0
    """Memory of what its own optimizer keeps, where it trains by itself."""
    waited_push_s: Seconds = 0.0
    waited_blocks_s: Seconds = 0.0
    waited_round_s: Seconds = 0.0
    waited_clock_s: Seconds = 0.0
    waited_fetch_s: Seconds = 0.0
    waited_work_s: Seconds = 0.0
    """Seconds the training loop waited, by what for: ``replica.waited.KINDS`` has them."""
    waiting_for: Words = ""
    rss_bytes: Count = 0
    reduced_sent: Count = 0
    reduced_received: Count = 0
    """Bytes of sums and of parameters that it gave to other replicas, and got from them."""
    fallback: bool = False
    """True when a proxy refused Upgrade and pushes travel as POST."""


class RefusedEntry(Message, frozen=True, kw_only=True):
    """How many records of one replica a shard has refused."""

    replica: Word
    records: Count


class ShardStats(Message, frozen=True, kw_only=True):
    """What a shard counts; totals since its process started."""

    index: Word = 0
    ready: bool = False
    durability: Level = "memory"
    """What its acknowledgements are worth."""
    lsn: Count = 0
    pushes: Count = 0
    pushes_duplicate: Count = 0
    pushes_refused: Count = 0
    records_duplicate: Count = 0
    records_superseded: Count = 0
    """Not applied, and nobody's fault: they were for a version that others have changed."""
    records_refused: Count = 0
    refused_by: Annotated[list[RefusedEntry], Meta(max_length=limits.REFUSERS_TOLD_MAX)] = []
    """Of whom the most; ``records_refused`` counts those of all others, too."""
    rounds: Count = 0
    """Updates that several pushes were combined in."""
    rounds_dropped: Count = 0
    """Fragments of those that were not applied, because they would have been NaN or infinite."""
    bases_gone: Count = 0
    """Updates that were compared with the oldest version kept, because their own base was older."""
    policy: Count = 0
    """The version of the job's policy that it obeys."""
    switches: Count = 0
    """Times it went over to a newer one."""
    fetches: Count = 0
    waits: WaitsEntry = WaitsEntry()
    """Of replicas whose answers it held, for whom."""
    clock_least: Count = 0
    clock_most: Count = 0
    """Steps finished by the live replicas that have announced any: the fewest, and the most."""
    clock_spread_max: Count = 0
    """The largest difference between the two that it has seen."""
    bytes_received: Count = 0
    bytes_sent: Count = 0
    streams: Count = 0
    staleness: HistogramEntry = HistogramEntry()
    """Staleness of applied pushes, in updates."""
    memory: Annotated[dict[Label, Count], Meta(max_length=limits.SETTINGS_MAX)] = {}
    rss_bytes: Count = 0
    rss_peak_bytes: Count = 0


class Heartbeat(Message, frozen=True, kw_only=True):
    """I live, and these are my counts."""

    role: Literal["replica", "shard"]
    id: Word
    """Replica id or shard index."""
    answering: Missed = []
    """Of the shards the last answer asked about: those that sent this replica something since."""
    incarnation: Word = 0
    secret: Label = ""
    ids_version: Count = 0
    live_version: Count = 0
    """The newest ``KnownIds`` and ``LiveIds`` that a shard has heard."""
    epoch: Word = 0
    """Of the shard map that the sender knows: the answer to an older one has the newest."""
    policy: Count = 0
    """The version of the job's policy that it has heard of: the same."""
    listens: Label | None = None
    """Of a replica that reduces with others: where it listens for them; "": nowhere. None: it does
    not reduce, or not yet."""
    group: Word = 0
    """The newest group that it knows."""
    broke: Word = 0
    """The group of which a connection to another member broke; 0: none did."""
    replica: ReplicaStats | None = None
    shard: ShardStats | None = None
    rss_peak_bytes: Count = 0


class KnownIds(Message, frozen=True, kw_only=True):
    """Which replicas may still push: nobody below ``next`` but those in the ranges, ever again."""

    version: Count
    """Of two, the one with the larger says more."""
    next: Word
    """The first id that was not given to anybody yet."""
    ranges: Annotated[list[tuple[Word, Word]], Meta(max_length=limits.ID_RANGES_MAX)]
    """[start, stop), ascending."""


class LiveIds(Message, frozen=True, kw_only=True):
    """Which replicas take part and have work: those that shards may wait for."""

    version: Count
    """Another one says something else."""
    next: Word
    """The first id that was not given to anybody yet: who comes with one at or above it is live."""
    ranges: Annotated[list[tuple[Word, Word]], Meta(max_length=limits.ID_RANGES_MAX)]
    """[start, stop), ascending. Of more the first are told: nobody waits for the others."""


class GroupMember(Message, frozen=True, kw_only=True):
    """A replica that reduces with others."""

    id: Word
    incarnation: Word
    url: Label = ""
    """Where it listens for others; "": nowhere, it only calls."""
    secret: Label = ""
    """What it and the one who is told this show each other: nobody else has it."""


class Group(Message, frozen=True, kw_only=True):
    """Replicas that reduce among themselves, as one of them is told. A value, replaced as a whole.

    Whoever sees a higher number goes by that group from then on.
    """

    number: Word
    since: Word = 0
    """The one who is told has been in every group since this one; 0: it is not in this one."""
    proof: Label
    """What shards are shown: sums of older groups are void from then on."""
    members: Annotated[list[GroupMember], Meta(max_length=limits.GROUP_MEMBERS_MAX)]
    """In their order; their places in it say who sends to whom."""
    words: Words = ""
    """Why these cannot reduce, if they cannot."""


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """How the job stands. On done or failed the role ends; on fenced it must not push again."""

    state: JobStateName
    reason: Words = ""
    fenced: bool = False
    moved: bool = False
    """Fenced because another process has the shard: nobody waits for this one."""
    missed: Missed = []
    """Shards the coordinator does not hear: which of them answer the replica?"""
    ids: KnownIds | None = None
    live: LiveIds | None = None
    """For a shard that does not know of the newest ones."""
    shard_map: ShardMap | None = None
    """For whoever knows an older one only."""
    policy: PolicyEntry | None = None
    """The same."""
    group: Group | None = None
    """For a replica that reduces with others and knows an older one."""
    serves: Word = 0
    """A shard serves under this epoch. 0: it does not, or not yet."""
    gives: Label = ""
    """A shard gives everything to whoever shows this secret, and serves no more while it is told
    so. "": to nobody; what it has begun to give it keeps."""


class LeaseRequest(Message, frozen=True, kw_only=True):
    """Give me up to ``count`` units."""

    replica: Word
    incarnation: Word
    secret: Label = ""
    count: Word = 1
    held: Annotated[list[Count], Meta(max_length=limits.LEASES_TOLD_MAX)] | None = None
    """Leases the replica knows of. Others given to it are offered again: their answer was lost.
    None: not told, nothing is offered again."""


class UnitEntry(Message, frozen=True, kw_only=True):
    """One leased unit: elements [start, stop) of pass ``pass_index``'s order."""

    pass_index: Count
    """The pass, counted from 0."""
    unit: Count
    start: Count
    stop: Count
    lease: Count


class LeaseAnswer(Message, frozen=True, kw_only=True):
    """Units, or none: then wait (and for whom), unless done: there will be no more."""

    units: Annotated[list[UnitEntry], Meta(max_length=limits.LEASES_TOLD_MAX)] = []
    done: bool = False
    failed: bool = False
    """There will be no more because the job failed; ``reason`` says why."""
    wait_s: Seconds = 0.0
    reason: Words = ""


class Completion(Message, frozen=True, kw_only=True):
    """One finished unit; recorded once, whoever else also computed it."""

    pass_index: Count
    unit: Count
    lease: Count
    samples: Count
    loss: Finite | None = None
    seconds: Seconds = 0.0


class UnitFailure(Message, frozen=True, kw_only=True):
    """A try at a unit failed: the user's code raised, or a gradient was not applied."""

    pass_index: Count
    unit: Count
    lease: Count
    words: Words
    """The exception and the line of the user's that raised it, or what became of the gradient."""
    traceback: Words = ""


class Complete(Message, frozen=True, kw_only=True):
    """Units this replica finished: their gradients are applied, or why they are not."""

    replica: Word
    incarnation: Word
    secret: Label = ""
    units: Annotated[list[Completion], Meta(max_length=limits.LEASES_TOLD_MAX)]
    failures: Annotated[list[UnitFailure], Meta(max_length=limits.LEASES_TOLD_MAX)] = []
    """Units it worked through in vain: a gradient was dropped or refused. They are given back."""
    in_doubt: Annotated[list[Count], Meta(max_length=limits.LEASES_TOLD_MAX)] = []
    """Leases of units of which a gradient was not applied because the policy does not want it, or
    nobody can say whether it was, and others may have been. They are given back, too, and nobody is
    to blame."""


class CompleteAnswer(Message, frozen=True, kw_only=True):
    """True for each unit whose completion counted, False where another's already did."""

    counted: Annotated[list[bool], Meta(max_length=limits.LEASES_TOLD_MAX)]


class Leave(Message, frozen=True, kw_only=True):
    """A replica says goodbye; its open units go to others at once."""

    replica: Word
    incarnation: Word
    secret: Label = ""
    reason: Words = ""
    stats: ReplicaStats | None = None
    failed: bool = False
    """It leaves because something went wrong, and may come back."""
    failure: UnitFailure | None = None
    """Why it leaves, when it was the user's code that failed at a unit."""
    units: Annotated[list[Completion], Meta(max_length=limits.LEASES_TOLD_MAX)] = []
    """Units it has finished whose gradients are applied, and whose report has no answer."""


class Stop(Message, frozen=True, kw_only=True):
    """End the job early: no more work, then the parameters and the report as at any end."""

    reason: Words = ""
    failed: bool = False
    """The job cannot go on, say because nobody is left to train: then it ends as failed."""


class SetPolicy(Message, frozen=True, kw_only=True):
    """The job shall go on under this policy; that ends its own schedule of phases."""

    settings: Settings
    by: Label = ""
    """Who asks, for the report."""


class PolicyStatus(Message, frozen=True, kw_only=True):
    """A version of the job's policy: which, since when, and why."""

    entry: PolicyEntry
    at_s: Finite
    """Seconds since the coordinator started."""
    samples: Count
    """Samples completed then."""
    by: Words
    """Who asked for it, or what."""
    plan: Words = ""
    """What the job's own phases have to do with it, if it has some."""


class ShardEnded(Message, frozen=True, kw_only=True):
    """Whoever watches a shard's process has seen it end: nobody need wait for it."""

    index: Word
    pid: Word
    """Of the process: news of one that was replaced are none."""
    reason: Words
    """How it ended, as ``was killed by SIGKILL``."""


class ReplicaStatus(Message, frozen=True, kw_only=True):
    """One replica as the coordinator sees it."""

    id: Word
    name: Label
    incarnation: Word
    state: MemberState
    host: Label
    pid: Word
    joins: Count
    age_s: Finite
    """Seconds since its last heartbeat."""
    units: Count
    samples: Count
    """Completed and counted, over all incarnations."""
    stats: ReplicaStats


class ShardStatus(Message, frozen=True, kw_only=True):
    """One shard as the coordinator sees it."""

    index: Word
    state: PlaceState
    url: Url
    pid: Word
    age_s: Finite
    stats: ShardStats


class EvaluationEntry(Message, frozen=True, kw_only=True):
    """One evaluation: after how much work, and what the job's function returned."""

    passes: Count
    """Passes that were finished then."""
    at_s: Finite
    samples: Count
    metrics: Annotated[dict[Label, Finite], Meta(max_length=limits.METRICS_MAX)]


class Status(Message, frozen=True, kw_only=True):
    """Everything a progress display shows."""

    job: Label
    state: JobStateName
    reason: Words
    elapsed_s: Finite
    passes: Count
    pass_index: Count
    units_done: Count
    units: Count
    """Units of all passes together."""
    samples_done: Count
    samples: Count
    losses: Annotated[list[tuple[Finite, Count, Finite]], Meta(max_length=limits.LOSS_POINTS_MAX)]
    """(seconds, samples, mean loss) points, oldest first, thinned to a few hundred."""
    evaluations: Annotated[list[EvaluationEntry], Meta(max_length=limits.STATUS_EVALUATIONS_MAX)]
    """The newest, oldest first."""
    replicas: Annotated[list[ReplicaStatus], Meta(max_length=limits.STATUS_ROWS_MAX)]
    """Of many, those that are here and were heard last."""
    replicas_live: Count
    replicas_count: Count
    """Of all, whether they have a row or not."""
    shards: Annotated[list[ShardStatus], Meta(max_length=limits.STATUS_ROWS_MAX)]
    """Of many, those that are not ready, and then the first."""
    shards_ready: Count
    shards_count: Count
    bytes_to_shards: Count
    bytes_from_shards: Count
    policy: PolicyStatus | None = None
    """The newest."""
    run_folder: Url
    report: dict[str, Any] | None = None
    """Of the final report, once the state is done or failed, what has no rows of its own here."""


M = TypeVar("M", bound=Message)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Message], msgspec.json.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    """The JSON bytes of a message."""
    return _encoder.encode(message)


def decode(kind: type[M], data: bytes | bytearray | memoryview) -> M:
    """Parse and validate a body.

    Raises:
        RemoteProtocolError: not JSON, or a field is missing, of the wrong type or out of its
            bounds; one line that names the field.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, RecursionError) as error:
        # The decoder quotes what it did not expect, which may be long and of many lines.
        words = clip(str(error).partition("\n")[0], limits.LABEL_LEN_MAX)
        raise RemoteProtocolError(f"bad {kind.__name__} message: {words}") from error
