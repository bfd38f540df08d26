"""The Rust core: floats and bytes in, floats and bytes out. No policy, no clock, no I/O.

Every call is synchronous. Calls that touch more than a few KiB release the GIL while they run,
and no core thread ever calls back into Python, so a simulator may run each of them inline.

Buffers are anything with the buffer protocol, C-contiguous, of any format: their bytes are taken
as elements of the dtype that is asked for. Nobody may write into a buffer during a call. dtype
codes (also the wire codes): 1 = float32, 2 = float64, 3 = float16, 4 = bfloat16 (raw 16-bit words).

Errors are classes of pydownpour.errors: ParameterError for a buffer or number that does not fit
(UnsupportedArray if it is not contiguous), ConfigError for an impossible store or optimizer,
LocalProtocolError for calls out of order, RemoteProtocolError (with .offset, bytes of the stream
before the offending frame) for what a peer did, InternalError for a panic.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

from numpy.typing import NDArray
from typing_extensions import Buffer

# numpy's arrays have the buffer protocol, which a type checker for 3.11 does not know.
_Bytes: TypeAlias = Buffer | NDArray[Any]

__version__: Final[str]

# Wire numbers. The one place they are written is the Rust crate's frame/kind.rs.
HEADER_SIZE: Final[int]  # 64
WIRE_VERSION: Final[int]  # 1
PUSHES_OPEN_MAX: Final[int]  # 64

KIND_PUSH: Final[int]  # 1, replica to shard: count records of push seq follow, from fragment on
KIND_FRAGMENT: Final[int]  # 2, replica to shard: one record
KIND_ACK: Final[int]  # 3, shard to replica: count records of push seq have their answer
KIND_REFUSE: Final[int]  # 4, shard to replica: code in aux, the words in the payload
KIND_FETCH: Final[int]  # 5, replica to shard: what changed after LSN version
KIND_PARAMETERS: Final[int]  # 6, shard to replica: one fragment
KIND_FETCHED: Final[int]  # 7, shard to replica: fetch seq is complete
KIND_PING: Final[int]  # 8, either way
KIND_PONG: Final[int]  # 9, either way
KIND_ERROR: Final[int]  # 10, either way: code in aux, the words in the payload; the stream ends
KIND_BYE: Final[int]  # 11, either way: the stream ends in good order
KIND_VIEW: Final[int]  # 12, shard to replica: the cluster, and for whom an answer waits
KIND_SUM: Final[int]  # 13, replica to replica: one fragment of a sum of gradients
KIND_REDUCED: Final[int]  # 14, replica to replica: what it sends of a round is whole

FLAG_PUSH_COMPLETE: Final[int]  # 1, in an ACK: the run is complete

CODE_NON_FINITE: Final[int]  # 1
CODE_RESULT_NON_FINITE: Final[int]  # 2
CODE_LENGTH: Final[int]  # 3
CODE_FRAGMENT: Final[int]  # 4, another shard's
CODE_UNSUPPORTED: Final[int]  # 5, dtype or codec
CODE_FENCED: Final[int]  # 6
CODE_UNKNOWN_STATE: Final[int]  # 7
CODE_WINDOW: Final[int]  # 8
CODE_STORE_FULL: Final[int]  # 9
CODE_POLICY: Final[int]  # 10
CODE_ROUND: Final[int]  # 11, the record's round is not open
CODE_NORM: Final[int]  # 12, the gradient is larger than the job allows
CODE_NOT_YET: Final[int]  # 13, a VIEW will ask for the push again
CODE_WRONG_EPOCH: Final[int]  # 14, the shard is served by another process
CODE_SUPERSEDED: Final[int]  # 15, the fragment has changed since the record's base
CODE_NOTHING_KEPT: Final[int]  # 16, the record says "again", and there is nothing to repeat

DTYPE_F32: Final[int]  # 1
DTYPE_F64: Final[int]  # 2
DTYPE_F16: Final[int]  # 3
DTYPE_BF16: Final[int]  # 4

def build_info() -> dict[str, str]:
    """version, profile, simd (the level in use), simd_available (comma separated), crc32c (the
    loop in use), target."""

def crc32c(data: _Bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of data, continuing from value."""

