"""Everything that grows has a limit here, with the reason for its size.

Names end in their unit. Limits that depend on each other are asserted together at the bottom.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- stripes and fragments (DESIGN: the store) ---------------------------------------------------
STRIPE_LEN_MAX: Final = 16 * 1024
"""Elements: 64 KiB of f32, the knee of copy-on-write with Adam's state in the block."""
STRIPE_LEN_MIN: Final = 16
"""Elements: one cache line of f32; smaller stripes would share lines."""
STRIPES_PER_SHARD_WANTED: Final = 8
"""Small models get shorter stripes until each shard has this many: keeps shards balanced."""
FRAGMENT_SIZE: Final = 256 * KIB
"""Bytes of f32 in a fragment: received, checked and applied while in the L2 cache."""

# -- the wire ------------------------------------------------------------------------------------
HEADER_SIZE: Final = 64
"""Bytes of a frame's header: one cache line."""
PAYLOAD_SIZE_MAX: Final = 2 * FRAGMENT_SIZE
"""Bytes: a fragment in the widest dtype (f64)."""
CONTROL_SIZE_MAX: Final = 64 * KIB
"""Bytes in a control frame's payload (push announcements, refusals in words)."""
ACK_EVERY_FRAGMENTS: Final = 32
"""A long push is acknowledged every so many records (8 MiB), so a reconnect resends little."""
ACK_EVERY_S: Final = 2.0
"""The same in time: on a slow link a record takes half a minute, and its sender hears so often
that bytes of it arrive."""
SEQ_WINDOW: Final = 1024
"""Records above the floor a shard remembers per replica: 128 bytes of bitmap."""
PUSHES_IN_FLIGHT_MAX: Final = 8
"""Unacknowledged pushes per replica and shard before push() waits."""
PUSHES_IN_FLIGHT_SIZE_MAX: Final = 256 * MIB
"""Bytes of unacknowledged pushes a replica keeps; one push may always be in flight."""
NONFINITE_STEPS_MAX: Final = 10
"""Steps in a row whose gradient holds NaN or Inf before step() raises instead of dropping it."""
WRITE_BATCH_SIZE: Final = 1 * MIB
"""Bytes handed to a transport at once: smaller costs calls, larger leaves the cache."""
WRITE_HIGH_WATER: Final = 1 * MIB
"""Bytes a transport may hold unsent before we stop producing."""
READER_HIGH_WATER: Final = 64 * KIB
"""Bytes of answers a shard's transport may hold unsent before more are made: a slow reader costs
that and one fragment."""
ANSWERS_SIZE_MAX: Final = 4 * KIB
"""Bytes of acknowledgements a replica may leave unread before its pushes are not read either: 64 of
them, more than all its open pushes have."""
JSON_SIZE_MAX: Final = 4 * MIB
"""Bytes of one control-plane JSON body; a status of many replicas is the longest."""
MESSAGE_SIZE_MAX: Final = 256 * KIB
"""Bytes of one message to a role: a heartbeat, or LEASES_TOLD_MAX units, at its longest."""
HTTP_LINE_SIZE_MAX: Final = 8 * KIB
"""Bytes of a request line or of one header, as most servers allow."""
HTTP_HEADER_COUNT_MAX: Final = 64
"""Headers of one request; ours carry about ten."""
HTTP_HEADERS_SIZE_MAX: Final = 32 * KIB
"""Bytes of all headers of one request; ours take less than one."""
HTTP_SLICE_SIZE: Final = 4 * KIB
"""Bytes given to the HTTP parser at once, but for a body of known length: what it makes of so many
is small (headers, requests, chunks of one byte)."""
POST_FRAMES_SIZE_MAX: Final = 64 * MIB
"""Bytes of one POST /v1/push body; a longer push is sent as several."""
POST_PIECE_SIZE_MAX: Final = 32 * MIB
"""Bytes a replica of ours puts in one such body."""
PIECE_S: Final = 4.0
"""Seconds a POST of a push should take: what is lost with it when its connection breaks."""
BODY_SIZES_MAX: Final = {
    "/v1/push": POST_FRAMES_SIZE_MAX,
}
"""Bytes of a POST's body, by route; MESSAGE_SIZE_MAX where it is not named. A GET has none."""
POST_ANSWERS_SIZE_MAX: Final = 1 * MIB
"""Bytes of the frames that answer one POST of pushes: kept until its body has come. A replica of
ours sends one push at a time and gets 64 bytes for each record."""

