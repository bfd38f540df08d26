//! One fragment's claim, and its counters.
//!
//! # Theory
//!
//! The updates of a fragment need an order, and only one of them may be computed at a time: each is
//! made from the blocks that the one before published. The *claim* is a lock that gives both. It
//! also owns what the fragment has accumulated. Whoever comes second waits for as long as one
//! update takes; a shard's records come from one event loop, so there nobody does.
//!
//! Readers take no claim. They see counters and blocks that were published, in any order.

use super::accumulator::Accumulator;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// In `lsn`: an update is being published; its number is not known yet.
const PUBLISHING: u64 = u64::MAX;

/// The shared state of one fragment, in one cache line, because a sweep finds it cold.
#[repr(align(64))]
pub(super) struct Fragment {
    version: AtomicU64,
    lsn: AtomicU64,
    /// Training samples behind the updates.
    samples: AtomicU64,
    /// `None` where records are never accumulated.
    claim: Mutex<Option<Box<Accumulator>>>,
}

/// The right to change a fragment, and what it has accumulated.
pub(super) type Claim<'a> = MutexGuard<'a, Option<Box<Accumulator>>>;

impl Fragment {
    pub(super) fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            lsn: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            claim: Mutex::new(None),
        }
    }

    /// Become the only one who may change the fragment, until the claim is dropped.
    pub(super) fn claim(&self) -> Claim<'_> {
        // Whoever panicked has published nothing, or everything: the blocks are whole.
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn version(&self) -> u64 {
        // ORDERING: Acquire, paired with the store in `published`: who sees a version can acquire
        // no older contents.
        self.version.load(Ordering::Acquire)
    }

    /// The LSN of the last update, or `None` while one is being published.
    pub(super) fn lsn(&self) -> Option<u64> {
        // ORDERING: Acquire, paired with the store in `published`, for the same reason.
        let lsn = self.lsn.load(Ordering::Acquire);
        (lsn != PUBLISHING).then_some(lsn)
    }

    /// An update's blocks are about to be published. Claim holder only.
    pub(super) fn publishing(&self) {
        // ORDERING: Relaxed; the Release of the first published word orders it before, so a reader
        // who sees any new block sees this mark or what follows it.
        self.lsn.store(PUBLISHING, Ordering::Relaxed);
    }

    /// All blocks of an update are published; number it from the store's counter and count it.
    /// Claim holder only.
    ///
    /// The store's counter moves after the blocks and before the fragment's LSN. Whoever reads the
    /// counter therefore finds in this fragment either the mark or a number, never a stale one:
    /// "everything changed since" misses nothing.
    pub(super) fn published(&self, counter: &AtomicU64, samples: u64) -> (u64, u64) {
        // ORDERING: Relaxed, as in `samples`.
        self.samples.store(samples, Ordering::Relaxed);
        // ORDERING: Relaxed; written under the claim only.
        let version_before = self.version.load(Ordering::Relaxed);
        // ORDERING: Release, paired with the Acquire in `version`.
        self.version.store(version_before + 1, Ordering::Release);
        let lsn = number(counter);
        // ORDERING: Release, paired with the Acquire in `lsn`.
        self.lsn.store(lsn, Ordering::Release);
        (lsn, version_before)
    }

    /// Training samples behind the fragment's updates. Exact for the claim holder.
    pub(super) fn samples(&self) -> u64 {
        // ORDERING: Relaxed; written under the claim only, and nothing else depends on it.
        self.samples.load(Ordering::Relaxed)
    }

    /// Set the counters when restoring. Claim holder only.
    pub(super) fn restore(&self, version: u64, lsn: u64, samples: u64) {
        // ORDERING: Relaxed, as in `samples`.
        self.samples.store(samples, Ordering::Relaxed);
        // ORDERING: Release, paired with the Acquire in `version` and in `lsn`.
        self.version.store(version, Ordering::Release);
        self.lsn.store(lsn, Ordering::Release);
    }
}

/// The next LSN of the store's counter.
pub(super) fn number(counter: &AtomicU64) -> u64 {
    // ORDERING: Release, paired with the Acquire in `Store::lsn`; Acquire keeps the numbers of one
    // thread's records in their order for whoever sees the last of them.
    counter.fetch_add(1, Ordering::AcqRel) + 1
}
