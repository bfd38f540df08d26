//! The pure core of pydownpour: no Python, no I/O.
pub mod checksum;
pub mod codec;
pub mod dedupe;
pub mod frame;
pub mod inlet;
pub mod kernel;
pub mod number;
pub mod optimizer;
pub mod push;
pub mod shard;
pub mod store;