# -- the fields of messages ------------------------------------------------------------------------
COUNT_MAX: Final = 2**53
"""Any number that counts things or bytes: what every JSON reader has exactly."""
SECONDS_MAX: Final = 1e9
"""Any duration: thirty years."""
LABEL_LEN_MAX: Final = 255
"""Characters of a host, a version, a digest, a metric's name: the longest host name there is."""
URL_LEN_MAX: Final = 4096
"""Characters of a URL or a path: the longest path there is."""
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
METRICS_MAX: Final = 256
"""Numbers one evaluation may return: each is a column of the report and a line of the display."""
SHARDS_MAX: Final = 4096
"""Shards of one job: the map of them travels in every join."""
LEASES_TOLD_MAX: Final = 1024
"""Leases and finished units in one message: a replica of ours has a handful."""

# -- connections and memory ------------------------------------------------------------------------
CONNECTIONS_MAX: Final = 16_384
"""Open connections of one server, where the process may have so many descriptors."""
DESCRIPTORS_WANTED: Final = 65_536
"""Descriptors a role asks the system for, within what it is allowed: the usual soft limit of 1,024
was made for programs that use select()."""
DESCRIPTORS_RESERVED: Final = 256
"""Descriptors no connection gets: files, imports, this role's own connections to others, and those
that one turn of the event loop accepts before it has closed others for them."""
STRANGERS_MAX: Final = 1024
"""Connections of one server that have proven nothing yet, at most half of what it may have: 16 KiB
each. The oldest one makes room for a new one."""
STRANGERS_PER_ADDRESS_MAX: Final = 512
"""Those from one address: the others' share is theirs. Larger than a listener's backlog, so that
many honest peers of one machine may call in the same moment."""
BODIES_SIZE_MAX: Final = 128 * MIB
"""Bytes of messages that one server reads or answers at a time, over all connections."""
TURN_EVENTS_MAX: Final = 256
"""Announcements, answers and other frames a shard handles in one turn of its event loop, over all
connections: some 10 ms."""
STREAM_EVENTS_MAX: Final = 64
"""Those of one connection, so that one peer is not the whole turn."""
IN_FLIGHT_SIZE_MAX: Final = 256 * MIB
"""Bytes a shard reserves for bodies being received, over all connections."""
SNAPSHOT_COPIES_MAX: Final = 2
"""Whole parameter copies that readers may keep; what they want beyond is copied for them, one
fragment at a time, so that updates always find a block."""
REPLICAS_MAX: Final = 65_536
"""Replicas in one job at a time: their dedupe windows then take about 12 MiB at each shard."""
REPLICAS_GONE_MAX: Final = 256
"""Replicas that left or died and still have a row of their own; of older ones only sums are kept,
and shards forget what they pushed."""
REPLICA_GONE_S: Final = 120.0
"""How long one that is gone is kept at least: a dead one may come back, and by then its own
patience with the coordinator has ended twice."""
ID_RANGES_MAX: Final = 1024
"""Ranges of known ids that shards are told; more are joined, which only keeps some for longer."""
LAYOUT_ARRAYS_MAX: Final = 100_000
"""Arrays in one layout: with usual names ten million bytes to describe, read in a second."""
LAYOUT_SIZE_MAX: Final = 64 * MIB
"""Bytes of a layout as JSON: LAYOUT_ARRAYS_MAX arrays with names of 600 characters."""

# -- work ------------------------------------------------------------------------------------------
UNITS_MAX: Final = 16_000_000
"""Work units in one pass: a bitmap of 2 MB for each open pass. Make units larger beyond."""
LEASES_ASKED_MAX: Final = 4
"""Units lent for one request: enough to ask ahead, too few to hoard."""
LEASES_PER_REPLICA_MAX: Final = 1024
"""Units one replica may hold: as many as a policy may accrue over before it pushes. Beyond, what
is accrued is pushed, whatever the policy says."""
COMPLETIONS_MAX: Final = 16
"""Units reported at once; the ledger remembers so many answers, should they have to be repeated."""
UNIT_FAILURES_MAX: Final = 3
"""Times a try at one unit may fail (the user's code raises, a gradient is not applied), wherever it
was lent, before it is set aside: what a transient fault breaks, another try mends."""
UNITS_ASIDE_IN_A_ROW_MAX: Final = 5
"""Units set aside with none completed between them before a job that skips them ends: then it is
the code that is broken, and not a sample."""
UNITS_ASIDE_TOLD_MAX: Final = 100
"""Units set aside that the report names with their tracebacks; all are counted."""
BACKUP_FACTOR: Final = 8.0
"""A unit held so many times longer than usual is lent once more, to a replica with nothing to do.
Uneven replicas differ by less, and a copy too many costs one unit's gradients twice."""
BACKUP_FACTOR_MAX: Final = 1000.0
"""More is never; 0 says so."""
BACKUP_MIN_S: Final = 10.0
"""No unit is held too long before this, however quick units are: a pause is not a hang."""
BACKUP_BLIND_S: Final = 300.0
"""The same while nobody knows how long units take."""
HOLD_TIMES_KEPT: Final = 64
"""Completed units whose times tell how long units usually take."""
HOLD_TIMES_MIN: Final = 3
"""Fewer tell nothing."""
LEASE_S: Final = 10.0
"""Seconds a lease lives without a heartbeat of its holder."""
LEASE_RETRY_S: Final = 0.1
"""What a replica waits before it asks again when there is nothing to lease."""
LEASE_ASKS_PER_S_MAX: Final = 1000
"""Repeated lease requests of all waiting replicas together: more replicas wait longer each."""
PASSES_OPEN_MAX: Final = 16
"""Passes begun and not finished: a bitmap each, should one replica stand still with one unit."""