def cast(source: _Bytes, source_dtype: int, target: _Bytes, target_dtype: int) -> None:
    """Convert element by element, round to nearest even, once. Lengths must match; source and
    target may not share memory."""

def step(target: _Bytes, source: _Bytes, source_dtype: int, rate: float) -> None:
    """target (f32) -= rate * source: the replica's local step."""

@final
class Gather:
    """The shapes of a layout's arrays, compiled: takes a gradient for each of them."""
    def __new__(cls, shapes: Sequence[Sequence[int]]) -> Gather: ...
    @property
    def len(self) -> int:
        """Elements of all arrays."""
    def plain(self, values: list[Any]) -> Arrays | None:
        """Take a C-contiguous native float32, float64 or float16 array of each shape; None if one
        is anything else."""
    def mixed(self, values: Sequence[_Bytes | None], dtypes: Sequence[int]) -> Arrays:
        """Take buffers of elements of these dtype codes, of any shape; None stands for zeros.
        Raises ParameterError unless there is one of each length."""

@final
class Arrays:
    """Arrays of any dtypes laid end to end, not copied. Nobody may write into them meanwhile."""
    def overlaps(self, target: _Bytes) -> bool:
        """Whether one of them shares memory with target."""
    def value(self, index: int) -> float | None:
        """One element as f32; None if there is no such."""
    def check(self, fragment_len: int) -> tuple[int, int, float]:
        """(count of elements that are not finite, index of the first or -1, sum of squares of the
        others in f64, in a fixed lane order: same bits on every SIMD level). Of all elements as
        f32, a fragment at a time: the fragments' sums are added in their order."""
    def accumulate(self, target: _Bytes, *, overwrite: bool) -> None:
        """target (f32) += elements, or = elements when overwrite."""
    def step(self, target: _Bytes, rate: float) -> None:
        """target (f32) -= rate * elements: the replica's local step."""
    def encode(
        self,
        target: _Bytes,
        *,
        dtype: int,
        fragment_len: int,
        first: int,
        count: int,
        replica: int,
        incarnation: int,
        push: int,
        versions: _Bytes,
        codec: Codec | None = None,
        residual: _Bytes | None = None,
        leaves_out: bool = False,
    ) -> Encoded:
        """Gather, check, cast or encode, and checksum fragments first .. first + count - 1, each
        into its place in target, as a whole FRAGMENT frame, in one pass.

        target has room for the frames of all fragments, one behind the other; with a codec they
        have any length, the first begins at 0, and fragments of which it has nothing to say may
        be left out. versions: u64, the base version of each fragment. With a codec, residual has
        an f32 for each element, and the elements must be finite (check): a sum that cannot be
        encoded counts as overflowed, and leaves the residual as it was but for rounding. Raises
        ParameterError for what does not fit; nothing is written then.
        """

@final
class Encoded:
    """What encoding has found in the fragments that were encoded."""
    @property
    def bad(self) -> int:
        """Elements that are NaN or infinite as f32."""
    @property
    def first_bad(self) -> int:
        """The first of them, an index in the layout, or -1."""
    @property
    def overflowed(self) -> int:
        """Elements that were finite and are not as they travel."""
    @property
    def first_overflowed(self) -> int:
        """The first that is not finite as it travels, or -1."""
    @property
    def underflowed(self) -> int:
        """Elements that are zero as they travel and were not."""
    @property
    def squares(self) -> float:
        """Sum of the squares of the finite ones as they travel; with a codec, as they arrive."""
    @property
    def ends(self) -> list[int]:
        """With a codec, where each fragment's frame ends in target: of one that was left out, where
        it would begin."""

