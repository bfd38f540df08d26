"""Everything that grows has a limit here, with the reason for its size.

What both ends of a connection, or whoever reads a file, must agree on is a constant, in capitals.
What a role decides by for itself is a field of :class:`Limits`: a frozen value that services,
sessions and worlds are handed. :data:`DEFAULT` is what they have unless they are handed another;
nothing is ever assigned here.

Names end in their unit. Limits that depend on each other are asserted together at the bottom.
"""

from __future__ import annotations

import dataclasses
from typing import Final, final

from pydownpour.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- stripes and fragments ------------------------------------------------------------------------
STRIPE_LEN_MAX: Final = 16 * 1024
"""Elements: 64 KiB of f32, the knee of copy-on-write with Adam's state in the block."""
FRAGMENT_LEN_MIN: Final = 16
"""Elements: one cache line of f32; shorter ones would share lines."""
FRAGMENTS_PER_SHARD_WANTED: Final = 4
"""Small models get shorter fragments until each shard has this many, so that the shards are
balanced and a part of one can move to another. More would cost small pushes a header each."""

# -- the wire ------------------------------------------------------------------------------------
HEADER_SIZE: Final = 64
"""Bytes of a frame's header: one cache line."""
PAYLOAD_SIZE_MAX: Final = 512 * KIB
"""Bytes: a fragment in the widest dtype (f64)."""
CONTROL_SIZE_MAX: Final = 64 * KIB
"""Bytes in a control frame's payload (push announcements, refusals in words)."""
PUSHES_OPEN_MAX: Final = 64
"""Bitmaps of a replica's pushes that a shard keeps, one bit a fragment: for a gigabyte of
parameters 512 bytes each. One push in flight needs one; the rest is for pushes that leave fragments
out, and for shards that were cut anew while their windows differed."""
PUSHES_IN_FLIGHT_MAX: Final = 8
"""Unacknowledged pushes per replica and shard before push() waits."""
NORM_MAX: Final = 1e38
"""The largest max_norm of a job: norms are announced as float32, which ends at 3.4e38."""
JSON_SIZE_MAX: Final = 4 * MIB
"""Bytes of one control-plane JSON body; a status of many replicas is the longest."""
MESSAGE_SIZE_MAX: Final = 256 * KIB
"""Bytes of one message to a role: a heartbeat, or LEASES_TOLD_MAX units, at its longest."""
POST_FRAMES_SIZE_MAX: Final = 64 * MIB
"""Bytes of one POST /v1/push body; a longer push is sent as several."""
BODY_SIZES_MAX: Final = {
    "/v1/push": POST_FRAMES_SIZE_MAX,
}
"""Bytes of a POST's body, by route; MESSAGE_SIZE_MAX where it is not named. A GET has none."""

# -- the fields of messages ------------------------------------------------------------------------
COUNT_MAX: Final = 2**53
"""Any number that counts things or bytes: what every JSON reader has exactly."""
SECONDS_MAX: Final = 1e9
"""Any duration: thirty years."""
LABEL_LEN_MAX: Final = 255
"""Characters of a host, a version, a digest, a metric's name: the longest host name there is."""
URL_LEN_MAX: Final = 4096
"""Characters of a URL or a path: the longest path there is."""
STATE_LEN_MAX: Final = 3 * MIB
"""Characters of a policy's state at a shard: some numbers for each of ``replicas_max`` replicas."""
WORDS_LEN_MAX: Final = 4096
"""Characters of a reason in words: a few paragraphs, and many of them still fit in memory."""
ARRAY_NAME_LEN_MAX: Final = 1024
"""Characters of a parameter's name: deep module paths have about a hundred."""
ARRAY_RANK_MAX: Final = 64
"""Dimensions of an array: numpy's own limit."""
LAYOUT_LEN_MAX: Final = 2**48
"""Elements of all parameters: a petabyte of float32, and byte counts stay below COUNT_MAX."""
SETTINGS_MAX: Final = 64
"""Settings of a policy, parts of an optimizer, rows of a memory account: ours have up to ten."""
HISTORY_MAX: Final = 256
"""Past versions that a part of an optimizer may look back at: each is as much memory as parameters
and state again, and a gradient that is more stale than that is not worth compensating."""
DRAWS_MAX: Final = 16
"""Random numbers that a policy's rule may want with each step: one for each thing it may leave."""
PLANES_MAX: Final = 1024
"""Planes of a shard, past versions among them: ``SETTINGS_MAX`` parts with three planes each, and
``HISTORY_MAX`` versions, are 449."""
METRICS_MAX: Final = 256
"""Numbers one evaluation may return: each is a column of the report and a line of the display."""
SHARDS_MAX: Final = 4096
"""Shards of one job: the map of them travels in every join."""
LEASES_TOLD_MAX: Final = 1024
"""Leases and finished units in one message: a replica of ours has a handful."""

