//! Why exported bytes cannot be taken back.

use thiserror::Error;

/// Bytes that are not the exported state of fragments of this shard. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StateError {
    /// Not even the beginning fits.
    #[error("{actual} bytes are not an exported state: {expected} bytes were expected")]
    Size { actual: usize, expected: usize },
    /// Something else's bytes.
    #[error("magic is {found:#010x}, expected {expected:#010x}: not an exported state")]
    Magic { found: u32, expected: u32 },
    /// The bytes are not those that were written.
    #[error("checksum is {stored:#010x}, computed {computed:#010x}: the bytes are damaged")]
    Checksum { stored: u32, computed: u32 },
    /// Written by another version of this library.
    #[error("state version {found}, this library reads {expected}")]
    Version { found: u8, expected: u8 },
    /// A layout that is cut into other fragments.
    #[error("a state of fragments of {found} elements, the shard has fragments of {expected}")]
    FragmentLen { found: u64, expected: u64 },
    /// A fragment that comes from another layout.
    #[error("fragment {fragment} has {found} elements in the state and {expected} in the shard")]
    Fragment { fragment: u32, found: u64, expected: u64 },
    /// A fragment of which the states say nothing, or more than once.
    #[error("fragment {fragment} is in {count} of the states, it must be in one of them")]
    Count { fragment: u32, count: usize },
    /// An open round that no fragment of this shard can have.
    #[error("fragment {fragment} cannot have accumulated what the state says of its round")]
    Round { fragment: u32 },
    /// The pushes of a replica were answered so differently that one window cannot hold it.
    #[error(
        "replica {replica} has more open pushes in the states together than one shard remembers \
         (PUSHES_OPEN_MAX): cut the shards anew when its pushes are settled"
    )]
    Apart { replica: u32 },
    /// What the shards were told of who is gone.
    #[error("the states know of more ranges of replicas than one shard remembers")]
    Retired,
    /// The checksum matched, but the numbers contradict each other.
    #[error("{what} at byte {offset} contradicts the rest of the state")]
    Inconsistent { what: &'static str, offset: usize },
}
