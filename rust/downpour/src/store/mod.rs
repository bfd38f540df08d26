//! A shard's parameters and optimizer state: published stripes, updated copy-on-write.
//!
//! # Theory
//!
//! A store's elements are cut in *stripes*; each stripe publishes an immutable, reference-counted
//! block with its parameters and optimizer state (`block_words`). Readers take a reference with one
//! atomic addition and read at leisure; nothing ever waits for them, and they wait for nobody.
//!
//! A *record* updates one *fragment*, a few consecutive stripes. Records of a fragment are taken
//! one at a time, under its claim (`fragment`): the new blocks are computed into spare ones,
//! checked, and published only if the scaled gradient and every result are finite. So a record is
//! applied whole or not at all, and the contents are a function of each fragment's order of
//! records: threads, instruction sets and timing never change a bit. Records may also be combined
//! first (`accumulator`), and a fragment remembers past versions where a part of the optimizer
//! compares with them (`history`).
//!
//! A reader may see stripe 0 of a record and not yet stripe 1: publishing is atomic a stripe.
//! [`Store::pin_fragment`] and [`Store::snapshot`] say what they caught whole.
//!
//! Blocks that readers still hold when they are replaced cost memory, and blocks are limited. Who
//! holds references for as long as a network takes asks [`Store::keep`] first and copies where it
//! says no, so that records always find a block however many readers there are.
//!
//! # Ordering
//!
//! All atomics come through `sync`, each access names its partner, and `tests/loom_store.rs`
//! explores the interleavings.
//!
//! # Limits
//!
//! See [`Tuning`]. Reaching one refuses that record and loses nothing.

mod accumulator;
mod admission;
#[allow(unsafe_code, reason = "the memory of published blocks")]
mod block;
mod block_words;
mod error;
mod fragment;
mod geometry;
mod history;
mod journal;
mod list;
mod load;
mod memory;
mod order;
mod pinned;
mod record;
mod sync;

use block::Arena;
use block_words::Words;
use fragment::Fragment;
use history::History;
use order::Order;
use sync::{AtomicBool, AtomicU64, AtomicUsize};

pub use accumulator::{Accumulated, Closed};
pub use admission::{Admission, AdmissionError, Round};
pub use error::{ApplyError, CloseError, StoreError};
pub use geometry::Geometry;
pub use journal::{Change, ENTRY_SIZE, Entry, Journal, Received, Recording};
pub use memory::Memory;
pub use pinned::{Pinned, PinnedFragment, Snapshot};
pub use record::Applied;

use crate::optimizer::Optimizer;

/// Limits of a store, for tests and unusual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Blocks that may exist beyond one a stripe, as whole copies of the store: what readers can
    /// hold while records go on. 2: a snapshot being written, and slow fetches.
    pub copies_max: usize,
    /// References taken from a word before a reader moves them to the block. 2^16 keeps the
    /// (slower) move rare and is far below the 2^32 that fit.
    pub fold_limit: u32,
    /// Bytes of parameters and state above which new blocks are written past the caches, where
    /// nothing of them would stay until the next sweep. 128 MiB is more than almost any cache.
    pub cached_size_max: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { copies_max: 2, fold_limit: 1 << 16, cached_size_max: 128 << 20 }
    }
}

/// One shard's parameters and optimizer state. See the module's theory.
///
/// All methods take `&self` and may be called from any number of threads.
pub struct Store {
    geometry: Geometry,
    optimizer: Optimizer,
    stride: usize,
    words: Words,
    fragments: Box<[Fragment]>,
    accumulates: AtomicBool,
    order: Order,
    /// Stripes that readers keep; see [`Store::keep`].
    kept: AtomicUsize,
    kept_max: usize,
    /// Blocks that histories hold; see `history`.
    remembered: AtomicUsize,
    bases_gone: AtomicU64,
    sealed: AtomicBool,
    /// Write new blocks past the caches.
    bypass: bool,
}

impl Store {
    /// A store of zeros, with the optimizer's initial state and default limits.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the geometry is impossible or memory is short.
    pub fn new(geometry: Geometry, optimizer: Optimizer) -> Result<Self, StoreError> {
        Self::with_tuning(geometry, optimizer, Tuning::default())
    }

