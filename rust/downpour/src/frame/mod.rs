//! Frames: a fixed 64-byte header and a payload. Bytes in, numbers out; nothing is allocated.
//!
//! The wire is a sequence of frames. A push has a number, the same at every shard; a PUSH frame
//! announces a run of its consecutive fragments, and one FRAGMENT frame for each of them follows;
//! the shard answers with ACK (a range) or REFUSE (one record, or the run, in words). A push may
//! leave fragments out: then it has several runs. A fetch is one FETCH, then a PARAMETERS frame for
//! each fragment that changed, then FETCHED. Fragments have the numbers of the whole layout.
//!
//! # Layout
//! Little-endian. Integers are unsigned.
//!
//! ```text
//! off size field          off size field              off size field
//!  0   4   magic "PDP1"    12  4   replica             40  8   length of the payload, bytes
//!  4   1   wire version    16  4   incarnation         48  4   aux
//!  5   1   kind            20  4   fragment            52  4   count
//!  6   1   codec (0 none)  24  8   seq                 56  4   CRC-32C of the payload
//!  7   1   dtype           32  8   version             60  4   CRC-32C of bytes 0..60
//!  8   4   flags
//! ```
//!
//! Magic, wire version and the header's checksum keep their places in every future version, so
//! that a peer of another version is told so instead of being called corrupt.
//!
//! # Limits
//! A length is believed only after the header's checksum matched, and then compared with the
//! receiver's limit for that kind of frame. No function here allocates.

#[cfg(target_endian = "big")]
compile_error!("payload elements travel as little-endian memory; big-endian hosts would swap them");

mod announcement;
mod error;
mod header;
mod kind;
mod scan;

pub use announcement::{ANNOUNCEMENT_SIZE, Announcement};
pub use error::{Fault, ProtocolError};
pub use header::{HEADER_SIZE, Header, MAGIC, WIRE_VERSION};
pub use kind::{
    Code, FLAG_FETCH_BEGINS, FLAG_FRAGMENT_AGAIN, FLAG_PUSH_COMPLETE, FLAG_PUSH_CONTINUES, Kind,
};
pub use scan::Scan;
