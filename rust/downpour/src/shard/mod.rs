//! A store and the memory of who has pushed into it: what a shard must never lose together.
//!
//! The store applies records and knows nobody; the windows know everybody and apply nothing.
//! Fragments have the numbers of the whole layout here; the store's own begin at 0.
//! [`Shard::settle`] is the one place where a record meets both: it is judged, applied and marked
//! under the lock of its replica's entry, so nobody can see it applied and not marked.
//!
//! # Ordering
//! Three locks, always taken in this order: the gate (shared by records, exclusive for an
//! export), a replica's entry, and whatever the store does inside. An export therefore sees no
//! record half settled. Records of different replicas hold different entries and meet only in the
//! store.

mod decoded;
mod export;
mod fetch;
mod kept;
mod rounds;

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::codec::{self, Codec};
use crate::dedupe::{Entry, Judgement, Run, Verdict, Windows, lock};
use crate::frame::Code;
use crate::kernel::{DType, Gradient, check};
use crate::store::{
    Admission, Applied, ApplyError, CloseError, Closed, Received, Store, StoreError,
};

use decoded::{Scratch, Scratches};
pub use export::ImportError;
pub use fetch::{Batch, GATHER_SIZE, Piece};

/// One record as it arrived: identity, place, elements.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Who pushes.
    pub replica: u32,
    /// Which life of the replica.
    pub incarnation: u32,
    /// Which of its pushes.
    pub push: u64,
    /// Which fragment of the layout.
    pub fragment: u32,
    /// The fragment's version that the replica computed its gradient from.
    pub base_version: u64,
    /// The dtype code of the payload, unchecked.
    pub dtype: u8,
    /// The codec of the payload, unchecked.
    pub codec: u8,
    /// The elements' bytes; they need no alignment.
    pub payload: &'a [u8],
    /// It has no payload: what its replica has pushed last of the fragment is to be applied again.
    pub again: bool,
    /// What was decided about its push.
    pub admission: Admission,
}

impl<'a> Record<'a> {
    fn received(&self) -> Received<'a> {
        let Self { replica, incarnation, push, base_version, dtype, codec, payload, .. } = *self;
        Received { replica, incarnation, push, base_version, dtype, codec, payload }
    }
}

/// The definite good answers to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Applied now, or added to its round.
    Applied {
        /// The record's log sequence number.
        lsn: u64,
        /// Version at apply minus base version; 0 for a base from the future.
        staleness: u64,
    },
    /// Applied before; nothing was done.
    Duplicate {
        /// LSN of the replica's last applied record, at or above this one's.
        lsn: u64,
    },
}

/// The definite bad answer to a record. Nothing of it was applied; it may be sent again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refused {
    /// Why.
    pub code: Code,
    /// Non-finite elements, where that is why.
    pub count: u64,
    /// The first of them within the fragment.
    pub first_index: Option<u64>,
    /// The gradient's L2 norm, where that is why.
    pub norm: f64,
}

impl Refused {
    fn because(code: Code) -> Self {
        Self { code, count: 0, first_index: None, norm: 0.0 }
    }
}

impl From<ApplyError> for Refused {
    fn from(error: ApplyError) -> Self {
        let non_finite = |code, count: usize, first_index: usize| Self {
            count: count as u64,
            first_index: Some(first_index as u64),
            ..Self::because(code)
        };
        match error {
            ApplyError::NonFinite { count, first_index } => {
                non_finite(Code::NonFinite, count, first_index)
            }
            ApplyError::ResultNonFinite { count, first_index } => {
                non_finite(Code::ResultNonFinite, count, first_index)
            }
            ApplyError::Norm { norm, .. } => Self { norm, ..Self::because(Code::Norm) },
            ApplyError::Length { .. } => Self::because(Code::Length),
            ApplyError::Fragment { .. } => Self::because(Code::Fragment),
            ApplyError::Superseded { .. } => Self::because(Code::Superseded),
            ApplyError::Full { .. } => Self::because(Code::StoreFull),
            ApplyError::Round { .. } => Self::because(Code::Round),
            ApplyError::Accumulators => Self::because(Code::Unsupported),
        }
    }
}

/// A store, whose records it knows, and the gate between records and exports.
#[derive(Debug)]
pub struct Shard {
    store: Arc<Store>,
    windows: Windows,
    gate: RwLock<()>,
    joint: fetch::Joint,
    codec: Option<Arc<Codec>>,
    decoded: Scratches,
    kept: kept::Kept,
    norm_max: Option<f64>,
}

