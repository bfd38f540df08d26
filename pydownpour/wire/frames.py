"""The data plane's frames, by name.

A frame is a fixed 64-byte little-endian header and a payload (layout: ARCHITECTURE.md). Parsing
and checksums are the core's; here are the names of the numbers and one constructor per kind.

    kind        from     what its fields mean
    PUSH        replica  announces a run of records of push ``seq``: ``count`` fragments from
                         ``fragment`` on; aux = norm (f32 bits); payload = first_open, clock,
                         samples (u64 each); version = rounds closed here when the parameters were
                         fetched that it was computed from, or the number of the group whose sum it
                         is; flags bit 0 = another run of the same push follows
    FRAGMENT    replica  one record: seq, fragment, version = base version, dtype, payload; flags
                         bit 0 = no payload: the replica's last record of the fragment once more
    ACK         shard    ``count`` records of push ``seq`` from ``fragment`` on are settled;
                         version = LSN; payload = applied (the rest were duplicates), largest
                         staleness, level of durability (u64 each), the view now; more may follow;
                         flags bit 0 = the run is complete; count 0 says that bytes arrive
    REFUSE      shard    ``count`` records of push ``seq`` from ``fragment`` on are refused: aux =
                         Code, payload = why, in words; those of NOT_NOW may be sent again; those
                         of NOT_YET when a VIEW says so
    FETCH       replica  seq = request number, version = LSN the replica already has, fragment =
                         the first one wanted (0, or where an answer was cut off), count = how many
                         of them from there (0: to the shard's last); payload = rounds,
                         least_clock, clock (u64 each): answered when so many rounds are closed, and
                         every live replica's clock is so far; its own is ``clock``.
                         aux = number of the group that it is in, or 0, and behind the payload the
                         proof: sums of older groups are void from then on
    PARAMETERS  shard    one fragment: version = its version, seq = its LSN, payload f32
    FETCHED     shard    the fetch is complete: seq = request number, version = LSN at its start;
                         payload = the view at its start; flags bit 0 = it is not complete, this
                         long answer begins
    VIEW        shard    payload = the view now, and in words for whom an answer waits, every few
                         seconds while it does; flags bit 0 = what was NOT_YET may come now
    SUM         replica  to another: one fragment of a sum of gradients: seq = round of the group,
                         version = the sum of their weights (f64 bits), payload f32
    REDUCED     replica  to another: what it sends of a share of round ``seq`` is whole: payload =
                         gradients and samples in it, how many shards, of each its LSN by which all
                         is in the parameters (u64 each), and in words why nothing was applied.
                         Upwards behind SUMs and of no shard, downwards behind PARAMETERS.
                         flags bit 0 = nothing is pushed yet: of the sum of a share that is about to
                         be, version = its squares, added up (f64 bits), and why it cannot be
    PING, PONG  either   seq comes back
    ERROR       either   aux = Code or 0, payload = why; the stream ends (FULL: there is no memory
                         for it now; WRONG_EPOCH: the shard moves to another process)
    BYE         either   the stream ends by agreement

A push has the same number at every shard, given once by its replica and counted from 1 in each
incarnation; fragments have the numbers of the whole layout. So a record, (replica, incarnation,
push, fragment), is the same record wherever it is sent. A push may leave fragments out: then it has
several runs, or none at a shard. ``first_open`` is the replica's oldest push here without all of
its answers; whatever is lower it will not ask about again.

A replica's clock is the steps it has finished. At a shard it is so far when every push of these
steps has all of its answers from there: when a push has, or when a FETCH says so, for steps that
no push carries.

A view is the epoch of the shard map, the least clock of the live replicas, the rounds closed here
(u64 each), the mean deviation that the optimizer has found here (f64), and the version of the job's
policy that the shard obeys (u64).
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from pydownpour import _core, limits
from pydownpour.errors import DownpourError, Fenced, JobFailed, RemoteProtocolError

PUSH_NOTICE: Final = struct.Struct("<QQQ")
RECEIPT: Final = struct.Struct("<QQQQQQdQ")
FETCH_NOTICE: Final = struct.Struct("<QQQQ")
VIEW: Final = struct.Struct("<QQQdQ")
PROOF_LEN: Final = 64
"""Characters of a secret: 32 bytes in hex."""
REDUCED: Final = struct.Struct("<QQQ")
F32, U32 = struct.Struct("<f"), struct.Struct("<I")
F64, U64 = struct.Struct("<d"), struct.Struct("<Q")
ACK_LAST: Final = 1
"""Flag of an ACK: the announced run is complete."""
FETCH_BEGINS: Final = 1
"""Flag of a FETCHED: the answer begins; its last frame is still to come."""
VIEW_SEND_AGAIN: Final = 1
"""Flag of a VIEW: a push that was turned down may come now."""
AGAIN: Final = 1
"""Flag of a FRAGMENT: it has no payload, and stands for the replica's last one."""
REDUCED_VERDICT: Final = 1
"""Flag of a REDUCED: what a sum is that nobody has pushed yet."""
PUSH_CONTINUES: Final = 1
"""Flag of a PUSH: another run of the same push follows."""