# -- waiting ---------------------------------------------------------------------------------------
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds from a connection to the end of its TLS handshake: 5 kB and three round trips."""
HEADER_TIMEOUT_S: Final = 10.0
"""Seconds a client may take over its request's headers."""
KEEPALIVE_S: Final = 75.0
"""Seconds between two requests of one connection; longer than reverse proxies keep one idle."""
BODY_WINDOW_SIZE_MIN: Final = 8 * KIB
"""Bytes of a request body, or its rest, that must come within each BODY_WINDOW_S of waiting for
them: a fifth of what one of several links over 10 kB/s has."""
BODY_WINDOW_S: Final = 20.0
"""Long enough for a cut of the path that TCP survives."""
LINGER_S: Final = 0.25
"""How long a refused body is still read and thrown away, so that its sender hears why."""
CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds a connection may take to open."""
REQUEST_TIMEOUT_S: Final = 30.0
"""Seconds of a request in which not a byte moves in either direction."""
ACK_TIMEOUT_S: Final = 30.0
"""Answers are due and not a byte has moved in either direction for this long: connect again and
send what has no answer."""
LINK_RATE_MIN: Final = 10 * 1000
"""Bytes a second of the slowest link that is waited for, shared by one replica's connections."""
STREAM_SILENCE_S: Final = 30.0
"""A stream that is silent for so long is asked whether there is anybody, and after as long again
without an answer closed; meanwhile it keeps no memory."""
READER_BATCH_S: Final = 0.5
"""A reader that takes longer over what it was sent at once gets one fragment at a time."""
READER_WINDOW_S: Final = 60.0
"""A connection that does not take its answer loses it: in so many seconds it has to take"""
READER_SIZE_MIN: Final = 16 * KIB
"""so many bytes. 270 bytes a second: a link of LINK_RATE_MIN that 36 shards share is faster."""
HEARTBEAT_S: Final = 0.5
"""Between two heartbeats of a role."""
HEARTBEAT_TIMEOUT_S: Final = 1.5
"""A heartbeat that got no answer for so long is sent again at once, on another connection: one
answer that is lost must not make its sender dead."""
DEAF_S: Final = 1.0
"""A coordinator that watches several roles and hears none of them for so long is cut off itself:
two heartbeats of each."""
SUSPECT_S: Final = 2.0
"""Silence that makes a role suspect: four heartbeats."""
DEAD_S: Final = 3.0
"""Silence that makes a role dead: six heartbeats."""
SWEEP_S: Final = 0.25
"""How often the coordinator looks for silent roles and ended leases."""
SHARD_PATIENCE_S: Final = 300.0
"""How long a shard that gives no sign of life is waited for once it may hold updates: a machine
that is moved or swaps, a router that restarts. Giving it up loses them and gains nothing."""
SHARD_REFUSED_S: Final = 10.0
"""The same while its host refuses connections: a process is gone, or a proxy is restarting."""
HEARSAY_S: Final = 3600.0
"""How long replicas' word that a shard answers them counts, when it does not answer the
coordinator: somebody who lies must not keep a job waiting for ever."""
MISSED_TOLD_MAX: Final = 16
"""Silent shards the coordinator asks replicas about in one heartbeat."""
STALL_S: Final = 1.0
"""A sweep this late means the coordinator itself stood still: nobody is blamed for the gap."""
MASS_SILENCE_S: Final = 60.0
"""How long more than half of all roles may be silent at once before they are called dead."""
QUIET_S: Final = 30.0
"""With no heartbeat from any replica for this long the coordinator says so."""
LEAVE_PATIENCE_S: Final = 10.0
"""How long the end of a job waits for replicas to say goodbye, so that the report has their last
counts."""
EVALUATION_PATIENCE_S: Final = 10.0
"""How long the final parameters wait for an evaluation that still looks at older ones: a
coordinator then holds one set and not two. Longer, and a shard might die meanwhile."""
STOP_PATIENCE_S: Final = 0.3
"""The same after an operator's stop, where Ctrl-C must end everything within 2 s."""
STOP_EVALUATION_S: Final = 10.0
"""How long the evaluation of the final parameters may take after an operator's stop: they are
written by then, and the report waits for it."""
NOTICE_S: Final = 2.0
"""How long a finished coordinator stays up for roles to learn of the end: four heartbeats."""
STATS_TIMEOUT_S: Final = 5.0
"""For a shard's last counts; its last heartbeat serves if it does not answer."""
RECONNECTS_MAX: Final = 20
"""Connections in a row that may break before anything was settled or fetched; and JOIN_PATIENCE_S
must have gone by, or a network that resets everything for a moment would end a replica."""
BACKOFF_MIN_S: Final = 0.05
"""Before the first retry of anything; doubled up to BACKOFF_MAX_S."""
BACKOFF_MAX_S: Final = 2.0
"""Between two retries at most: a peer that comes back is found within this."""
JOIN_PATIENCE_S: Final = 60.0
"""How long a role waits for a coordinator or shard to appear before it gives up in words."""
WAIT_TOLD_S: Final = 2.0
"""Who waits for a peer says so after this long; longer than anything that is only being started."""
WAIT_TOLD_MAX_S: Final = 30.0
"""Between two such lines at most, and twice in JOIN_PATIENCE_S."""
COORDINATOR_REFUSED_S: Final = 10.0
"""The same once a role has heard it and its host then refuses connections: the process is gone, but
a proxy before it may only be restarting."""
FINISHED_REFUSED_S: Final = 1.0
"""The same where the coordinator was finishing the job when it was last heard."""
LOAD_TOLD_S: Final = 5.0
"""A job file that still loads after so long is said to, and again each time."""
RESTARTS_MAX: Final = 10
"""Crashes of one replica within RESTART_WINDOW_S, with no work done between them, that an engine
forgives: a peer or a disk that is away for a while comes back within so many."""
RESTART_WINDOW_S: Final = 120.0
"""With the back-off at its longest, RESTARTS_MAX crashes of a replica that dies at once take half
of this: what crashes less often than that is not a loop."""
RESTART_BACKOFF_S: Final = 0.5
"""Before a crashed replica starts again; doubles while it dies young."""
RESTART_BACKOFF_MAX_S: Final = 4.0
"""Long enough not to burn a core on start-ups, short enough to watch."""
RESTART_STABLE_S: Final = 5.0
"""A replica that lived this long had started well: its back-off and failures count anew."""
RESTART_SAME_FAILURE_MAX: Final = 3
"""The same own failure so often in a row is deterministic: show it instead of repeating it."""
LOG_SIZE_MAX: Final = 32 * MIB
"""Bytes of a process's log before it is cut; as much of what it held before is kept beside it."""
LOG_LOOK_S: Final = 2.0
"""How often an engine looks whether one is too long."""
LOG_TAIL_LINES: Final = 12
"""Last lines of a crashed process's log that an error message shows."""
CHANNEL_LINE_SIZE_MAX: Final = 16 * MIB
"""Bytes of one JSON line from a child to its engine (the report is the longest)."""
STATUS_POLL_S: Final = 0.25
"""Between two looks of an engine at the coordinator's status."""
"""Before a crashed replica is started again; grows with each crash."""
SHUTDOWN_S: Final = 1.5
"""From the first request to stop to killing what is left: Ctrl-C ends everything within 2 s."""
SIGNALS_ONE_S: Final = 0.5
"""Signals to stop that come closer together are one: a key that bounces, a wrapper that passes on
what the terminal sent to everybody. A person who means it again takes longer."""

