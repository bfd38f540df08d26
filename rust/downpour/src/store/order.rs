//! The one order of a store's updates, decided before any of them is visible.
//!
//! # Theory
//!
//! An update that nothing can refuse any more gets its log sequence number under a short lock, in
//! which the journal, if there is one, takes it or refuses it. Then it is published. So the journal
//! holds every update in the order of its number before a reader can have seen it, and what is
//! refused there was never seen.
//!
//! Updates of different fragments are published side by side, so a later number may be published
//! first. What readers are told is the *horizon*: the largest number such that it and all below
//! are published. "Everything changed since" is asked with a horizon, and misses nothing: whatever
//! is later was numbered above it, and shows its number when the horizon has passed it.
//!
//! # Progress
//!
//! Readers load one atomic. Writers hold the lock for a few instructions twice an update, and for
//! as long as the journal takes to copy it.

use super::ApplyError;
use super::journal::{Change, Entry, Journal};
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

pub(super) struct Order {
    journal: Option<(Box<dyn Journal>, u32)>,
    decided: Mutex<Decided>,
    horizon: AtomicU64,
}

/// The numbers that were given.
struct Decided {
    last: u64,
    /// Numbers that are not published yet, ascending: at most one a thread.
    open: Vec<u64>,
}

impl Order {
    /// `journal`: and the number in the whole layout of the store's first fragment.
    pub(super) fn new(journal: Option<(Box<dyn Journal>, u32)>) -> Self {
        let decided = Mutex::new(Decided { last: 0, open: Vec::new() });
        Self { journal, decided, horizon: AtomicU64::new(0) }
    }

    /// Every update up to this number is published.
    pub(super) fn horizon(&self) -> u64 {
        // ORDERING: Acquire, paired with the stores in `published` and `restore`.
        self.horizon.load(Ordering::Acquire)
    }

    /// Number an update, whose fragment the caller has claimed. It must be published next, and
    /// [`published`](Self::published) be told.
    ///
    /// # Errors
    ///
    /// [`ApplyError::Full`] if the journal has no room for it: then it has no number, and must not
    /// be published.
    pub(super) fn decide(&self, fragment: usize, change: Change<'_>) -> Result<u64, ApplyError> {
        let mut decided = enter(&self.decided);
        let lsn = decided.last + 1;
        if let Some((journal, first_fragment)) = &self.journal {
            // The shard has checked that all its fragments have numbers of 32 bits.
            let fragment = first_fragment + u32::try_from(fragment).unwrap_or(0);
            journal.append(&Entry { lsn, fragment, change })?;
        }
        decided.last = lsn;
        decided.open.push(lsn);
        Ok(lsn)
    }

    /// An update that was decided is visible to everybody.
    pub(super) fn published(&self, lsn: u64) {
        let mut decided = enter(&self.decided);
        decided.open.retain(|&open| open != lsn);
        let horizon = decided.open.first().map_or(decided.last, |first| first - 1);
        // ORDERING: Release, paired with the Acquire in `horizon`; the lock orders what others
        // published before it.
        self.horizon.store(horizon, Ordering::Release);
    }

    /// Continue behind the last number of an earlier store. Nothing may be under way.
    pub(super) fn restore(&self, lsn: u64) {
        enter(&self.decided).last = lsn;
        // ORDERING: Release, paired with the Acquire in `horizon`.
        self.horizon.store(lsn, Ordering::Release);
    }
}

/// A panic in a journal leaves the value as it was between two whole operations.
fn enter<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