@final
class Kind(enum.IntEnum):
    """Frame kinds; the numbers are the wire's."""

    PUSH = _core.KIND_PUSH
    FRAGMENT = _core.KIND_FRAGMENT
    ACK = _core.KIND_ACK
    REFUSE = _core.KIND_REFUSE
    FETCH = _core.KIND_FETCH
    PARAMETERS = _core.KIND_PARAMETERS
    FETCHED = _core.KIND_FETCHED
    PING = _core.KIND_PING
    PONG = _core.KIND_PONG
    ERROR = _core.KIND_ERROR
    BYE = _core.KIND_BYE
    VIEW = _core.KIND_VIEW
    SUM = _core.KIND_SUM
    REDUCED = _core.KIND_REDUCED


@final
class Code(enum.IntEnum):
    """Why records were refused."""

    NON_FINITE = _core.CODE_NON_FINITE
    RESULT_NON_FINITE = _core.CODE_RESULT_NON_FINITE
    LENGTH = _core.CODE_LENGTH
    FRAGMENT = _core.CODE_FRAGMENT
    UNSUPPORTED = _core.CODE_UNSUPPORTED
    FENCED = _core.CODE_FENCED
    UNKNOWN = _core.CODE_UNKNOWN_STATE
    WINDOW = _core.CODE_WINDOW
    FULL = _core.CODE_STORE_FULL
    POLICY = _core.CODE_POLICY
    WRONG_EPOCH = _core.CODE_WRONG_EPOCH
    ROUND = _core.CODE_ROUND
    NORM = _core.CODE_NORM
    NOT_YET = _core.CODE_NOT_YET
    SUPERSEDED = _core.CODE_SUPERSEDED
    NOTHING_KEPT = _core.CODE_NOTHING_KEPT


NOT_NOW: Final = (Code.WINDOW, Code.FULL, Code.ROUND, Code.NOT_YET)
"""Codes of records that are not refused for good: they may be sent again a little later."""
OPEN: Final = (*NOT_NOW, Code.NOTHING_KEPT)
"""With that of records that are to be sent at once, whole: they stay open."""


# One of each of these is made for every push, at either end: a named tuple takes half the time of a
# frozen dataclass.


@final
class PushNotice(NamedTuple):
    """What a PUSH frame says beyond its header."""

    first_open: int
    clock: int
    samples: int
    norm: float
    round: int = 0


@final
class GroupMark(NamedTuple):
    """A group of replicas that reduce among themselves, and the coordinator's word for it.

    Attributes:
        number: Of two, the larger is newer. 0: none.
        proof: In hex; shards can check it.
    """

    number: int = 0
    proof: str = ""


NO_GROUP: Final = GroupMark()
"""Of who reduces with nobody."""


@final
class FetchNotice(NamedTuple):
    """What a FETCH frame says beyond its header.

    Attributes:
        rounds: Closed rounds that its answer waits for.
        least_clock: Clock of every live replica that its answer waits for.
        clock: The replica's own, as far as every push of it has all its answers from this shard.
        policy: The version that the replica obeys. A shard that obeys another one holds no answer:
            what this one waits for may never come under that. 0: whatever the shard's own is.
        group: In which the replica is: sums of older ones are void from then on.
    """

    rounds: int = 0
    least_clock: int = 0
    clock: int = 0
    policy: int = 0
    group: GroupMark = NO_GROUP

    @property
    def waits(self) -> bool:
        """Whether for anything."""
        return bool(self.rounds or self.least_clock)


NO_GATE: Final = FetchNotice()
"""Of a replica that waits for nothing and has finished nothing."""


@final
class View(NamedTuple):
    """What a shard tells a replica of the cluster.

    Attributes:
        epoch: Of the shard map.
        least_clock: The least clock of a live replica at this shard. It only grows.
        round: Rounds closed at this shard.
        deviation: Mean over the shard's parameters of what its optimizer tells; 0 if it tells none.
        policy: The version of the job's policy that this shard obeys.
    """

    epoch: int = 0
    least_clock: int = 0
    round: int = 0
    deviation: float = 0.0
    policy: int = 0

    def encode(self) -> bytes:
        """As in the payload of a frame."""
        return VIEW.pack(*self)

    @classmethod
    def decode(cls, payload: bytes) -> View:
        """From the beginning of a payload.

        Raises:
            RemoteProtocolError: it is too short, or a number is none that a shard can mean.
        """
        if len(payload) < VIEW.size:
            raise RemoteProtocolError(f"a view of {len(payload)} bytes, expected {VIEW.size}")
        return _meant(cls(*VIEW.unpack_from(payload)))