# -- connections and memory ------------------------------------------------------------------------
SNAPSHOT_COPIES_MAX: Final = 2
"""Whole parameter copies that readers may keep; what they want beyond is copied for them, one
fragment at a time, so that updates always find a block."""
ID_RANGES_MAX: Final = 1024
"""Ranges of known ids that shards are told; more are joined, which only keeps some for longer."""
GROUP_MEMBERS_MAX: Final = 1024
"""Replicas that reduce among themselves: each hears of all of them, with a secret apiece."""
LAYOUT_ARRAYS_MAX: Final = 100_000
"""Arrays in one layout: with usual names ten million bytes to describe, read in a second."""
LAYOUT_SIZE_MAX: Final = 64 * MIB
"""Bytes of a layout as JSON: LAYOUT_ARRAYS_MAX arrays with names of 600 characters."""

# -- work ------------------------------------------------------------------------------------------
UNITS_MAX: Final = 16_000_000
"""Work units in one pass: a bitmap of 2 MB for each open pass. Make units larger beyond."""
BACKUP_FACTOR: Final = 8.0
"""A unit held so many times longer than usual is lent once more, to a replica with nothing to do.
Uneven replicas differ by less, and a copy too many costs one unit's gradients twice."""
BACKUP_FACTOR_MAX: Final = 1000.0
"""More is never; 0 says so."""

# -- waiting ---------------------------------------------------------------------------------------
MISSED_TOLD_MAX: Final = 16
"""Silent shards the coordinator asks replicas about in one heartbeat."""

