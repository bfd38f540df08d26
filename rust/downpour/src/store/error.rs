//! What can go wrong, with numbers.

use thiserror::Error;

use super::Accumulated;

/// A store cannot be made, loaded or read as asked. Nothing changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    #[error("len is {len}; a store needs 1 to {len_max} elements")]
    Len { len: usize, len_max: usize },
    #[error("stripe_len is {stripe_len}; it must be a positive multiple of {unit} elements")]
    StripeLen { stripe_len: usize, unit: usize },
    #[error(
        "fragment_len is {fragment_len}; it must be a positive multiple of stripe_len {stripe_len}"
    )]
    FragmentLen { fragment_len: usize, stripe_len: usize },
    #[error("{name} is {value}, must be {bound}")]
    Tuning { name: &'static str, value: usize, bound: &'static str },
    #[error("cannot allocate {bytes} bytes for the stripes; use more shards or a smaller model")]
    Memory { bytes: usize },
    #[error("plane {plane} does not exist; this store has planes 0 to {last}")]
    Plane { plane: usize, last: usize },
    #[error("elements {start} to {stop} are not inside the store's {len}")]
    Range { start: usize, stop: usize, len: usize },
    #[error("the store has applied records (LSN {lsn}); load planes and restore before the first")]
    Sealed { lsn: u64 },
    #[error("{name} has {actual} entries, the store has {expected} fragments")]
    Fragments { name: &'static str, actual: usize, expected: usize },
    #[error("{count} fragments from {first} on have numbers beyond 32 bits")]
    Numbers { first: u32, count: usize },
    #[error("fragment {fragment} has LSN {fragment_lsn}, above the store's LSN {lsn}")]
    Lsn { fragment: usize, fragment_lsn: u64, lsn: u64 },
    #[error("fragment {fragment}: what was accumulated does not fit this store's accumulators")]
    Accumulator { fragment: usize },
}

/// A record was refused. Parameters, state, version and LSN are as before, bit for bit.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ApplyError {
    /// The gradient times the scale, rounded to f32, holds NaN or infinity.
    #[error("gradient has {count} non-finite elements, the first at {first_index}")]
    NonFinite { count: usize, first_index: usize },
    /// The gradient is finite, but the new parameters or optimizer state would not be.
    #[error(
        "the update would make {count} elements non-finite, the first at {first_index}; the \
         gradient or the step size is too large"
    )]
    ResultNonFinite { count: usize, first_index: usize },
    /// The gradient's L2 norm, before the scale, is above what the job allows.
    #[error("gradient has an L2 norm of {norm:.6}, above the allowed {norm_max}")]
    Norm { norm: f64, norm_max: f64 },
    #[error("gradient has {actual} elements, the fragment has {expected}")]
    Length { expected: usize, actual: usize },
    #[error("fragment {fragment} does not exist; this store has {fragments}")]
    Fragment { fragment: usize, fragments: usize },
    /// The record belongs to a round that is not open here, or was closed.
    #[error("round {round} is not open: the fragment is at round {open} with {count} records")]
    Round { round: u64, open: u64, count: u64 },
    #[error("this store has no accumulators")]
    Accumulators,
    /// Others have changed the fragment since the record's base, more often than is allowed.
    #[error("the fragment had {staleness} updates since the record's base, allowed are {allowed}")]
    Superseded { staleness: u64, allowed: u64 },
    /// No room for another copy of a stripe: readers hold too many old ones. Retry when they have
    /// let go.
    #[error("no room: {used} of {limit} {what} are in use; retry when readers let go")]
    Full { what: &'static str, used: usize, limit: usize },
}

/// A round was not applied. Parameters, state and version are as before, bit for bit.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CloseError {
    /// The round is as before.
    #[error(transparent)]
    NotNow(ApplyError),
    /// The round is as before.
    #[error("factor is {factor}, must be finite")]
    Factor { factor: f32 },
    /// The round is closed, and what was accumulated in it is gone; that has an LSN.
    #[error("round {} is closed and its {} records are dropped: {cause}", of.round, of.count)]
    Dropped { of: Accumulated, cause: ApplyError },
}
