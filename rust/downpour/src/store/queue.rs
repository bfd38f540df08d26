//! Records that arrived before their turn, or while their fragment was claimed.
//!
//! Slots are shared by all fragments of a store. A slot is owned by whoever took it from the free
//! list, then by the inbox it was pushed to, then by the claim holder who drained it; its lock is
//! therefore always free and only spells the ownership out.
//!
//! # Limits
//!
//! At most `records_max` records with a gradient wait; as many slots again are kept for tickets
//! that were dropped unused, which hold no bytes.

use super::Admission;
use super::error::ApplyError;
use super::list::{Head, Links};
use super::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, own};
use crate::kernel::{DType, Gradient};

/// What a fragment's ticket turned out to be.
pub(super) enum Record {
    /// The ticket was dropped: its turn passes.
    Void,
    Update {
        bytes: Vec<u8>,
        dtype: DType,
        admission: Admission,
        settlement: Arc<Settlement>,
    },
}

/// A record that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The shard's log sequence number of this record; the first is 1.
    pub lsn: u64,
    /// Updates of the fragment before this one.
    pub version_before: u64,
}

/// Where the claim holder leaves the answer to a queued record.
pub(super) struct Settlement {
    done: AtomicBool,
    answer: Mutex<Option<Result<Applied, ApplyError>>>,
}

impl Settlement {
    fn new() -> Self {
        Self { done: AtomicBool::new(false), answer: Mutex::new(None) }
    }

    /// Leave the answer. Called once, by the claim holder.
    pub(super) fn settle(&self, answer: Result<Applied, ApplyError>) {
        *own(&self.answer) = Some(answer);
        // ORDERING: Release, paired with the Acquire in `Receipt::poll`: the answer is there, and
        // its lock is free.
        self.done.store(true, Ordering::Release);
    }
}

/// The answer to a queued record, when there is one.
pub struct Receipt(Arc<Settlement>);

impl Receipt {
    /// The record's answer; `None` while it waits for its turn. The same on every later call.
    #[must_use]
    pub fn poll(&self) -> Option<Result<Applied, ApplyError>> {
        // ORDERING: Acquire, paired with the Release in `settle`.
        if self.0.done.load(Ordering::Acquire) { own(&self.0.answer).clone() } else { None }
    }
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Receipt").field(&self.poll()).finish()
    }
}

type Slot = Mutex<Option<(u64, Record)>>;

/// The slots of a store.
pub(super) struct Queue {
    slots: Box<[Slot]>,
    links: Links,
    free: Head,
    records: AtomicUsize,
    records_max: usize,
}

impl Queue {
    pub(super) fn new(records_max: u16) -> Self {
        let records_max = usize::from(records_max);
        let len = records_max * 2;
        let queue = Self {
            slots: (0..len).map(|_| Mutex::new(None)).collect(),
            links: Links::new(len),
            free: Head::new(),
            records: AtomicUsize::new(0),
            records_max,
        };
        for index in (0..len).rev() {
            let index = u32::try_from(index).expect("twice a u16 fits in 32 bits");
            queue.links.push(&queue.free, index);
        }
        queue
    }

    /// Queue a copy of a gradient in `inbox` under its ticket's number.
    pub(super) fn push_update(
        &self,
        inbox: &Head,
        number: u64,
        gradient: Gradient<'_>,
        admission: Admission,
    ) -> Result<Receipt, ApplyError> {
        // ORDERING: Relaxed; a counter that bounds memory and orders nothing.
        let used = self.records.fetch_add(1, Ordering::Relaxed);
        let slot = if used < self.records_max { self.links.pop(&self.free) } else { None };
        let Some(slot) = slot else {
            self.records.fetch_sub(1, Ordering::Relaxed);
            let (what, limit) = ("waiting records", self.records_max);
            return Err(ApplyError::Full { what, used: used.min(limit), limit });
        };
        let settlement = Arc::new(Settlement::new());
        let receipt = Receipt(Arc::clone(&settlement));
        let dtype = gradient.dtype();
        let update = Record::Update { bytes: gradient.to_bytes(), dtype, admission, settlement };
        *own(&self.slots[slot as usize]) = Some((number, update));
        self.links.push(inbox, slot);
        Ok(receipt)
    }

    /// Queue the news that a ticket will not be used; `false` if no slot is free.
    pub(super) fn push_void(&self, inbox: &Head, number: u64) -> bool {
        let Some(slot) = self.links.pop(&self.free) else {
            return false;
        };
        *own(&self.slots[slot as usize]) = Some((number, Record::Void));
        self.links.push(inbox, slot);
        true
    }

    /// Move everything in `inbox` to `waiting`, which the claim holder owns.
    pub(super) fn drain(&self, inbox: &Head, waiting: &mut Vec<(u64, Record)>) {
        self.links.take_all(inbox, |slot| {
            let record = own(&self.slots[slot as usize]).take();
            waiting.push(record.expect("a slot in an inbox holds a record"));
            self.links.push(&self.free, slot);
        });
    }

    /// A record with a gradient left the queue.
    pub(super) fn forget_update(&self) {
        // ORDERING: Relaxed, as in `push_update`.
        self.records.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.links.bytes()
    }
}