# -- what is kept of a run -------------------------------------------------------------------------
NAME_LEN_MAX: Final = 64
"""Characters of a job's or replica's name: it becomes a folder and a column."""
LOSS_POINTS_MAX: Final = 400
"""Points of the loss curve; beyond, neighbours are averaged. More than a terminal has columns."""
STATUS_ROWS_MAX: Final = 500
"""Replicas, and shards, that a status shows row by row; it counts all."""
STATUS_EVALUATIONS_MAX: Final = 10
"""Evaluations in a status, the newest: a display shows the last one, and a rate."""
REFUSERS_TOLD_MAX: Final = 8
"""Of these, how many a heartbeat and the report name: where to begin to look for a cause."""
WAITS_TOLD_MAX: Final = 16
"""Pairs of who waited for whom, and replicas that waited and that were waited for, of which a
heartbeat and the report name the longest: where to begin to look for a cause."""
WAITED_FOR_NAMED_MAX: Final = 8
"""Replicas that one wait counts by name. While it is for more nobody in particular is late, and a
round of many replicas would cost a shard their square."""
WAITS_OPEN_TOLD_MAX: Final = 4
"""Waits that last, of which a heartbeat tells each: the longest ones."""
WAITS_ENDED_TOLD_MAX: Final = 8
"""Notable ones that have ended, of which a heartbeat tells each: the newest. At wait_notable_s or
more apiece those of eight replicas take two heartbeats to fill it."""
WAIT_WORDS_LEN_MAX: Final = 120
"""Characters of its words for whom or what: a line of a display."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a role waits for, keeps and does at a time, at most.

    ``dataclasses.replace(DEFAULT, lease_s=3.0)`` is the same with shorter leases. Limits that
    depend on each other may disagree in a value of one's own: small worlds mean to meet edges.

    Raises:
        ConfigError: a field is negative, or not a number.
    """

    # -- stripes and fragments ---------------------------------------------------------------------
    fragment_size: int = 256 * KIB
    """Bytes of f32 in a fragment: received, checked and applied while in the L2 cache."""

    # -- the wire ----------------------------------------------------------------------------------
    ack_every_fragments: int = 32
    """A long push is acknowledged every so many records (8 MiB), so a reconnect resends little."""
    ack_every_s: float = 2.0
    """The same in time: on a slow link a record takes half a minute, and its sender hears so often
    that bytes of it arrive."""
    pushes_in_flight_size_max: int = 256 * MIB
    """Bytes of unacknowledged pushes a replica keeps; one push may always be in flight."""
    push_spare_size_max: int = 8 * MIB
    """Bytes of a push up to which a replica encodes one more than its window while that is full:
    over a long link the next is on its way when the answer comes. Of larger ones the bytes
    themselves take longer than that, and the memory counts."""
    nonfinite_steps_max: int = 10
    """Steps in a row whose gradient holds NaN or Inf before step() raises instead of dropping
    it."""
    write_batch_size: int = 1 * MIB
    """Bytes handed to a transport at once: smaller costs calls, larger leaves the cache."""
    write_high_water: int = 1 * MIB
    """Bytes a transport may hold unsent before we stop producing."""
    reader_high_water: int = 64 * KIB
    """Bytes of answers a shard's transport may hold unsent before more are made: a slow reader
    costs that and one fragment."""
    answers_size_max: int = 4 * KIB
    """Bytes of acknowledgements a replica may leave unread before its pushes are not read either:
    50 of them, more than all its open pushes have."""
    answers_held_max: int = 64
    """Answers of one connection that wait for a shard's journal before its pushes are not read
    either: more than all open pushes of a replica of ours have."""
    http_line_size_max: int = 8 * KIB
    """Bytes of a request line or of one header, as most servers allow."""
    http_header_count_max: int = 64
    """Headers of one request; ours carry about ten."""
    http_headers_size_max: int = 32 * KIB
    """Bytes of all headers of one request; ours take less than one."""
    http_slice_size: int = 4 * KIB
    """Bytes given to the HTTP parser at once, but for a body of known length: what it makes of so
    many is small (headers, requests, chunks of one byte)."""
    post_piece_size_max: int = 32 * MIB
    """Bytes a replica of ours puts in one such body."""
    piece_s: float = 4.0
    """Seconds a POST of a push should take: what is lost with it when its connection breaks."""
    post_answers_size_max: int = 1 * MIB
    """Bytes of the frames that answer one POST of pushes: kept until its body has come. A replica
    of ours sends one push at a time and gets 64 bytes for each record."""

    # -- connections and memory --------------------------------------------------------------------
    connections_max: int = 16_384
    """Open connections of one server, where the process may have so many descriptors."""
    descriptors_wanted: int = 65_536
    """Descriptors a role asks the system for, within what it is allowed: the usual soft limit of
    1,024 was made for programs that use select()."""
    descriptors_reserved: int = 256
    """Descriptors no connection gets: files, imports, this role's own connections to others, and
    those that one turn of the event loop accepts before it has closed others for them."""
    strangers_max: int = 1024
    """Connections of one server that have proven nothing yet, at most half of what it may have: 16
    KiB each. The oldest one makes room for a new one."""
    strangers_per_address_max: int = 512
    """Those from one address: the others' share is theirs. Larger than a listener's backlog, so
    that many honest peers of one machine may call in the same moment."""
    bodies_size_max: int = 128 * MIB
    """Bytes of messages that one server reads or answers at a time, over all connections."""
    turn_events_max: int = 256
    """Announcements, answers and other frames a shard handles in one turn of its event loop, over
    all connections: some 10 ms."""
    stream_events_max: int = 64
    """Those of one connection, so that one peer is not the whole turn."""
    in_flight_size_max: int = 256 * MIB
    """Bytes a shard reserves for bodies being received, over all connections."""
    kept_size_max: int = 1024 * MIB
    """Bytes of replicas' last gradients that a shard keeps, where the policy drops pushes: a copy
    of its parameters for each. A replica whose last one did not fit sends all of its gradients."""
    replicas_max: int = 65_536
    """Replicas in one job at a time: a shard then remembers some 15 MB of them between pushes."""
    group_members_max: int = GROUP_MEMBERS_MAX
    """Replicas that reduce among themselves; others wait for a place."""
    replicas_gone_max: int = 256
    """Replicas that left or died and still have a row of their own; of older ones only sums are
    kept, and shards forget what they pushed."""
    id_ranges_max: int = ID_RANGES_MAX
    """Ranges of known ids that a coordinator tells shards: at most what the wire allows."""
    replica_gone_s: float = 120.0
    """How long one that is gone is kept at least: a dead one may come back, and by then its own
    patience with the coordinator has ended twice."""

    # -- work --------------------------------------------------------------------------------------
    leases_asked_max: int = 4
    """Units lent for one request: enough to ask ahead, too few to hoard."""
    leases_per_replica_max: int = 1024
    """Units one replica may hold: as many as a policy may accrue over before it pushes. Beyond,
    what is accrued is pushed, whatever the policy says."""
    completions_max: int = 16
    """Units reported at once; the ledger remembers so many answers, should they have to be
    repeated."""
    unit_failures_max: int = 3
    """Times a try at one unit may fail (the user's code raises, a gradient is not applied),
    wherever it was lent, before it is set aside: what a transient fault breaks, another try
    mends."""
    units_aside_in_a_row_max: int = 5
    """Units set aside with none completed between them before a job that skips them ends: then it
    is the code that is broken, and not a sample."""
    units_aside_told_max: int = 100
    """Units set aside that the report names with their tracebacks; all are counted."""
    backup_min_s: float = 10.0
    """No unit is held too long before this, however quick units are: a pause is not a hang."""
    backup_blind_s: float = 300.0
    """The same while nobody knows how long units take."""
    hold_times_kept: int = 64
    """Completed units whose times tell how long units usually take."""
    hold_times_min: int = 3
    """Completed units before what is usual can be said: the median of fewer tells nothing."""
    lease_s: float = 10.0
    """Seconds a lease lives without a heartbeat of its holder."""
    lease_retry_s: float = 0.1
    """What a replica waits before it asks again when there is nothing to lease."""
    lease_asks_per_s_max: int = 1000
    """Repeated lease requests of all waiting replicas together: more replicas wait longer each."""
    passes_open_max: int = 16
    """Passes begun and not finished: a bitmap each, should one replica stand still with one
    unit."""

    # -- waiting -----------------------------------------------------------------------------------
    tls_handshake_timeout_s: float = 10.0
    """Seconds from a connection to the end of its TLS handshake: 5 kB and three round trips."""
    header_timeout_s: float = 10.0
    """Seconds a client may take over its request's headers."""
    keepalive_s: float = 75.0
    """Seconds between two requests of one connection; longer than reverse proxies keep one idle."""
    body_window_size_min: int = 8 * KIB
    """Bytes of a request body, or its rest, that must come within each body_window_s of waiting for
    them: a fifth of what one of several links over 10 kB/s has."""
    body_window_s: float = 20.0
    """Long enough for a cut of the path that TCP survives."""
    linger_s: float = 0.25
    """How long a refused body is still read and thrown away, so that its sender hears why."""
    connect_timeout_s: float = 5.0
    """Seconds a connection may take to open."""
    request_timeout_s: float = 30.0
    """Seconds of a request in which not a byte moves in either direction."""
    ack_timeout_s: float = 30.0
    """Answers are due and not a byte has moved in either direction for this long: connect again and
    send what has no answer."""
    link_rate_min: int = 10 * 1000
    """Bytes a second of the slowest link that is waited for, shared by one replica's
    connections."""
    stream_silence_s: float = 30.0
    """A stream that is silent for so long is asked whether there is anybody, and after as long
    again without an answer closed; meanwhile it keeps no memory."""
    reader_batch_s: float = 0.5
    """A reader that takes longer over what it was sent at once gets one fragment at a time."""
    reader_window_s: float = 60.0
    """A connection that does not take its answer loses it: in so many seconds it has to take"""
    reader_size_min: int = 16 * KIB
    """so many bytes. 270 bytes a second: a link of link_rate_min that 36 shards share is faster."""
    heartbeat_s: float = 0.5
    """Between two heartbeats of a role."""
    heartbeat_timeout_s: float = 1.5
    """A heartbeat that got no answer for so long is sent again at once, on another connection: one
    answer that is lost must not make its sender dead."""
    deaf_s: float = 1.0
    """A coordinator that watches several roles and hears none of them for so long is cut off
    itself: two heartbeats of each."""
    suspect_s: float = 2.0
    """Silence that makes a role suspect: four heartbeats."""
    dead_s: float = 3.0
    """Silence that makes a role dead: six heartbeats."""
    sweep_s: float = 0.25
    """How often the coordinator looks for silent roles and ended leases."""
    shard_patience_s: float = 300.0
    """How long a shard that gives no sign of life is waited for once it may hold updates: a machine
    that is moved or swaps, a router that restarts. Giving it up loses them and gains nothing."""
    shard_refused_s: float = 10.0
    """The same while its host refuses connections: a process is gone, or a proxy is restarting."""
    hearsay_s: float = 3600.0
    """How long replicas' word that a shard answers them counts, when it does not answer the
    coordinator: somebody who lies must not keep a job waiting for ever."""
    stall_s: float = 1.0
    """A sweep this late means the coordinator itself stood still: nobody is blamed for the gap."""
    mass_silence_s: float = 60.0
    """How long more than half of all roles may be silent at once before they are called dead."""
    quiet_s: float = 30.0
    """With no heartbeat from any replica for this long the coordinator says so."""
    leave_patience_s: float = 10.0
    """How long the end of a job waits for replicas to say goodbye, so that the report has their
    last counts."""
    evaluation_patience_s: float = 10.0
    """How long the final parameters wait for an evaluation that still looks at older ones: a
    coordinator then holds one set and not two. Longer, and a shard might die meanwhile."""
    stop_patience_s: float = 0.3
    """The same after an operator's stop, where Ctrl-C must end everything within 2 s."""
    stop_evaluation_s: float = 10.0
    """How long the evaluation of the final parameters may take after an operator's stop: they are
    written by then, and the report waits for it."""
    notice_s: float = 2.0
    """How long a finished coordinator stays up for roles to learn of the end: four heartbeats."""
    stats_timeout_s: float = 5.0
    """For a shard's last counts; its last heartbeat serves if it does not answer."""
    reconnects_max: int = 20
    """Connections in a row that may break before anything was settled or fetched; and
    join_patience_s must have gone by, or a network that resets everything for a moment would end a
    replica."""
    backoff_min_s: float = 0.05
    """Before the first retry of anything; doubled up to backoff_max_s."""
    backoff_max_s: float = 2.0
    """Between two retries at most: a peer that comes back is found within this."""
    handover_silence_s: float = 10.0
    """Who takes a shard over and is not heard for so long is given up: meanwhile nobody serves the
    shard. Longer than dead_s, as a move back and forth costs more than a wait."""
    handover_linger_s: float = 5.0
    """A process that a shard has moved from goes on saying so: ten heartbeats, in which all who
    still ask it hear of the new one, with or without the coordinator."""
    join_patience_s: float = 60.0
    """How long a role waits for a coordinator or shard to appear before it gives up in words."""
    wait_notable_s: float = 2.0
    """An answer that a shard holds for so long is an event, when it is noticed and when it ends;
    waits for equal machines' steps are shorter."""
    wait_events_max: int = 60
    """Such events that a job writes in wait_events_s; the others are counted in the next one."""
    wait_events_s: float = 60.0
    """With wait_events_max one a second: for ever, that is 10 MB of events.jsonl a day."""
    wait_told_s: float = 2.0
    """Who waits for a peer says so after this long; longer than anything that is only being
    started."""
    wait_told_max_s: float = 30.0
    """Between two such lines at most, and twice in join_patience_s."""
    coordinator_refused_s: float = 10.0
    """The same once a role has heard it and its host then refuses connections: the process is gone,
    but a proxy before it may only be restarting."""
    finished_refused_s: float = 1.0
    """The same where the coordinator was finishing the job when it was last heard."""
    load_told_s: float = 5.0
    """A job file that still loads after so long is said to, and again each time."""
    restarts_max: int = 10
    """Crashes of one replica within restart_window_s, with no work done between them, that an
    engine forgives: a peer or a disk that is away for a while comes back within so many."""
    restart_window_s: float = 120.0
    """With the back-off at its longest, restarts_max crashes of a replica that dies at once take
    half of this: what crashes less often than that is not a loop."""
    restart_backoff_s: float = 0.5
    """Before a crashed replica starts again; doubles while it dies young."""
    restart_backoff_max_s: float = 4.0
    """Long enough not to burn a core on start-ups, short enough to watch."""
    restart_stable_s: float = 5.0
    """A replica that lived this long had started well: its back-off and failures count anew."""
    restart_same_failure_max: int = 3
    """The same own failure so often in a row is deterministic: show it instead of repeating it."""
    log_size_max: int = 32 * MIB
    """Bytes of a process's log before it is cut; as much of what it held before is kept beside
    it."""
    log_look_s: float = 2.0
    """How often an engine looks whether one is too long."""
    log_tail_lines: int = 12
    """Last lines of a crashed process's log that an error message shows."""
    channel_line_size_max: int = 16 * MIB
    """Bytes of one JSON line from a child to its engine (the report is the longest)."""
    status_poll_s: float = 0.25
    """Between two looks of an engine at the coordinator's status."""
    shutdown_s: float = 1.5
    """From the first request to stop to killing what is left: Ctrl-C ends everything within 2 s."""
    signals_one_s: float = 0.5
    """Signals to stop that come closer together are one: a key that bounces, a wrapper that passes
    on what the terminal sent to everybody. A person who means it again takes longer."""

    # -- what is kept of a run ---------------------------------------------------------------------
    evaluations_max: int = 1000
    """Evaluations kept in memory, the newest; events.jsonl has all."""
    evaluation_numbers_max: int = 20_000
    """Numbers in all of these together: fewer are kept of an evaluation that returns many."""
    evaluation_errors_max: int = 100
    """Failures of evaluations kept in memory, the newest, a line each."""
    policies_told_max: int = 100
    """Versions of a job's policy that its report lists: the first, and the last ones."""
    report_rows_max: int = 1000
    """Replicas, and shards, that a report lists one by one; the others are one sum."""
    refusers_kept_max: int = 1024
    """Replicas whose refused records a shard counts by name; those of more are one sum."""
    wait_pairs_kept_max: int = 4096
    """Pairs of who waited for whom that a shard counts by name, and replicas that waited or were
    waited for; of more the smaller half becomes a sum."""
    write_told_size: int = 1 * MIB
    """Bytes of the final parameters between two words about how far they are: a fraction of a
    second on a slow disk."""
    print_burst: int = 20
    """Lines of a user's print that a display shows at once: a screenful; all are in the log."""
    print_lines_per_s: float = 2.0
    """And then, of each process: what people can follow."""
    print_line_len_max: int = 300
    """Characters of a printed line that a display shows: a few rows of a terminal."""
    events_size_max: int = 64 * MIB
    """Bytes of events.jsonl; a role that joins and dies for ever must not fill the disk."""
    stored_header_size_max: int = 90 * MIB
    """Bytes of a safetensors header; the format's own readers stop at 100 million."""
    stored_metadata_size_max: int = 256 * KIB
    """Bytes of it that are not the arrays': an LSN for each of SHARDS_MAX shards and some names."""
    events_queued_max: int = 10_000
    """Events waiting for a slow disk; beyond, new ones are dropped and counted."""
    noise_s: float = 60.0
    """A server writes one line in so many seconds about what one address does wrong."""
    noise_addresses_max: int = 256
    """Addresses a server keeps apart for that; all others share one line: 100 MB of log a day."""
    noise_line_len_max: int = 240
    """Characters of such a line."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value >= 0:  # what is no number is not, either
                raise ConfigError(f"limits: {field.name}={value}, it must be 0 or more")


DEFAULT: Final = Limits()
"""What holds unless another is handed in."""

assert PAYLOAD_SIZE_MAX >= DEFAULT.fragment_size
assert PUSHES_IN_FLIGHT_MAX * 4 <= PUSHES_OPEN_MAX
assert (
    DEFAULT.replicas_gone_max < DEFAULT.replicas_max
    and DEFAULT.replica_gone_s >= 2 * DEFAULT.join_patience_s
)
assert DEFAULT.reader_size_min / DEFAULT.reader_window_s < DEFAULT.link_rate_min / 32
assert DEFAULT.post_piece_size_max <= POST_FRAMES_SIZE_MAX
assert DEFAULT.ack_every_s * 4 < DEFAULT.ack_timeout_s
assert STRIPE_LEN_MAX * 4 <= DEFAULT.fragment_size
assert DEFAULT.suspect_s < DEFAULT.dead_s < DEFAULT.lease_s
assert DEFAULT.dead_s < DEFAULT.handover_silence_s < DEFAULT.shard_patience_s
assert DEFAULT.heartbeat_s * 3 < DEFAULT.suspect_s
assert DEFAULT.heartbeat_s * 2 <= DEFAULT.deaf_s < DEFAULT.suspect_s
assert DEFAULT.heartbeat_s + DEFAULT.heartbeat_timeout_s + DEFAULT.heartbeat_s < DEFAULT.dead_s
assert DEFAULT.in_flight_size_max >= 1024 // 8 * PAYLOAD_SIZE_MAX // 4
assert DEFAULT.stream_events_max < DEFAULT.turn_events_max
assert DEFAULT.strangers_per_address_max < DEFAULT.strangers_max < DEFAULT.connections_max
assert DEFAULT.http_line_size_max < DEFAULT.http_headers_size_max
assert DEFAULT.leases_per_replica_max <= LEASES_TOLD_MAX
assert DEFAULT.completions_max <= LEASES_TOLD_MAX
assert DEFAULT.stall_s > 2 * DEFAULT.sweep_s
assert DEFAULT.dead_s < DEFAULT.shard_refused_s < DEFAULT.shard_patience_s < DEFAULT.hearsay_s
assert DEFAULT.finished_refused_s < DEFAULT.coordinator_refused_s < DEFAULT.join_patience_s
assert DEFAULT.dead_s < DEFAULT.leave_patience_s and DEFAULT.heartbeat_s * 3 < DEFAULT.notice_s
assert LAYOUT_SIZE_MAX > LAYOUT_ARRAYS_MAX * 600
assert DEFAULT.stored_header_size_max < 100_000_000