impl Shard {
    /// Around a store nobody has pushed into, whose fragments are those of the layout from
    /// `first_fragment` on.
    ///
    /// # Errors
    /// [`StoreError::Numbers`] if 32 bits do not number them.
    pub fn new(store: Store, first_fragment: u32) -> Result<Self, StoreError> {
        let count = store.fragments();
        let end = u32::try_from(count).ok().and_then(|count| first_fragment.checked_add(count));
        let end = end.ok_or(StoreError::Numbers { first: first_fragment, count })?;
        let joint = fetch::Joint::new(store.geometry());
        let windows = Windows::new(first_fragment..end);
        let decoded = Scratches::new(store.geometry());
        let (store, gate) = (Arc::new(store), RwLock::new(()));
        let kept = kept::Kept::default();
        Ok(Self { store, windows, gate, joint, codec: None, decoded, kept, norm_max: None })
    }

    /// The same, for records that this codec has encoded, too.
    #[must_use]
    pub fn with_codec(mut self, codec: Option<Arc<Codec>>) -> Self {
        self.codec = codec;
        self
    }

    /// The codec of records, beside none.
    #[must_use]
    pub fn codec(&self) -> Option<&Codec> {
        self.codec.as_deref()
    }

    /// Bytes of memory that records are decoded into: a fragment for each thread that has decoded
    /// at the same time as others.
    #[must_use]
    pub fn decoded_bytes(&self) -> usize {
        self.decoded.bytes()
    }

    /// Keep each replica's last gradient from now on, so many bytes of them at most, for records
    /// that say "again"; 0 keeps none.
    pub fn keep_gradients(&self, size_max: usize) {
        self.kept.keep_at_most(size_max);
    }

    /// Bytes of the gradients that are kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// The same, which refuses records whose gradient's L2 norm is above `norm_max`.
    ///
    /// A fragment's norm is at most that of the push it belongs to, so a bound on whole pushes is
    /// never broken by one that keeps it, and nobody's word about the whole is needed.
    #[must_use]
    pub fn with_norm_max(mut self, norm_max: Option<f64>) -> Self {
        self.norm_max = norm_max;
        self
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The fragments of the layout that this shard owns.
    #[must_use]
    pub fn fragments(&self) -> Range<u32> {
        self.windows.fragments()
    }

    /// The store's number of a fragment, if it is one of this shard's.
    #[must_use]
    pub fn place(&self, fragment: u32) -> Option<usize> {
        self.windows.place(fragment).map(|place| place as usize)
    }

    /// Elements of a fragment, which are fewer in the layout's last one; `None` if it is another
    /// shard's.
    #[must_use]
    pub fn fragment_len(&self, fragment: u32) -> Option<usize> {
        Some(self.store.geometry().fragment_range(self.place(fragment)?).len())
    }

    /// Judge a run before its records arrive; see [`Windows::admit`].
    #[must_use]
    pub fn admit(&self, run: &Run) -> Verdict {
        let _open = self.enter();
        self.windows.admit(run)
    }

    /// Refuse older incarnations for ever.
    pub fn fence(&self, replica: u32, incarnation: u32) {
        let _open = self.enter();
        self.windows.fence(replica, incarnation);
    }

    /// Fence and forget whoever left for good; see [`Windows::retire`].
    pub fn retire(&self, next: u32, ranges: &[(u32, u32)]) -> bool {
        let _open = self.enter();
        let is_done = self.windows.retire(next, ranges);
        self.kept.retain(|replica| !self.windows.is_retired(replica));
        is_done
    }

    /// Whether an id was retired.
    #[must_use]
    pub fn is_retired(&self, replica: u32) -> bool {
        self.windows.is_retired(replica)
    }

    /// Records applied that no replica's entry counts; see [`Windows::applied_of_nobody`].
    #[must_use]
    pub fn applied_of_nobody(&self) -> u64 {
        self.windows.applied_of_nobody()
    }

    /// Replicas that are remembered.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.windows.replicas()
    }

    /// What is remembered of a replica.
    #[must_use]
    pub fn find(&self, replica: u32) -> Option<Entry> {
        self.windows.find(replica)
    }

    /// Take a record that has no identity; see [`Store::take`].
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was taken.
    pub fn take(
        &self,
        fragment: u32,
        gradient: Gradient<'_>,
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        let _open = self.enter();
        self.check_norm(gradient)?;
        self.store.take(self.expect_place(fragment)?, gradient, base_version, admission)
    }

    /// Combine records in rounds from now on, too; see [`Store::start_accumulating`].
    ///
    /// # Errors
    /// [`StoreError::Memory`]; records are applied as before.
    pub fn start_accumulating(&self) -> Result<(), StoreError> {
        // An export has the rounds of all fragments, or of none.
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.store.start_accumulating()
    }

