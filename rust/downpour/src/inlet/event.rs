//! What an inlet reports.

use crate::frame::{Code, Header};

/// A frame that the inlet does not handle itself, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// Its payload, checked against the header's checksum.
    pub payload: Vec<u8>,
}

/// The records of fragments `fragment .. fragment + count` of a push have a definite good answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The push's number, the same at every shard.
    pub push: u64,
    /// The first of the fragments, of the whole layout.
    pub fragment: u32,
    /// How many. Zero only when `last` follows a refusal, or for an empty push.
    pub count: u32,
    /// How many were applied now; the rest were duplicates.
    pub applied: u32,
    /// The largest of them: version at apply minus base version.
    pub staleness: u64,
    /// The latest LSN of them.
    pub lsn: u64,
    /// The announced run is complete: every record of it was settled or refused.
    pub last: bool,
}

/// One record was refused; nothing of it was applied and it is not remembered as done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// The push's number, the same at every shard.
    pub push: u64,
    /// Its number in the whole layout.
    pub fragment: u32,
    /// Why, as the REFUSE frame says it.
    pub code: Code,
    /// Non-finite elements, where that is why.
    pub count: u64,
    /// The first of them within the fragment.
    pub first_index: Option<u64>,
    /// The gradient's L2 norm, where that is why; else 0.
    pub norm: f64,
}

/// What a shard's inlet reports, in the order of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A frame for the owner. After a PUSH the owner must accept or skip.
    Frame(Frame),
    /// Records were settled.
    Settled(Settled),
    /// A record was refused.
    Refusal(Refusal),
}
