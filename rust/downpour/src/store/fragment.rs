//! One fragment's claim, and its counters.
//!
//! # Theory
//!
//! The updates of a fragment need an order, and only one of them may be computed at a time: each is
//! made from the blocks that the one before published. The *claim* is a lock that gives both. It
//! also owns what the fragment has accumulated, and the versions that it remembers. Whoever comes
//! second waits for as long as one update takes; a shard's records come from one event loop, so
//! there nobody does.
//!
//! Readers take no claim. They see counters and blocks that were published, in any order.

use super::accumulator::Accumulator;
use super::history::History;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// In `lsn`: the record of this number is being published.
const PUBLISHING: u64 = 1 << 63;

/// The shared state of one fragment, in one cache line, because a sweep finds it cold.
#[repr(align(64))]
pub(super) struct Fragment {
    version: AtomicU64,
    lsn: AtomicU64,
    /// Training samples behind the updates.
    samples: AtomicU64,
    /// The sum of the plane that replicas are told of, as bits of an f64.
    told: AtomicU64,
    claim: Mutex<Owned>,
}

/// What only the holder of a claim may look at.
#[derive(Default)]
pub(super) struct Owned {
    /// `None` where records are never accumulated.
    pub accumulator: Option<Box<Accumulator>>,
    /// `None` where no part of the optimizer looks at earlier versions.
    pub history: Option<Box<History>>,
}

/// The right to change a fragment, and what it owns.
pub(super) type Claim<'a> = MutexGuard<'a, Owned>;

impl Fragment {
    pub(super) fn new(history: Option<Box<History>>) -> Self {
        Self {
            version: AtomicU64::new(0),
            lsn: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            told: AtomicU64::new(0),
            claim: Mutex::new(Owned { accumulator: None, history }),
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

    /// The LSN of the last record, and whether it is published whole.
    pub(super) fn lsn(&self) -> (u64, bool) {
        // ORDERING: Acquire, paired with the store in `published`, for the same reason.
        let lsn = self.lsn.load(Ordering::Acquire);
        (lsn & !PUBLISHING, lsn & PUBLISHING == 0)
    }

    /// The blocks of the record of this number are about to be published. Claim holder only.
    pub(super) fn publishing(&self, lsn: u64) {
        // ORDERING: Relaxed; the Release of the first published word orders it before, so a reader
        // who sees any new block sees this mark or what follows it.
        self.lsn.store(lsn | PUBLISHING, Ordering::Relaxed);
    }

    /// All blocks of the record of this number are published: count it. Claim holder only.
    ///
    /// The store's horizon moves only after this, so whoever has read it finds this number here, or
    /// a later one: "everything changed since" misses nothing.
    pub(super) fn published(&self, lsn: u64, samples: u64) -> u64 {
        // ORDERING: Relaxed, as in `samples`.
        self.samples.store(samples, Ordering::Relaxed);
        // ORDERING: Relaxed; written under the claim only.
        let version_before = self.version.load(Ordering::Relaxed);
        // ORDERING: Release, paired with the Acquire in `version`.
        self.version.store(version_before + 1, Ordering::Release);
        // ORDERING: Release, paired with the Acquire in `lsn`.
        self.lsn.store(lsn, Ordering::Release);
        version_before
    }

    /// Training samples behind the fragment's updates. Exact for the claim holder.
    pub(super) fn samples(&self) -> u64 {
        // ORDERING: Relaxed; written under the claim only, and nothing else depends on it.
        self.samples.load(Ordering::Relaxed)
    }

    /// The sum of the plane that replicas are told of.
    pub(super) fn told(&self) -> f64 {
        // ORDERING: Relaxed, as in `samples`.
        f64::from_bits(self.told.load(Ordering::Relaxed))
    }

    /// Set it. Claim holder only.
    pub(super) fn tell(&self, sum: f64) {
        // ORDERING: Relaxed, as in `samples`.
        self.told.store(sum.to_bits(), Ordering::Relaxed);
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
