//! Bytes of a stream in, events out: the receiving ends, with no socket and no memory of their own.
//!
//! The owner asks an inlet for a *window*, lets the kernel write there, and tells how many bytes
//! came. The scratch memory is passed into each call, so that a binding may let the kernel write
//! into it while nobody looks, and so that these types stay free of `unsafe`.
//!
//! [`ShardInlet`] is fused: a fragment is checked, applied and published while the bytes that
//! arrived are still in the cache, and the next fragment's header has come with it.
//! [`ReplicaInlet`] lets parameters land where the replica wants them.
//!
//! # Limits
//! A scratch holds one whole frame of the largest legal size and the next header. A window is
//! never empty.

mod error;
mod event;
mod replica;
mod shard;

pub use error::{InletError, Misuse};
pub use event::{Event, Frame, Refusal, Settled};
pub use replica::{Landing, ReplicaInlet, Target};
pub use shard::ShardInlet;
