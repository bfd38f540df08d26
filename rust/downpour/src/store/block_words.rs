//! Which block each stripe publishes, and who still reads the one before.
//!
//! # Theory
//!
//! One word a stripe packs the index of the published block with an *external* count: how many
//! references were taken from this word. Taking a reference is a single `fetch_add`, which returns
//! the index and counts in one step: wait-free, and there is no moment at which a reader knows a
//! block but is not counted.
//!
//! Each block has an *internal* count. It is `BIAS` while the block is published, and references
//! given back subtract from it. Publishing swaps the word; the external count `e` it returns moves
//! to the old block: `count += e - BIAS`. From then on `count` is the number of readers left, and
//! whoever brings it to zero (the publisher or the last reader) owns the block and recycles it.
//!
//! The external count has 32 bits, so a reader who sees it above `fold_limit` moves it to the
//! internal count: **add to the count first, then exchange the word, undo if that fails.** In the
//! other order a publisher could see an external count of 0 and an internal count of 0 while
//! readers still hold the block. The undo cannot bring the count to zero, because the folder's own
//! reference is still counted in the word. The exchange cannot be fooled by the same index coming
//! back, because that reference keeps the block from being recycled.
//!
//! # Progress
//!
//! Every operation is wait-free, apart from the free list that receives a recycled block
//! (lock-free).

use super::block::{Arena, BIAS, Fresh, Held};
use super::sync::{AtomicU64, Ordering};

/// One reference in a word.
const ONE: u64 = 1 << 32;

/// The words of all stripes, and their blocks.
pub(super) struct Words {
    published: Box<[AtomicU64]>,
    arena: Arena,
    fold_limit: u32,
}

impl Words {
    /// Publish block `i` of the arena as stripe `i`, for all of its first blocks.
    pub(super) fn new(arena: Arena, stripes: u32, fold_limit: u32) -> Self {
        let published = (0..stripes).map(|index| AtomicU64::new(u64::from(index))).collect();
        Self { published, arena, fold_limit }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn len(&self) -> usize {
        self.published.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.published)
    }

    /// A reference to the block that `stripe` publishes now.
    #[inline]
    pub(super) fn acquire(&self, stripe: usize) -> Held {
        // ORDERING: Acquire, paired with the swap in `publish`: what the publisher wrote to the
        // block is visible.
        let before = self.published[stripe].fetch_add(ONE, Ordering::Acquire);
        let (index, external) = split(before);
        if external >= self.fold_limit {
            self.fold(stripe, before + ONE);
        }
        Held { index, arena: self.arena.id() }
    }

    /// The only reference to a block that no stripe publishes.
    pub(super) fn hold(&self, fresh: Fresh<'_>) -> Held {
        let index = fresh.into_index();
        // ORDERING: Relaxed; whoever gets at the reference does so by a lock.
        self.arena.block(index).count.store(1, Ordering::Relaxed);
        Held { index, arena: self.arena.id() }
    }

    /// The same as `acquire`, given back when the guard is dropped.
    pub(super) fn borrow(&self, stripe: usize) -> Borrowed<'_> {
        Borrowed { words: self, held: Some(self.acquire(stripe)) }
    }

    /// Move the external count of `seen` (our own reference included) to the block.
    #[cold]
    fn fold(&self, stripe: usize, seen: u64) {
        let (index, external) = split(seen);
        let count = &self.arena.block(index).count;
        // ORDERING: Relaxed; the Release of the exchange orders it before the word changes.
        count.fetch_add(i64::from(external), Ordering::Relaxed);
        // ORDERING: Release, paired with the Acquire of the swap in `publish`: a publisher that
        // sees the word without these references sees them in the count.
        let folded = self.published[stripe].compare_exchange(
            seen,
            u64::from(index),
            Ordering::Release,
            Ordering::Relaxed,
        );
        if folded.is_err() {
            // ORDERING: Relaxed; our own reference is not given back yet, so this is not the last.
            count.fetch_sub(i64::from(external), Ordering::Relaxed);
        }
    }

    /// Give a reference back; recycles the block if it was the last to a retired one.
    #[inline]
    #[allow(clippy::needless_pass_by_value, reason = "the token is used up")]
    pub(super) fn release(&self, held: Held) {
        assert_eq!(held.arena, self.arena.id(), "a reference into another store");
        let count = &self.arena.block(held.index).count;
        // ORDERING: Release, paired with the Acquire below in whichever thread brings the count to
        // zero: our reads end before the block is written again.
        if count.fetch_sub(1, Ordering::Release) == 1 {
            // ORDERING: Acquire, paired with the Release of all who gave theirs back before. A
            // fence would do as well, and ThreadSanitizer knows of none.
            let _ = count.load(Ordering::Acquire);
            self.arena.put(held.index);
        }
    }

    /// Make `fresh` the block of `stripe`. Only the holder of the fragment's claim publishes.
    pub(super) fn publish(&self, stripe: usize, fresh: Fresh<'_>) {
        let index = fresh.into_index();
        let block = self.arena.block(index);
        // ORDERING: Relaxed; the swap below publishes both with the contents.
        block.count.store(BIAS, Ordering::Relaxed);
        block.crc.store(0, Ordering::Relaxed);
        // ORDERING: Release, paired with the Acquire in `acquire`: readers see the contents.
        // Acquire, paired with the exchange in `fold`: folded references are in the count.
        let before = self.published[stripe].swap(u64::from(index), Ordering::AcqRel);
        let (old, external) = split(before);
        let moved = i64::from(external) - BIAS;
        // ORDERING: Acquire, paired with the Release in `release`: if nobody is left, all of them
        // have finished reading. Release, so that the last reader's load sees this addition.
        let left = self.arena.block(old).count.fetch_add(moved, Ordering::AcqRel) + moved;
        if left == 0 {
            self.arena.put(old);
        }
    }
}

/// A reference for the time of a call.
pub(super) struct Borrowed<'a> {
    words: &'a Words,
    /// Taken only by `drop`.
    held: Option<Held>,
}

impl Borrowed<'_> {
    /// Every plane of the block.
    pub(super) fn planes(&self) -> &[f32] {
        let held = self.held.as_ref().expect("given back only on drop");
        self.words.arena.planes(held)
    }

    /// The reference, to be given back by whoever has it.
    pub(super) fn hold(mut self) -> Held {
        self.held.take().expect("given back only on drop")
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.words.release(held);
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is the index")]
fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
