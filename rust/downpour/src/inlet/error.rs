//! Who broke which rule: the peer, or the owner of the inlet.

use thiserror::Error;

use crate::frame::ProtocolError;
use crate::store::AdmissionError;

/// The owner of an inlet broke its rules. The stream itself is intact.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// More bytes than the window offers.
    #[error("{count} bytes reported, the window had room for {room}")]
    Overrun { count: usize, room: usize },
    /// A push was announced and nobody has decided about it.
    #[error("a push was announced: call accept() or skip() before advance()")]
    Undecided,
    /// Deciding when there is nothing to decide.
    #[error("no push was announced since the last accept() or skip()")]
    NotAnnounced,
    /// Accepting a push on terms that make no sense.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Replacing the target while a payload is landing in it.
    #[error("fragment {fragment} is landing in the target: replace it between fetches")]
    Landing { fragment: u32 },
    /// A target that does not fit the shard.
    #[error("target of {values} values and {versions} versions, expected {len} and {fragments}")]
    Target { values: usize, versions: usize, len: usize, fragments: usize },
    /// A scratch of another size than the inlet asked for.
    #[error("scratch of {size} bytes, expected {expected}")]
    Scratch { size: usize, expected: usize },
}

/// Everything that ends an [`advance`](super::ShardInlet::advance) early.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum InletError {
    /// The peer's fault; the stream is finished.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The owner's fault; nothing has changed.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}
