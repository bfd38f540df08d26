//! Which records of which replica have been applied: the memory behind exactly-once.
//!
//! A record has the identity `(replica, incarnation, push, fragment)`: the push's number is the
//! same at every shard, the fragment's that of the whole layout. So nothing in it names a shard,
//! and a record is known again wherever its fragment has moved. For each replica [`Windows`] keep
//! its newest incarnation, a *floor* of pushes below which every fragment of this shard has a final
//! answer, and one bitmap of this shard's fragments for each push above it of which something is
//! done. That is bounded, needs no clock, and is never forgotten by age: an answer that was true
//! once stays true.
//!
//! The floor rises in two ways: over pushes whose every fragment is done and that touch it, and to
//! `first_open - 1`, which the replica sends with each push and which says that it will never ask
//! about lower ones again. A push may leave fragments out, and a refused record is not done: it may
//! be sent again, and otherwise the replica's `first_open` passes it. The replica's word counts
//! only for pushes that it has announced here: nothing else can have been answered. So whoever
//! leaves out all fragments of a shard may call settled there only what was answered there.
//!
//! States of a replica here:
//!
//! ```text
//! nothing --push, first_open <= 1--> known(incarnation)
//! nothing --push, first_open > 1---> nothing        answer: unknown (our state was lost)
//! known(i) --first_open > announced + 1-> known(i)  answer: unknown, the same
//! known(i) --push of i-------------> known(i)       answer: new, partly, done, elsewhere, window
//! known(i) --push of j > i---------> known(j)       older incarnations are fenced
//! any -------fence(j)--------------> fenced below j, incarnation j not seen yet
//! known(i) --push of j < i---------> known(i)       answer: fenced, for ever
//! any -------retire----------------> forgotten      answer: fenced, for ever
//! ```
//!
//! Who has left for good is *retired* by whoever gives out ids: its entry goes, and because the
//! id stays fenced nothing of it can be taken for new. Age alone never forgets anybody.
//!
//! When the fragments of some shards are cut into other shards, [`Windows::join`] takes from each
//! what it knows about the fragments that come here: floors that differ become bitmaps of many
//! pushes at once, so that not one answer is lost.
//!
//! # Limits
//! [`PUSHES_OPEN_MAX`] bitmaps a replica, each of one bit a fragment of the shard: 64 times 80
//! bytes at most for a shard of 42 million parameters, and in practice one or two.

mod bytes;
mod entry;
mod error;
mod retired;
mod window;
mod windows;

pub(crate) use bytes::Words;
pub use entry::{Entry, Judgement};
pub use error::StateError;
pub use retired::RANGES_MAX;
pub use window::{PUSHES_OPEN_MAX, Window};
pub(crate) use windows::lock;
pub use windows::{Run, Verdict, Windows};
