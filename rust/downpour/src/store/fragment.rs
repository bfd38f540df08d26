//! One fragment's turn-taking: tickets, the claim, the inbox, and its counters.
//!
//! # Theory
//!
//! A record takes a *ticket* (`tickets.fetch_add`), and tickets are settled in order: `settled`
//! names the ticket whose turn it is. Only the holder of the *claim* settles. A record that cannot
//! be settled at once, because it is early or the fragment is claimed, goes to the *inbox*, and its
//! thread goes on. The claim holder moves the inbox to `waiting`, settles what is due, and
//! releases.
//!
//! No wake-up is lost. A thread first pushes to the inbox, then swaps the claim to `true`. If it
//! got `false`, it holds the claim and drains. If it got `true`, some holder has yet to swap the
//! claim back to `false`; that swap reads the value written by ours (or one after it), so the push
//! happens before the holder's look at the inbox, which follows its release. A record in `waiting`
//! is early; it becomes due only when a holder settles the ticket before it, and that holder looks
//! at `waiting` before it releases.
//!
//! # Progress
//!
//! Submitting is lock-free: it never waits for another thread.

use super::list::Head;
use super::queue::{Queue, Record};
use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, own};

/// In `lsn`: a record is being published; its number is not known yet.
const PUBLISHING: u64 = u64::MAX;

/// The shared state of one fragment. What a record in its turn touches fits in one cache line,
/// because a sweep finds it cold.
#[repr(C, align(64))]
pub(super) struct Fragment {
    tickets: AtomicU64,
    settled: AtomicU64,
    version: AtomicU64,
    lsn: AtomicU64,
    pub(super) inbox: Head,
    claimed: AtomicBool,
    /// Length of `waiting`, so that an empty one need not be looked at.
    waiting_len: AtomicUsize,
    /// Training samples behind the updates.
    samples: AtomicU64,
    /// Early records, owned by the claim holder.
    waiting: Mutex<Vec<(u64, Record)>>,
}

impl Fragment {
    pub(super) fn new() -> Self {
        Self {
            tickets: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            version: AtomicU64::new(0),
            lsn: AtomicU64::new(0),
            inbox: Head::new(),
            claimed: AtomicBool::new(false),
            waiting_len: AtomicUsize::new(0),
            samples: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn take_ticket(&self) -> u64 {
        // ORDERING: Relaxed; the numbers are unique and ordered, nothing else depends on them.
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_due(&self, number: u64) -> bool {
        // ORDERING: Acquire, paired with the Release in `settle`: the records before are done.
        self.settled.load(Ordering::Acquire) == number
    }

    /// The number of the ticket whose turn it is, for the claim holder.
    fn due(&self) -> u64 {
        // ORDERING: Relaxed; written under the claim only.
        self.settled.load(Ordering::Relaxed)
    }

    /// The due ticket is settled. Claim holder only.
    pub(super) fn settle(&self) {
        let next = self.due() + 1;
        // ORDERING: Release, paired with the Acquire in `is_due`.
        self.settled.store(next, Ordering::Release);
    }

    /// Try to become the holder. Always a swap, even if it fails: see the theory above.
    pub(super) fn try_claim(&self) -> bool {
        // ORDERING: Acquire, paired with the swap in `release_claim`: we see what the last holder
        // wrote. Release, paired with the same swap: the holder sees what we pushed before.
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Let go; `true` if something arrived meanwhile, so that somebody must claim again.
    #[must_use]
    pub(super) fn release_claim(&self) -> bool {
        // ORDERING: Release, paired with the next `try_claim`. Acquire, paired with the failed
        // claims since ours: their pushes are visible to the look at the inbox.
        self.claimed.swap(false, Ordering::AcqRel);
        !self.inbox.is_empty()
    }

    /// Move the inbox to the early records and remove the one that is due, if it is there. Claim
    /// holder only.
    pub(super) fn take_due(&self, queue: &Queue) -> Option<Record> {
        let arrived = !self.inbox.is_empty();
        // ORDERING: Relaxed; written under the claim only.
        if !arrived && self.waiting_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut waiting = own(&self.waiting);
        if arrived {
            queue.drain(&self.inbox, &mut waiting);
        }
        let due = self.due();
        let place = waiting.iter().position(|(number, _)| *number == due);
        let record = place.map(|place| waiting.swap_remove(place).1);
        self.waiting_len.store(waiting.len(), Ordering::Relaxed);
        record
    }

    pub(super) fn version(&self) -> u64 {
        // ORDERING: Acquire, paired with the store in `published`: who sees a version can acquire
        // no older contents.
        self.version.load(Ordering::Acquire)
    }

    /// The LSN of the last record, or `None` while one is being published.
    pub(super) fn lsn(&self) -> Option<u64> {
        // ORDERING: Acquire, paired with the store in `published`, for the same reason.
        let lsn = self.lsn.load(Ordering::Acquire);
        (lsn != PUBLISHING).then_some(lsn)
    }

    /// A record's blocks are about to be published. Claim holder only.
    pub(super) fn publishing(&self) {
        // ORDERING: Relaxed; the Release of the first published word orders it before, so a reader
        // who sees any new block sees this mark or what follows it.
        self.lsn.store(PUBLISHING, Ordering::Relaxed);
    }

    /// All blocks of a record are published; number it from the store's counter and count it.
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