# -- what is kept of a run -------------------------------------------------------------------------
NAME_LEN_MAX: Final = 64
"""Characters of a job's or replica's name: it becomes a folder and a column."""
LOSS_POINTS_MAX: Final = 400
"""Points of the loss curve; beyond, neighbours are averaged. More than a terminal has columns."""
EVALUATIONS_MAX: Final = 1000
"""Evaluations kept in memory, the newest; events.jsonl has all."""
EVALUATION_NUMBERS_MAX: Final = 20_000
"""Numbers in all of these together: fewer are kept of an evaluation that returns many."""
EVALUATION_ERRORS_MAX: Final = 100
"""Failures of evaluations kept in memory, the newest, a line each."""
STATUS_ROWS_MAX: Final = 500
"""Replicas, and shards, that a status shows row by row; it counts all."""
STATUS_EVALUATIONS_MAX: Final = 10
"""Evaluations in a status, the newest: a display shows the last one, and a rate."""
REPORT_ROWS_MAX: Final = 1000
"""Replicas, and shards, that a report lists one by one; the others are one sum."""
REFUSERS_KEPT_MAX: Final = 1024
"""Replicas whose refused records a shard counts by name; those of more are one sum."""
REFUSERS_TOLD_MAX: Final = 8
"""Of these, how many a heartbeat and the report name: where to begin to look for a cause."""
WRITE_TOLD_SIZE: Final = 1 * MIB
"""Bytes of the final parameters between two words about how far they are: a fraction of a second
on a slow disk."""
PRINT_BURST: Final = 20
"""Lines of a user's print that a display shows at once: a screenful; all are in the log."""
PRINT_LINES_PER_S: Final = 2.0
"""And then, of each process: what people can follow."""
PRINT_LINE_LEN_MAX: Final = 300
"""Characters of a printed line that a display shows: a few rows of a terminal."""
EVENTS_SIZE_MAX: Final = 64 * MIB
"""Bytes of events.jsonl; a role that joins and dies for ever must not fill the disk."""
EVENTS_QUEUED_MAX: Final = 10_000
"""Events waiting for a slow disk; beyond, new ones are dropped and counted."""
NOISE_S: Final = 60.0
"""A server writes one line in so many seconds about what one address does wrong."""
NOISE_ADDRESSES_MAX: Final = 256
"""Addresses a server keeps apart for that; all others share one line: 100 MB of log a day."""
NOISE_LINE_LEN_MAX: Final = 240
"""Characters of such a line."""
STORED_HEADER_SIZE_MAX: Final = 90 * MIB
"""Bytes of a safetensors header; the format's own readers stop at 100 million."""
STORED_METADATA_SIZE_MAX: Final = 256 * KIB
"""Bytes of it that are not the arrays': an LSN for each of SHARDS_MAX shards, and some names."""

