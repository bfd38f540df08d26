//! Why exported bytes cannot be taken back.

use thiserror::Error;

/// Bytes that are not an exported ledger of this shard. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Not even the beginning fits.
    #[error("{actual} bytes are not an exported ledger: {expected} bytes were expected")]
    Size { actual: usize, expected: usize },
    /// Something else's bytes.
    #[error("magic is {found:#010x}, expected {expected:#010x}: not an exported ledger")]
    Magic { found: u32, expected: u32 },
    /// Damaged bytes.
    #[error("checksum is {stored:#010x}, computed {computed:#010x}: the bytes are damaged")]
    Checksum { stored: u32, computed: u32 },
    /// Written by another version of this library.
    #[error("ledger version {found}, this library reads {expected}")]
    Version { found: u8, expected: u8 },
    /// A ledger of a shard that is cut differently.
    #[error(
        "ledger of {len} elements in stripes of {stripe_len} and fragments of {fragment_len}, \
         the store has {expected_len}, {expected_stripe_len}, {expected_fragment_len}"
    )]
    Geometry {
        len: u64,
        stripe_len: u64,
        fragment_len: u64,
        expected_len: u64,
        expected_stripe_len: u64,
        expected_fragment_len: u64,
    },
    /// The checksum matched, but the numbers contradict each other.
    #[error("{what} at byte {offset} contradicts the rest of the ledger")]
    Inconsistent { what: &'static str, offset: usize },
}
