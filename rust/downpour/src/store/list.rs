//! Lock-free stacks of indices: free blocks.
//!
//! The links of all members live in one table, so a push or pop allocates nothing. A head packs
//! the top index with a counter that every push and pop advances; a pop whose view of the top is
//! stale fails its compare-and-swap even if the same index is on top again.
//!
//! # Progress
//!
//! Push and pop are lock-free.
//!
//! # Limits
//!
//! The counter has 32 bits: a pop would have to sleep through exactly 2^32 operations to be fooled.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No index: the bottom of every stack.
const NONE: u32 = u32::MAX;

/// The top of one stack.
#[derive(Debug)]
pub(super) struct Head(AtomicU64);

impl Head {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::from(NONE)))
    }
}

/// The links of every index below some bound. An index is in at most one stack at a time.
#[derive(Debug)]
pub(super) struct Links(Box<[AtomicU32]>);

impl Links {
    pub(super) fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU32::new(NONE)).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Put `index`, which the caller owns, on top.
    pub(super) fn push(&self, head: &Head, index: u32) {
        let mut seen = head.0.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed; the exchange below publishes the link with the head.
            self.0[index as usize].store(index_of(seen), Ordering::Relaxed);
            // ORDERING: Release, paired with the Acquire of `pop`: whoever removes
            // the index sees its link and everything its last owner wrote.
            let next = pack(seen, index);
            match head.0.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Remove the top index; the caller owns it then.
    pub(super) fn pop(&self, head: &Head) -> Option<u32> {
        // ORDERING: Acquire here and in the failing exchange, paired with the Release of `push`.
        let mut seen = head.0.load(Ordering::Acquire);
        loop {
            let index = index_of(seen);
            if index == NONE {
                return None;
            }
            // ORDERING: Relaxed; a stale link (the index was popped and pushed meanwhile) goes with
            // a stale counter, so the exchange fails.
            let below = self.0[index as usize].load(Ordering::Relaxed);
            let next = pack(seen, below);
            // ORDERING: Acquire on success too, so that the pushes below this one, whose release
            // sequences this exchange continues, stay visible.
            match head.0.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => seen = now,
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is the index")]
fn index_of(word: u64) -> u32 {
    word as u32
}

/// A head with `index` on top, one operation after `seen`.
fn pack(seen: u64, index: u32) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | u64::from(index)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Head, Links};

    #[test]
    fn last_in_first_out() {
        let (links, head) = (Links::new(4), Head::new());
        assert_eq!(links.pop(&head), None);
        for index in [2, 0, 3] {
            links.push(&head, index);
        }
        assert_eq!([(); 4].map(|()| links.pop(&head)), [Some(3), Some(0), Some(2), None]);
    }
}