assert PAYLOAD_SIZE_MAX >= FRAGMENT_SIZE
assert REPLICAS_GONE_MAX < REPLICAS_MAX and REPLICA_GONE_S >= 2 * JOIN_PATIENCE_S
assert READER_SIZE_MIN / READER_WINDOW_S < LINK_RATE_MIN / 32
assert POST_PIECE_SIZE_MAX <= POST_FRAMES_SIZE_MAX
assert ACK_EVERY_S * 4 < ACK_TIMEOUT_S
assert STRIPE_LEN_MAX * 4 <= FRAGMENT_SIZE
assert SUSPECT_S < DEAD_S < LEASE_S
assert HEARTBEAT_S * 3 < SUSPECT_S
assert HEARTBEAT_S * 2 <= DEAF_S < SUSPECT_S
assert HEARTBEAT_S + HEARTBEAT_TIMEOUT_S + HEARTBEAT_S < DEAD_S
assert IN_FLIGHT_SIZE_MAX >= 1024 // 8 * PAYLOAD_SIZE_MAX // 4
assert STREAM_EVENTS_MAX < TURN_EVENTS_MAX
assert STRANGERS_PER_ADDRESS_MAX < STRANGERS_MAX < CONNECTIONS_MAX
assert HTTP_LINE_SIZE_MAX < HTTP_HEADERS_SIZE_MAX
assert LEASES_PER_REPLICA_MAX <= LEASES_TOLD_MAX
assert COMPLETIONS_MAX <= LEASES_TOLD_MAX
assert STALL_S > 2 * SWEEP_S
assert DEAD_S < SHARD_REFUSED_S < SHARD_PATIENCE_S < HEARSAY_S
assert FINISHED_REFUSED_S < COORDINATOR_REFUSED_S < JOIN_PATIENCE_S
assert DEAD_S < LEAVE_PATIENCE_S and HEARTBEAT_S * 3 < NOTICE_S
assert LAYOUT_SIZE_MAX > LAYOUT_ARRAYS_MAX * 600
assert STORED_HEADER_SIZE_MAX < 100_000_000
