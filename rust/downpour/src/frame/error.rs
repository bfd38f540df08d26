//! What a peer can do wrong, with the place in its stream and the numbers.

use thiserror::Error;

use super::Kind;

/// A broken rule of the wire, and the byte of the stream at which the offending frame began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("frame at byte {offset}: {fault}")]
pub struct ProtocolError {
    /// Bytes of the stream before the offending frame.
    pub offset: u64,
    /// The rule and the numbers.
    pub fault: Fault,
}

/// One broken rule. The stream cannot go on: its next frame boundary is in doubt, or its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The first four bytes are not ours.
    #[error("magic is {found:#010x}, expected {expected:#010x}: not a pydownpour stream")]
    Magic { found: u32, expected: u32 },
    /// The header was damaged.
    #[error("header checksum is {stored:#010x}, computed {computed:#010x}: the bytes are damaged")]
    HeaderChecksum { stored: u32, computed: u32 },
    /// The payload was damaged.
    #[error(
        "{} payload checksum is {stored:#010x}, computed {computed:#010x}: the bytes are damaged",
        kind.name()
    )]
    PayloadChecksum { kind: Kind, stored: u32, computed: u32 },
    /// The peer speaks another version of the wire.
    #[error("wire version {found}, this side speaks {expected}: upgrade the older side")]
    WireVersion { found: u8, expected: u8 },
    /// No such kind of frame.
    #[error("unknown frame kind {found}")]
    Kind { found: u8 },
    /// A frame that flows the other way, or that has no place in this state of the stream.
    #[error("unexpected {} frame: {state}", kind.name())]
    Unexpected { kind: Kind, state: &'static str },
    /// A flag nobody has told us about, which might change the meaning of the frame.
    #[error("{} frame carries unknown flags {unknown:#x}", kind.name())]
    Flags { kind: Kind, unknown: u32 },
    /// A dtype or codec where only one is allowed.
    #[error("{} frame has dtype {dtype}, codec {codec}: only dtype {expected}, codec 0 are legal",
        kind.name())]
    Encoding { kind: Kind, dtype: u8, codec: u8, expected: u8 },
    /// A payload above the receiver's limit.
    #[error("{} payload of {size} bytes, limit is {limit}", kind.name())]
    PayloadSize { kind: Kind, size: u64, limit: u64 },
    /// A payload that must have an exact size and has not.
    #[error("{} payload of {size} bytes, expected {expected}", kind.name())]
    PayloadMismatch { kind: Kind, size: u64, expected: u64 },
    /// A fragment of another shard.
    #[error("{} frame for fragment {fragment}, the shard has {start} to {stop}", kind.name())]
    FragmentRange { kind: Kind, fragment: u32, start: u32, stop: u32 },
    /// Replica or incarnation is zero, which is nobody.
    #[error("{} frame from replica {replica}, incarnation {incarnation}: both start at 1",
        kind.name())]
    Nobody { kind: Kind, replica: u32, incarnation: u32 },
    /// A record of somebody else inside a push.
    #[error(
        "FRAGMENT of replica {replica}, incarnation {incarnation} inside a push of replica \
         {expected_replica}, incarnation {expected_incarnation}"
    )]
    Identity { replica: u32, incarnation: u32, expected_replica: u32, expected_incarnation: u32 },
    /// A record out of its place in the run.
    #[error(
        "FRAGMENT {fragment} of push {push}, expected {expected_fragment} of {expected_push}: the \
         records of a run come in order"
    )]
    Sequence { push: u64, fragment: u32, expected_push: u64, expected_fragment: u32 },
    /// A push without a number, or a run that passes the end of the integers.
    #[error(
        "PUSH {push} announces {count} fragments from {fragment} on: pushes have the numbers 1 to \
         2^64 - 2, fragments those below 2^32 - 1"
    )]
    Run { push: u64, fragment: u32, count: u32 },
    /// The bytes end inside a frame, where only whole frames are allowed.
    #[error("{available} bytes left, the frame needs {needed}")]
    Truncated { available: u64, needed: u64 },
}

impl Fault {
    /// Place the fault in its stream.
    #[must_use]
    pub fn at(self, offset: u64) -> ProtocolError {
        ProtocolError { offset, fault: self }
    }
}
