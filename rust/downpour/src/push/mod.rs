//! A push as it travels: the user's arrays, in one pass, into the bytes that are sent.
//!
//! [`Arrays`] lays arrays of any types end to end without copying them; [`Format::encode`] walks
//! over them fragment by fragment. While a fragment is in the L2 cache it is gathered, checked,
//! cast or encoded, and checksummed, and its header is written in front of it: memory sees each
//! element come once and go once. What comes out are whole frames, ready to be written, and
//! written again.

mod arrays;
mod format;

pub use arrays::{Arrays, Source};
pub use format::{Author, EncodeError, Encoded, Format, Residual};