    /// The same with limits of your own.
    ///
    /// # Errors
    ///
    /// As [`Store::new`]; [`StoreError::Tuning`] names a limit out of range.
    pub fn with_tuning(
        geometry: Geometry,
        optimizer: Optimizer,
        tuning: Tuning,
    ) -> Result<Self, StoreError> {
        let geometry = geometry.validate()?;
        let Tuning { copies_max, fold_limit, cached_size_max } = tuning;
        let refuse = |name, value, bound| Err(StoreError::Tuning { name, value, bound });
        if !(1..=6).contains(&copies_max) {
            return refuse("copies_max", copies_max, "1 to 6");
        }
        if fold_limit == 0 || fold_limit > 1 << 30 {
            return refuse("fold_limit", fold_limit as usize, "1 to 2^30");
        }
        let stripes = geometry.stripes();
        let record = geometry.fragment_len.div_ceil(geometry.stripe_len).min(stripes);
        let block_len = geometry.stride() * (1 + optimizer.planes());
        // A record needs a spare for each of its stripes, and one as scratch for narrow types.
        let spares_max = 2 * (record + 1);
        let copies = (copies_max * stripes).max(spares_max);
        let bytes = stripes.saturating_mul(block_len).saturating_mul(size_of::<f32>());
        let past = stripes.saturating_mul(optimizer.history());
        let arena = Arena::new(stripes, copies.saturating_add(past), block_len, spares_max)
            .ok_or(StoreError::Memory { bytes })?;
        let count = u32::try_from(stripes).map_err(|_| StoreError::Memory { bytes })?;
        let store = Self {
            geometry,
            stride: geometry.stride(),
            words: Words::new(arena, count, fold_limit),
            fragments: (0..geometry.fragments())
                .map(|_| Fragment::new(History::of(optimizer.history())))
                .collect(),
            accumulates: AtomicBool::new(false),
            order: Order::new(None),
            kept: AtomicUsize::new(0),
            // Each stripe that is kept costs at most one block: the rest is for records.
            kept_max: copies - spares_max,
            remembered: AtomicUsize::new(0),
            bases_gone: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            bypass: bytes.saturating_mul(1 + optimizer.history()) > cached_size_max,
            optimizer,
        };
        store.fill_initial_state()?;
        Ok(store)
    }

    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[must_use]
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    #[must_use]
    pub fn fragments(&self) -> usize {
        self.fragments.len()
    }

    #[must_use]
    pub fn stripes(&self) -> usize {
        self.words.len()
    }

    /// Planes per stripe: the parameters and the optimizer's state.
    #[must_use]
    pub fn planes(&self) -> usize {
        1 + self.optimizer.planes()
    }

    /// The same store, which tells a journal of every update before anybody can see it.
    /// `first_fragment`: what the first of its fragments is called there.
    #[must_use]
    pub fn journaled(mut self, journal: Box<dyn Journal>, first_fragment: u32) -> Self {
        self.order = Order::new(Some((journal, first_fragment)));
        self
    }

    /// Records applied or accumulated, and rounds closed, be it without a record, so far. Every one
    /// up to this number is visible to what is read after.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.order.horizon()
    }

    /// Updates applied to a fragment. What is read of the fragment afterwards is not older.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn version(&self, fragment: usize) -> u64 {
        self.fragments[fragment].version()
    }

    /// Training samples behind a fragment's updates.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn samples(&self, fragment: usize) -> u64 {
        self.fragments[fragment].samples()
    }

    /// The mean over all elements of what the optimizer tells replicas: of FASGD the deviation; 0
    /// if no part of it tells anything.
    ///
    /// A few loads a fragment: it is added up with each update.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "lengths stay far below 2^53")]
    pub fn deviation(&self) -> f64 {
        if self.optimizer.told().is_none() {
            return 0.0;
        }
        let told = self.fragments.iter().map(Fragment::told);
        told.fold(0.0, |sum, one| sum + one) / self.geometry.len as f64
    }

    /// The LSN of a fragment's last update, 0 if it has none.
    ///
    /// It may be one that is being published and that [`lsn`](Self::lsn) does not count yet; what
    /// `lsn()` counted before, `fragment_lsn(f) > since` never misses.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn fragment_lsn(&self, fragment: usize) -> u64 {
        self.fragments[fragment].lsn().0
    }

    fn fragment(&self, fragment: usize) -> Result<&Fragment, ApplyError> {
        let fragments = self.fragments.len();
        self.fragments.get(fragment).ok_or(ApplyError::Fragment { fragment, fragments })
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("geometry", &self.geometry)
            .field("optimizer", &self.optimizer)
            .field("lsn", &self.lsn())
            .finish_non_exhaustive()
    }
}