@final
class Optimizer:
    """A compiled chain of parts, e.g. [("clip", {"max": 1.0}), ("adagrad", {"lr": .05, ...})].

    Raises ConfigError (a ValueError) for an unknown part, a missing or unknown or out-of-range
    number, an unknown simd level.
    """
    def __new__(
        cls, parts: Sequence[tuple[str, dict[str, float]]], *, simd: str | None = None
    ) -> Optimizer: ...
    @property
    def planes(self) -> int:
        """State planes per parameter: 0 for SGD, 1 momentum/Adagrad, 2 Adam."""
    @property
    def history(self) -> int:
        """Past versions of the parameters that its parts look back at; 0: none does."""
    @property
    def tells(self) -> bool:
        """Whether a part of it has a deviation that replicas are told: fasgd has."""
    @property
    def simd(self) -> str: ...

@final
class LocalOptimizer:
    """An optimizer at work on one copy of the parameters, with its state: a replica's own steps.

    The bits are those of a shard to which nobody else pushes. One call at a time.
    """
    def __new__(cls, optimizer: Optimizer, *, len: int) -> LocalOptimizer: ...
    @property
    def size(self) -> int:
        """Bytes of its state: as many planes of len f32 as the optimizer has."""
    def begin(self) -> None:
        """Forget the state, as before the first step; what schedules count goes on."""
    def step(self, target: _Bytes, gradient: Arrays, *, samples: int) -> bool:
        """One update of target (f32, len elements), in place, by a gradient over so many samples;
        False if something did not stay finite: it was written nevertheless. Raises ParameterError
        for lengths that do not fit; nothing is written then."""

def codecs() -> list[str]:
    """The names of the codecs this build can encode and decode, no codec not among them."""

@final
class Codec:
    """A codec, compiled: e.g. Codec("int8", {"block": 256.0}). It holds no elements.

    Encoding is per fragment, with error feedback: what the bytes do not say of gradient + residual
    is left in residual. Layouts and rounding: rust/downpour/src/codec. The same bits on every SIMD
    level. Raises ConfigError for an unknown codec, a missing, unknown or out-of-range number.
    """
    def __new__(cls, name: str, numbers: dict[str, float], *, simd: str | None = None) -> Codec: ...
    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int:
        """The codec byte of a frame's header; 0 is no codec."""
    @property
    def simd(self) -> str: ...
    def size_max(self, len: int) -> int:
        """The most bytes that len elements become, whatever they are."""
    def encode(self, gradient: _Bytes, residual: _Bytes, target: _Bytes) -> int:
        """Encode gradient + residual (f32, equally long) into the first bytes of target, which has
        at least size_max(len) of them; returns how many. Leaves in residual what they do not say:
        decoded + residual is gradient + residual of before, to the bit. Raises NonFiniteGradient
        (with .count and .first_index) for sums that are NaN, infinite or too large, and changes no
        residual then; ParameterError for lengths that do not fit."""
    def decode(self, data: _Bytes, target: _Bytes) -> None:
        """Decode as many f32 elements as target has. Raises ParameterError if data is not of that
        length. Any bytes of the right length decode to something, NaN among it."""
    def give_back(self, data: _Bytes, gradient: _Bytes, residual: _Bytes) -> None:
        """Undo what encoding gradient to data has changed of residual, when it was not applied:
        residual = (residual + decoded) - gradient, where not finite 0. What was encoded in between
        keeps its share."""

@final
class Journal:
    """A bounded buffer of what a shard is about to make visible, for whoever writes it out.

    Every record and every round that is closed is appended as bytes (layout:
    the Rust crate's store/journal.rs), in the order of their LSNs, before anybody can read what
    they change. One that there is no room for is refused (CODE_STORE_FULL, LimitExceeded), and its
    LSN is the next one's.
    """
    def __new__(cls, *, size_max: int) -> Journal:
        """size_max: bytes that may wait to be taken out."""
    def take(self) -> list[bytes]:
        """All entries that nobody has taken out, oldest first."""
    @property
    def last_lsn(self) -> int:
        """Of the newest entry, taken out or not; 0 before the first."""

