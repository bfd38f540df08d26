//! Which records of which replica have been applied: the memory behind exactly-once.
//!
//! A record has the identity `(replica, incarnation, seq)`. For each replica the [`Ledger`] keeps
//! its newest incarnation, a *floor* below which every seq has a final answer, and 1,024 bits for
//! the seqs above it. That is bounded, needs no clock, and is never forgotten by age: an answer
//! that was true once stays true.
//!
//! The floor rises in two ways: over seqs that are done and touch it, and to
//! `first_incomplete - 1`, which the replica sends with each push and which says that it will
//! never ask about lower ones again. A refused record is not done: it may be sent again, and
//! otherwise the replica's `first_incomplete` passes it. The replica's word counts only for seqs
//! that it has announced here: nothing else can have been answered.
//!
//! States of a replica here:
//!
//! ```text
//! nothing --push, first_incomplete <= 1--> known(incarnation)
//! nothing --push, first_incomplete > 1---> nothing        answer: unknown (our state was lost)
//! known(i) --first_incomplete > announced-> known(i)      answer: unknown, the same
//! known(i) --push of i-------------------> known(i)       answer: new, partly, done, window
//! known(i) --push of j > i---------------> known(j)       older incarnations are fenced
//! any -------fence(j)--------------------> fenced below j, incarnation j not seen yet
//! known(i) --push of j < i---------------> known(i)       answer: fenced, for ever
//! any -------retire----------------------> forgotten      answer: fenced, for ever
//! ```
//!
//! Who has left for good is *retired* by whoever gives out ids: its entry goes, and because the
//! id stays fenced nothing of it can be taken for new. Age alone never forgets anybody.
//!
//! # Limits
//! 1,024 seqs above the floor; one entry (184 bytes) a replica id.

mod error;
mod ledger;
mod window;

pub use error::LedgerError;
pub(crate) use ledger::lock;
pub use ledger::{Claim, ENTRY_SIZE, Entry, Ledger, RANGES_MAX, Run, Verdict};
pub use window::{WINDOW, Window};