def _meant(view: View) -> View:
    if not 0 <= view.deviation < math.inf:
        raise RemoteProtocolError(f"a view with a deviation of {view.deviation}")
    return view


NO_VIEW: Final = View()
"""Of a shard that has said nothing yet."""


@final
class Age(NamedTuple):
    """How new parameters of a shard are: LSN, rounds closed, least clock; each only grows."""

    lsn: int = 0
    round: int = 0
    clock: int = 0

    @classmethod
    def of(cls, fetched: _core.Frame) -> Age:
        """At the beginning of the answer that a FETCHED belongs to."""
        view = View.decode(fetched.payload)
        return cls(fetched.version, view.round, view.least_clock)


@final
class Receipt(NamedTuple):
    """What an ACK frame says beyond its header.

    Attributes:
        applied: Records that were applied now; the others were before.
        staleness: The largest of theirs.
        level: What this answer is worth: a place in ``messages.LEVELS``.
        view: Of the cluster, now.
    """

    applied: int
    staleness: int
    level: int
    view: View


def push(
    *,
    replica: int,
    incarnation: int,
    push: int,
    fragment: int,
    count: int,
    notice: PushNotice,
    continues: bool = False,
) -> bytes:
    """Announce a run of a push: ``count`` records from ``fragment`` on."""
    norm = notice.norm if math.isfinite(notice.norm) and notice.norm < 3e38 else math.inf
    return _core.encode_frame(
        kind=Kind.PUSH,
        flags=PUSH_CONTINUES if continues else 0,
        replica=replica,
        incarnation=incarnation,
        seq=push,
        fragment=fragment,
        count=count,
        version=notice.round,
        aux=U32.unpack(F32.pack(norm))[0],
        payload=PUSH_NOTICE.pack(notice.first_open, notice.clock, notice.samples),
    )


def again(*, replica: int, incarnation: int, push: int, versions: Sequence[int]) -> bytes:
    """The records of a push that all stand for the replica's last, one behind the other.

    ``versions``: the base of each fragment of the layout, as of any record.
    """
    return b"".join(
        _core.encode_frame(
            kind=Kind.FRAGMENT,
            flags=AGAIN,
            dtype=_core.DTYPE_F32,
            replica=replica,
            incarnation=incarnation,
            seq=push,
            fragment=fragment,
            version=version,
        )
        for fragment, version in enumerate(versions)
    )


def push_notice(frame: _core.Frame) -> PushNotice:
    """Read a PUSH frame's notice.

    Raises:
        RemoteProtocolError: the payload has another length, or a number is none that a replica
            can mean.
    """
    payload = frame.payload
    if len(payload) != PUSH_NOTICE.size:
        raise RemoteProtocolError(
            f"PUSH payload of {len(payload)} bytes, expected {PUSH_NOTICE.size}"
        )
    first_open, clock, samples = PUSH_NOTICE.unpack(payload)
    norm = F32.unpack(U32.pack(frame.aux))[0]
    if clock > limits.COUNT_MAX or samples > limits.COUNT_MAX or not norm >= 0:
        raise RemoteProtocolError(f"PUSH with clock {clock}, samples {samples}, norm {norm}")
    return PushNotice(first_open, clock, samples, norm, frame.version)


def ack(settled: _core.Settled, *, replica: int, incarnation: int, level: int, view: View) -> bytes:
    """Tell a replica that records have a definite answer."""
    return _core.encode_frame(
        kind=Kind.ACK,
        flags=ACK_LAST if settled.last else 0,
        replica=replica,
        incarnation=incarnation,
        seq=settled.push,
        fragment=settled.fragment,
        count=settled.count,
        version=settled.lsn,
        payload=RECEIPT.pack(settled.applied, settled.staleness, level, *view),
    )


def receipt(frame: _core.Frame) -> Receipt:
    """Read an ACK frame's payload; what follows the known fields is for newer readers.

    Raises:
        RemoteProtocolError: the payload is shorter than that, or more was applied than settled.
    """
    payload = frame.payload
    if len(payload) < RECEIPT.size:
        raise RemoteProtocolError(
            f"ACK payload of {len(payload)} bytes, expected at least {RECEIPT.size}"
        )
    applied, staleness, level, *view = RECEIPT.unpack_from(payload)
    if applied > frame.count:
        raise RemoteProtocolError(f"ACK of {frame.count} records, of which {applied} were applied")
    return Receipt(applied, staleness, level, _meant(View(*view)))


def refuse(*, push: int, fragment: int, count: int, code: Code, words: str) -> bytes:
    """Tell a replica that records were refused, and why."""
    return _core.encode_frame(
        kind=Kind.REFUSE,
        seq=push,
        fragment=fragment,
        count=count,
        aux=code,
        payload=words.encode(),
    )