    /// Apply what one fragment has accumulated; see [`Store::close_round`].
    ///
    /// # Errors
    /// [`CloseError`]; nothing was applied.
    pub fn close_round(
        &self,
        fragment: u32,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError> {
        let _open = self.enter();
        let place = self.expect_place(fragment).map_err(CloseError::NotNow)?;
        self.store.close_round(place, round, factor)
    }

    fn expect_place(&self, fragment: u32) -> Result<usize, ApplyError> {
        let (number, fragments) = (fragment as usize, self.store.fragments());
        self.place(fragment).ok_or(ApplyError::Fragment { fragment: number, fragments })
    }

    /// Judge, apply (or add to its round) and mark one record.
    ///
    /// # Errors
    /// [`Refused`]; nothing was applied and nothing was marked.
    pub fn settle(&self, record: &Record<'_>) -> Result<Answer, Refused> {
        let _open = self.enter();
        let entry = self.windows.entry(record.replica).ok_or_else(|| {
            let retired = self.windows.is_retired(record.replica);
            Refused::because(if retired { Code::Fenced } else { Code::UnknownState })
        })?;
        let mut entry = lock(&entry);
        let place = self.windows.place(record.fragment);
        let code = match (entry.judge(record.incarnation, record.push, place), place) {
            (Judgement::New, Some(place)) => return self.apply_new(record, place, &mut entry),
            (Judgement::Done, _) => return Ok(Answer::Duplicate { lsn: entry.last_lsn() }),
            (Judgement::Fenced, _) => Code::Fenced,
            (Judgement::Unknown, _) => Code::UnknownState,
            (Judgement::Window, _) => Code::Window,
            (Judgement::Elsewhere, _) | (_, None) => Code::Fragment,
        };
        Err(Refused::because(code))
    }

    /// Apply and mark a record that was judged as new.
    fn apply_new(
        &self,
        record: &Record<'_>,
        place: u32,
        entry: &mut Entry,
    ) -> Result<Answer, Refused> {
        if record.again {
            return self.apply_again(record, place, entry);
        }
        let mut scratch = None;
        let gradient = self.gradient(record, &mut scratch)?;
        self.check_norm(gradient)?;
        let answer = self.take_new(record.received(), gradient, record, place, entry)?;
        let whose = (record.replica, record.incarnation, record.push);
        let place = (place as usize, self.store.fragments());
        let level = self.store.optimizer().level();
        self.kept.keep(level, whose, place, gradient, record.base_version);
        Ok(answer)
    }

    /// The same for one that stands for its replica's last gradient.
    fn apply_again(
        &self,
        record: &Record<'_>,
        place: u32,
        entry: &mut Entry,
    ) -> Result<Answer, Refused> {
        let nothing = || Refused::because(Code::NothingKept);
        let life = self.kept.of(record.replica).ok_or_else(nothing)?;
        let life = kept::lock(&life);
        let last = life.last(record.incarnation, place as usize).ok_or_else(nothing)?;
        let received = Received {
            base_version: last.base_version,
            dtype: DType::F32 as u8,
            codec: codec::NONE,
            payload: bytemuck::cast_slice(&last.values),
            ..record.received()
        };
        self.take_new(received, Gradient::F32(&last.values), record, place, entry)
    }

    fn take_new(
        &self,
        received: Received<'_>,
        gradient: Gradient<'_>,
        record: &Record<'_>,
        place: u32,
        entry: &mut Entry,
    ) -> Result<Answer, Refused> {
        let admission = &record.admission;
        let applied = self.store.take_received(place as usize, gradient, received, admission)?;
        entry.complete(record.push, place, applied.lsn);
        Ok(Answer::Applied {
            lsn: applied.lsn,
            staleness: applied.version_before.saturating_sub(received.base_version),
        })
    }

    /// The elements of a record: its payload as it is, or decoded into `scratch`.
    fn gradient<'s, 'a>(
        &'s self,
        record: &Record<'a>,
        scratch: &'a mut Option<Scratch<'s>>,
    ) -> Result<Gradient<'a>, Refused> {
        let Ok(dtype) = DType::try_from(record.dtype) else {
            return Err(Refused::because(Code::Unsupported));
        };
        if record.codec == codec::NONE {
            return Gradient::from_bytes(record.payload, dtype)
                .map_err(|_| Refused::because(Code::Length));
        }
        let codec = self.codec().filter(|codec| codec.number() == record.codec);
        let Some(codec) = codec.filter(|_| dtype == codec::DECODED) else {
            return Err(Refused::because(Code::Unsupported));
        };
        let len = self.fragment_len(record.fragment);
        let len = len.ok_or_else(|| Refused::because(Code::Fragment))?;
        let target = &mut scratch.insert(self.decoded.take()).values_mut()[..len];
        codec.decode(record.payload, target).map_err(|_| Refused::because(Code::Length))?;
        Ok(Gradient::F32(target))
    }

    /// Measure a gradient, if there is a bound: one more pass over what is in the cache anyway.
    /// Elements that are not finite are left to the update, which counts and places them.
    fn check_norm(&self, gradient: Gradient<'_>) -> Result<(), ApplyError> {
        let Some(norm_max) = self.norm_max else {
            return Ok(());
        };
        let norm = check(self.store.optimizer().level(), gradient).sum_of_squares.sqrt();
        if norm > norm_max { Err(ApplyError::Norm { norm, norm_max }) } else { Ok(()) }
    }

    /// Pass the gate with the records.
    fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }
}