@final
class Shard:
    """One shard's parameters and optimizer state as published stripes, and whose records it knows.

    len elements, cut in stripes of stripe_len; fragment_len (a multiple of stripe_len) elements
    make a fragment, the unit of a record, which codec may have encoded. Fragments have the numbers
    of the whole layout, here those from first_fragment on. Readers are wait-free; records of a
    fragment are taken one at a time, in the order in which they come.
    A record whose gradient has an L2 norm above max_norm, decoded and before the scale, is refused
    unseen by the optimizer; None measures nothing. Raises ConfigError unless it is finite and
    above 0.

    With accumulates=True records may be combined in rounds: each fragment has an accumulator (one
    f32 an element more, which readers never see). A record that comes with a round is not applied
    but added, sum += factor * g, and close_round() applies the sum as one update: one LSN, one
    version. A fragment has at most one round open; its first record opens it, unless that round or
    a later one was closed. A record of another round is refused (CODE_ROUND, LocalProtocolError).

    A record's factor is scale * weight / max(1, staleness)^staleness_power, in float64, rounded to
    float32 once; weight counts only with a round. staleness is the fragment's version when the
    record is taken less the version it was computed from.
    """
    def __new__(
        cls,
        *,
        len: int,
        stripe_len: int,
        fragment_len: int,
        first_fragment: int = 0,
        optimizer: Optimizer,
        codec: Codec | None = None,
        accumulates: bool = False,
        max_norm: float | None = None,
        journal: Journal | None = None,
    ) -> Shard: ...
    @property
    def len(self) -> int: ...
    @property
    def stripe_len(self) -> int: ...
    @property
    def fragment_len(self) -> int: ...
    @property
    def first_fragment(self) -> int: ...
    @property
    def fragments(self) -> int:
        """How many; they are first_fragment and those that follow."""
    @property
    def planes(self) -> int:
        """State planes per parameter, as the optimizer's."""
    @property
    def history(self) -> int:
        """Past versions of each fragment that it keeps for the optimizer's parts. Each is a
        retired block with all of its planes: as much memory as parameters and state again."""
    @property
    def tells(self) -> bool:
        """As the optimizer's: there is a deviation."""
    @property
    def deviation(self) -> float:
        """The mean over all elements of fasgd's v, as of the last updates; 0.0 without it. Added up
        with each update in a fixed order: the same bits on every SIMD level."""
    @property
    def bases_gone(self) -> int:
        """Updates whose base version was kept no more: they saw the oldest that was."""
    @property
    def lsn(self) -> int:
        """Records applied or accumulated, and rounds closed, be it without a record, so far, all of
        them visible. The first gets LSN 1."""
    def load(self, start: int, values: _Bytes) -> None:
        """Set parameters [start, start+n) from f32 values. Only before the first apply."""
    def read(self, target: _Bytes, start: int = 0) -> None:
        """Copy parameters [start, start + len(target)) into an f32 target, stripe by stripe."""
    def version(self, fragment: int) -> int:
        """Updates applied to this fragment."""
    def versions(self) -> bytes:
        """The versions of all of this shard's fragments, u64 little-endian."""
    def apply(
        self,
        fragment: int,
        payload: _Bytes,
        dtype: int,
        *,
        base_version: int | None = None,
        scale: float = 1.0,
        staleness_power: float = 0.0,
        staleness_max: int | None = None,
        round: int | None = None,
        weight: float = 1.0,
        samples: int = 0,
    ) -> int:
        """Check one record without identity and apply it, or add it to its round; returns its LSN.

        base_version None: not stale. staleness_max: a record that is staler is not applied (None:
        however stale). samples: training samples behind it, for schedules.

        Raises NonFiniteGradient (with .count and .first_index) and changes nothing if the payload,
        times its factor, holds NaN or Inf, or if the result would; LimitExceeded if there is no
        block to write to or no room in the journal; ParameterError for a wrong length, fragment or
        dtype, or numbers that accept() refuses, or a norm above max_norm; LocalProtocolError if the
        round is not open, or it is staler than that.
        """
    @property
    def accumulates(self) -> bool:
        """Whether records may be combined in rounds."""
    def start_accumulating(self) -> None:
        """As accumulates=True, from now on; while records are applied, and again without effect.

        Raises LimitExceeded if there is no memory for it: then nothing has changed.
        """
    def accumulated(self, fragment: int) -> tuple[int, int, float] | None:
        """(round, records, sum of their weights) of a fragment's open round, or None."""
    def read_accumulated(self, fragment: int, target: _Bytes) -> None:
        """Copy the sum of a fragment's open round into an f32 target of its length, or zeros."""
    def close_round(
        self, fragment: int, round: int, *, factor: float | None = None
    ) -> Closed | None:
        """Apply what a fragment has accumulated as one update: the sum times factor (float32); by
        default times 1 / (sum of weights), rounded to float32, which gives the weighted mean.

        None: nothing was accumulated. The round is closed then too. Raises NonFiniteGradient if
        the sum times factor, or the result, holds NaN or Inf: parameters and state are as before,
        the round is closed, and what was accumulated is dropped, as the words say. Raises, and
        changes nothing: LocalProtocolError if another round is open or this one was closed,
        LimitExceeded if there is no block to write to, ParameterError.
        """
    def keep_gradients(self, size_max: int) -> None:
        """Keep each replica's last gradient from now on, as float32 and so many bytes at most, for
        records that say "again" (flag 1 of a FRAGMENT, no payload): the last one of their fragment
        that was taken from the same life is taken once more, under their own identity, with the
        base version it had. Where there is none they are refused (CODE_NOTHING_KEPT). 0 keeps
        none. What is kept is in no export."""
    # -- identity: (replica, incarnation, push, fragment) ---------------------------------------
    def admit(
        self,
        replica: int,
        incarnation: int,
        push: int,
        fragment: int,
        count: int,
        first_open: int,
    ) -> str:
        """Verdict for a run of a push, count fragments from fragment on: "new", "done" (all applied
        before), "partly" (some), "fenced" (older incarnation), "unknown" (first_open - 1 is beyond
        everything this incarnation announced here: the shard lost its past; nothing is changed),
        "elsewhere" (some of the fragments are another shard's), "window" (more open pushes than
        PUSHES_OPEN_MAX bitmaps can hold). Raises the floor to first_open - 1. A newer incarnation
        fences the older ones and starts at floor 0. ids and pushes start at 1. The work is bounded
        by the shard's fragments, whatever count says."""
    def fence(self, replica: int, incarnation: int) -> None:
        """Refuse incarnations below this one for ever."""
    def retire(self, next: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Fence for ever, and forget, the ids below next that are in no range [start, stop).
        Raises ParameterError, and changes nothing, unless there are at most 1,024 ranges that
        ascend, do not overlap and end at next or below."""
    def is_retired(self, replica: int) -> bool:
        """Whether an id was retired."""
    @property
    def applied_of_nobody(self) -> int:
        """Records applied that no replica's count has: of those who are forgotten, and of before
        the fragments came here (see import_state)."""
    @property
    def replicas(self) -> int:
        """How many are remembered."""
    def applied(self, replica: int) -> tuple[int, int, int] | None:
        """(incarnation, floor of its pushes, records applied in all of its incarnations) or
        None."""
    # -- state that must survive a restart ------------------------------------------------------
    def export_state(self) -> bytes:
        """LSN, fragment versions, open rounds with their sums, and dedupe windows at one moment
        between two records, as bytes with a version and a CRC. The planes travel beside it."""
    def import_state(self, states: Sequence[_Bytes]) -> None:
        """Take back what shards exported that together have all fragments of this one, before the
        first apply; states and fragments that are not this shard's are left out. The state of a
        shard with just these fragments goes on as it was, and combines records in rounds if that
        did. Cut anew, a shard knows every duplicate
        and every open round, but its LSN becomes the number of its fragments' updates and open
        records, as if all were changed then, and nobody's records are counted by name
        (applied_of_nobody has them): fetch from 0. Raises CheckpointError for bytes that are
        damaged or contradictory, fragments of another length, and a fragment that is in none or two
        of the states, and changes nothing then."""
    def read_plane(self, plane: int, target: _Bytes, start: int = 0) -> None:
        """Copy elements [start, start + len(target)) of state plane 1..planes (0 = parameters)
        into an f32 target, stripe by stripe. Planes planes + 1 .. planes + history are the
        parameters of one version ago, of two, and so on, or of the oldest there is."""
    def load_plane(self, plane: int, source: _Bytes, start: int = 0) -> None:
        """Set as many elements of a plane, when restoring, before the first apply."""
    # -- fetch --------------------------------------------------------------------------------
    def parameter_frames(
        self, since: int, cursor: int, size_max: int, stop: int | None = None
    ) -> tuple[list[Buffer], int, int]:
        """Frames of fragments changed after LSN since, from cursor (or the first one here) on and
        before stop (or to the last one here), about size_max bytes of them: (buffers ready to write
        in order, next cursor, frames). since 0 means that the asker has nothing: every fragment is
        sent. Payload buffers are the published stripes themselves (PinnedStripe), kept until
        released; fragments up to 16 KiB are gathered. Where readers keep so many stripes already
        that records could run out of blocks, the batch is one fragment, copied: so readers never
        bring a record LimitExceeded. next cursor == that end when done. Header: kind PARAMETERS,
        fragment, version = the fragment's version, seq = LSN of its last record, dtype f32."""
    @property
    def kept(self) -> int:
        """Stripes that buffers of parameter_frames keep now."""
    def memory(self) -> dict[str, int]:
        """Bytes: parameters, state, accumulators, spare, table, history (past versions),
        pinned (old blocks only readers still hold), decoded (what encoded records are decoded
        into), kept (replicas' last gradients)."""

@final
class Closed:
    """A round that was applied to a fragment as one update."""

    @property
    def lsn(self) -> int: ...
    @property
    def version(self) -> int:
        """Updates of the fragment, this one included."""
    @property
    def count(self) -> int:
        """Records that were combined."""
    @property
    def weight(self) -> float:
        """The sum of their weights."""
    @property
    def samples(self) -> int:
        """The sum of their samples."""
    @property
    def staleness(self) -> int:
        """The largest of the records', in updates."""

@final
class PinnedStripe:
    """The published parameters of one stripe: a read-only buffer, pinned while this lives."""

    def __len__(self) -> int:
        """Bytes of the stripe: four an element."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Frame:
    """One received frame's header, and its payload if it is not streamed elsewhere."""

    @property
    def kind(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def replica(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def fragment(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def aux(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def payload(self) -> bytes: ...

@final
class Settled:
    """The records of count fragments of a push, from fragment on, have a definite answer."""

    @property
    def push(self) -> int: ...
    @property
    def fragment(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def applied(self) -> int:
        """The rest were duplicates."""
    @property
    def staleness(self) -> int:
        """The largest of them: version at apply minus base version."""
    @property
    def lsn(self) -> int: ...
    @property
    def last(self) -> bool:
        """The announced run is complete."""

@final
class Refusal:
    """One record was refused; nothing of it was applied."""

    @property
    def push(self) -> int: ...
    @property
    def fragment(self) -> int: ...
    @property
    def code(self) -> int:
        """One of the CODE_ constants."""
    @property
    def count(self) -> int: ...
    @property
    def first_index(self) -> int:
        """Within the fragment; -1 where no element is to blame."""
    @property
    def norm(self) -> float:
        """The gradient's L2 norm where that is why, else 0."""

@final
class ShardInlet:
    """Bytes of one upgraded stream into a shard, fused: each fragment is received into
    this object's scratch, checked, applied and published while in cache.

    The object itself is a writable buffer (the scratch). Loop:
        start, stop = inlet.window();  n = recv_into(view[start:stop]);  event = inlet.advance(n)
        while event is not None: handle(event); event = inlet.advance(0)
    After a PUSH frame the owner must call accept() or skip() before the next advance(). Events
    come in the order of the stream: a Frame never overtakes the Settled of records before it.
    Raises RemoteProtocolError (pydownpour.errors) for malformed bytes; the stream is then dead.
    A window is void after the next call of window().
    """
    def __new__(
        cls, shard: Shard, *, payload_size_max: int, control_size_max: int, ack_every: int
    ) -> ShardInlet: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def window(self) -> tuple[int, int]: ...
    def advance(self, n: int) -> Frame | Settled | Refusal | None: ...
    def settled(self) -> Settled | None:
        """What was settled since the last report (count may be 0), for an owner that wants to
        answer now; None if no push is being applied. Not between an event and its successors."""
    def is_idle(self) -> bool:
        """Whether a new inlet would know as much: no push is under way, no byte of a frame came."""
    def accept(
        self,
        *,
        scale: float = 1.0,
        staleness_power: float = 0.0,
        staleness_max: int | None = None,
        round: int | None = None,
        weight: float = 1.0,
        samples: int = 0,
    ) -> None:
        """Apply the fragments of the push just announced, or add them to a round; duplicates are
        recognised by identity. See Store for the numbers; Settled counts what was added as applied.

        Raises ParameterError, and the push still waits for a decision, unless scale is finite,
        staleness_power is 0 to 8, weight is positive and finite as float32 times scale, and the
        store accumulates if there is a round.

        Exactly one Settled with last=True follows; it has count 0 if the last record was refused.
        The run must have been admitted, or its records are refused with CODE_UNKNOWN_STATE.
        """
    def skip(self) -> None:
        """Receive and throw away the fragments of the push just announced; none is reported."""

@final
class ReplicaInlet:
    """Bytes of one upgraded stream into a replica: PARAMETERS payloads land in the target, or, from
    another replica that sends them, SUM payloads (sums=True).

    Same loop as ShardInlet, but window() names the buffer: (0, start, stop) in this object's
    scratch, (1, start, stop) in the target, as bytes. Bytes land before their checksum can be
    known: after RemoteProtocolError or a cut the fragment that landed() names holds damaged values.
    """
    def __new__(
        cls,
        *,
        len: int,
        fragment_len: int,
        first_fragment: int = 0,
        control_size_max: int,
        sums: bool = False,
    ) -> ReplicaInlet: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def set_target(self, values: _Bytes, versions: _Bytes) -> None:
        """f32 values of len elements and u64 versions, one a fragment. Kept until replaced, which
        is refused (LocalProtocolError) while a payload is landing."""
    def window(self) -> tuple[int, int, int]: ...
    def landed(self) -> tuple[int, int]:
        """(PARAMETERS that have landed whole, the fragment behind the last of them): where a fetch
        that was cut off goes on."""
    def advance(self, n: int) -> Frame | None:
        """The next frame that is not PARAMETERS. FETCHED frames pass through here."""

def encode_frame(
    *,
    kind: int,
    flags: int = 0,
    codec: int = 0,
    dtype: int = 0,
    replica: int = 0,
    incarnation: int = 0,
    fragment: int = 0,
    seq: int = 0,
    version: int = 0,
    aux: int = 0,
    count: int = 0,
    payload: _Bytes = b"",
) -> bytes:
    """Header and payload, with both checksums. Raises LocalProtocolError for an unknown kind or
    flag, or a dtype or codec on a frame that carries no elements."""

def scan_frames(data: _Bytes) -> list[Frame]:
    """Parse whole frames from a buffer (POST bodies and tests). Raises RemoteProtocolError."""

def _panic(words: str, size: int) -> None:
    """Panic in the core, on a pretended size of bytes, for the tests."""

def _all_errors() -> list[BaseException]:
    """One example of every error the core can raise, for the tests."""