def refusal_error(code: Code, words: str) -> DownpourError:
    """The error a refusal means for the whole session."""
    return Fenced(words) if code is Code.FENCED else JobFailed(words)


def fetch(
    *, request: int, since: int, first: int = 0, count: int = 0, notice: FetchNotice = NO_GATE
) -> bytes:
    """Ask for what changed after LSN ``since`` in ``count`` fragments from ``first`` on."""
    return _core.encode_frame(
        kind=Kind.FETCH,
        seq=request,
        version=since,
        fragment=first,
        count=count,
        aux=notice.group.number,
        payload=FETCH_NOTICE.pack(*notice[:4]) + notice.group.proof.encode(),
    )


def fetch_notice(frame: _core.Frame) -> FetchNotice:
    """Read what a FETCH waits for, and its replica's clock.

    Raises:
        RemoteProtocolError: the payload has another length, or the clock is none that a replica
            can have.
    """
    size = FETCH_NOTICE.size + (PROOF_LEN if frame.aux else 0)
    if len(frame.payload) != size:
        raise RemoteProtocolError(f"FETCH payload of {len(frame.payload)} bytes, expected {size}")
    proof = frame.payload[FETCH_NOTICE.size :].decode("utf-8", "replace")
    rounds, least_clock, clock, policy = FETCH_NOTICE.unpack_from(frame.payload)
    notice = FetchNotice(rounds, least_clock, clock, policy, GroupMark(frame.aux, proof))
    if notice.clock > limits.COUNT_MAX:
        raise RemoteProtocolError(f"FETCH with clock {notice.clock}")
    return notice


def fetched(
    *, request: int, lsn: int, view: View = NO_VIEW, count: int = 0, begins: bool = False
) -> bytes:
    """Close the answer to a fetch, or open one that takes long."""
    return _core.encode_frame(
        kind=Kind.FETCHED,
        flags=FETCH_BEGINS if begins else 0,
        seq=request,
        version=lsn,
        count=count,
        payload=view.encode(),
    )


def view(seen: View, *, words: str = "", send_again: bool = False) -> bytes:
    """Tell a replica for whom its answer waits, or that what was turned down may come now."""
    return _core.encode_frame(
        kind=Kind.VIEW,
        flags=VIEW_SEND_AGAIN if send_again else 0,
        payload=seen.encode() + words.encode(),
    )


def reduced(
    *,
    round: int,
    gradients: int = 0,
    samples: int = 0,
    words: str = "",
    lsns: Sequence[int] = (),
    squares: float | None = None,
) -> bytes:
    """Tell another replica that what we send it of a share is whole.

    With ``squares``: what the sum of one is that is about to be pushed.
    """
    known = struct.pack(f"<{len(lsns)}Q", *lsns)
    payload = REDUCED.pack(gradients, samples, len(lsns)) + known + words.encode()
    flags, version = 0, 0
    if squares is not None:
        flags, version = REDUCED_VERDICT, U64.unpack(F64.pack(squares))[0]
    return _core.encode_frame(
        kind=Kind.REDUCED, flags=flags, seq=round, version=version, payload=payload
    )


def reduced_squares(frame: _core.Frame) -> float:
    """The squares of a sum that is about to be pushed, added up; they may be any number."""
    squares: float = F64.unpack(U64.pack(frame.version))[0]
    return squares


def reduced_parts(frame: _core.Frame) -> tuple[int, int, str, tuple[int, ...]]:
    """What a REDUCED says: (gradients, samples, why nothing was applied, LSNs of the shards).

    Raises:
        RemoteProtocolError: it is too short, or the counts are none.
    """
    if len(frame.payload) < REDUCED.size:
        raise RemoteProtocolError(f"REDUCED payload of {len(frame.payload)} bytes")
    gradients, samples, shards = REDUCED.unpack_from(frame.payload)
    words = REDUCED.size + 8 * shards
    if max(gradients, samples) > limits.COUNT_MAX or words > len(frame.payload):
        raise RemoteProtocolError(
            f"REDUCED of {gradients} gradients, {samples} samples and {shards} shards in "
            f"{len(frame.payload)} bytes"
        )
    lsns = struct.unpack_from(f"<{shards}Q", frame.payload, REDUCED.size)
    return gradients, samples, frame.payload[words:].decode("utf-8", "replace"), lsns


def error(*, code: int, words: str) -> bytes:
    """End a stream with a reason."""
    return _core.encode_frame(kind=Kind.ERROR, aux=code, payload=words.encode())


def simple(kind: Kind, *, seq: int = 0) -> bytes:
    """A frame that carries nothing but a number: PING, PONG or BYE."""
    return _core.encode_frame(kind=kind, seq=seq)
