//! References that readers keep: one stripe, or all of them.

use std::sync::Arc;

use super::Store;
use super::block::Held;
use super::sync::Ordering;
use crate::checksum::crc32c;

/// In a block's `crc`: the low 32 bits are its checksum.
const KNOWN: u64 = 1 << 32;

/// One stripe as it was published, for as long as this lives.
#[derive(Debug)]
pub struct Pinned {
    store: Arc<Store>,
    stripe: usize,
    /// Taken only by `drop`.
    held: Option<Held>,
    /// Counted among the stripes that readers keep.
    kept: bool,
}

/// Attempts to catch a fragment between two records before a snapshot says it did not.
const ATTEMPTS: usize = 4;

/// One fragment's stripes, in order.
#[derive(Debug)]
pub struct PinnedFragment {
    pub stripes: Vec<Pinned>,
    /// Updates that the stripes contain, at least.
    pub version: u64,
    /// LSN of the last of them; of one that was being published if it is not `whole`.
    pub lsn: u64,
    /// No record was published while the references were taken: `version` and `lsn` are exact,
    /// and the stripes belong together.
    pub whole: bool,
}

/// Every fragment of a store.
///
/// # Guarantees
///
/// Contains every record up to `lsn`, and possibly later ones; a fragment that is not `whole` may
/// contain such a record in some stripes only. Taken while nobody writes, it is exact.
#[derive(Debug)]
pub struct Snapshot {
    /// The store's LSN when the snapshot began.
    pub lsn: u64,
    pub fragments: Vec<PinnedFragment>,
}

impl Store {
    /// A reference to what a stripe publishes now. Wait-free; costs no copy.
    ///
    /// # Panics
    ///
    /// If there is no such stripe.
    #[must_use]
    pub fn pin(self: &Arc<Self>, stripe: usize) -> Pinned {
        let held = Some(self.words.acquire(stripe));
        Pinned { store: Arc::clone(self), stripe, held, kept: false }
    }

    /// References to a fragment's stripes, and the counters that belong to them. Tries a few
    /// times to catch it between two records; never waits.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn pin_fragment(self: &Arc<Self>, fragment: usize) -> PinnedFragment {
        let shared = &self.fragments[fragment];
        let pin = || {
            let ((lsn, is_settled), version) = (shared.lsn(), shared.version());
            let stripes = self.geometry.fragment_stripes(fragment);
            let stripes: Vec<_> = stripes.map(|stripe| self.pin(stripe)).collect();
            // The Acquire of each pin keeps this load after it: a record that published any of
            // the pinned blocks set its mark before, so it is seen here.
            let whole = is_settled && shared.lsn() == (lsn, true);
            PinnedFragment { stripes, version, lsn, whole }
        };
        let mut pinned = pin();
        for _ in 1..ATTEMPTS {
            if pinned.whole {
                break;
            }
            pinned = pin();
        }
        pinned
    }

    /// Ask to keep references for longer than a call. `false`: readers keep as many as records can
    /// spare; copy, and let go.
    ///
    /// A stripe that is kept makes at most one block unusable for records, so readers that keep
    /// nothing but what they asked for never bring a record [`ApplyError::Full`].
    ///
    /// [`ApplyError::Full`]: super::ApplyError::Full
    #[must_use]
    pub fn keep(&self, pinned: &mut PinnedFragment) -> bool {
        let count = pinned.stripes.len();
        // ORDERING: Relaxed, here and in `drop`; the sum alone matters, no memory goes with it.
        let before = self.kept.fetch_add(count, Ordering::Relaxed);
        if before + count > self.kept_max {
            self.kept.fetch_sub(count, Ordering::Relaxed);
            return false;
        }
        for stripe in &mut pinned.stripes {
            stripe.kept = true;
        }
        true
    }

    /// Stripes that readers keep now.
    #[must_use]
    pub fn kept(&self) -> usize {
        // ORDERING: Relaxed, a statistic.
        self.kept.load(Ordering::Relaxed)
    }

    /// References to all stripes. Wait-free; records go on meanwhile.
    #[must_use]
    pub fn snapshot(self: &Arc<Self>) -> Snapshot {
        // First: everything up to this number is then visible to the references taken below.
        let lsn = self.lsn();
        let fragments = (0..self.fragments()).map(|fragment| self.pin_fragment(fragment));
        Snapshot { lsn, fragments: fragments.collect() }
    }
}

impl Pinned {
    fn held(&self) -> &Held {
        self.held.as_ref().expect("given back only on drop")
    }

    #[must_use]
    pub fn stripe(&self) -> usize {
        self.stripe
    }

    /// The stripe's parameters.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        self.plane(0)
    }

    /// One plane of the stripe: 0 = parameters, then the optimizer's state.
    ///
    /// # Panics
    ///
    /// If there is no such plane.
    #[must_use]
    pub fn plane(&self, plane: usize) -> &[f32] {
        let len = self.store.geometry.stripe_range(self.stripe).len();
        let start = plane * self.store.stride;
        &self.store.words.arena().planes(self.held())[start..start + len]
    }

    /// CRC-32C of the parameters' little-endian bytes, computed once a published block.
    #[must_use]
    pub fn crc32c(&self) -> u32 {
        let cache = &self.store.words.arena().block(self.held().index).crc;
        // ORDERING: Relaxed; the number depends only on the contents, which our reference keeps
        // as they are, and `publish` resets it before any reference can be taken.
        let cached = cache.load(Ordering::Relaxed);
        if let Ok(known) = u32::try_from(cached ^ KNOWN) {
            return known;
        }
        let computed = crc32c(bytemuck::cast_slice(self.parameters()));
        cache.store(KNOWN | u64::from(computed), Ordering::Relaxed);
        computed
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.store.words.release(held);
        }
        if self.kept {
            self.store.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Snapshot {
    /// Every stripe, in order.
    pub fn stripes(&self) -> impl Iterator<Item = &Pinned> {
        self.fragments.iter().flat_map(|fragment| &fragment.stripes)
    }

    /// Whether every fragment is whole.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.fragments.iter().all(|fragment| fragment.whole)
    }
}
