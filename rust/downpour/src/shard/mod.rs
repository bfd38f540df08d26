//! A store and the memory of who has pushed into it: what a shard must never lose together.
//!
//! The store applies records and knows nobody; the ledger knows everybody and applies nothing.
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
mod rounds;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::codec::{self, Codec};
use crate::dedupe::{Claim, Entry, Ledger, Run, Verdict, lock};
use crate::frame::Code;
use crate::kernel::{DType, Gradient, check};
use crate::store::{Admission, Applied, ApplyError, CloseError, Closed, Store};

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
    /// The record's number.
    pub seq: u64,
    /// Which fragment of the store.
    pub fragment: u32,
    /// The fragment's version that the replica computed its gradient from.
    pub base_version: u64,
    /// The dtype code of the payload, unchecked.
    pub dtype: u8,
    /// The codec of the payload, unchecked.
    pub codec: u8,
    /// The elements' bytes; they need no alignment.
    pub payload: &'a [u8],
    /// What was decided about its push.
    pub admission: Admission,
}

/// The definite good answers to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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
            ApplyError::Full { .. } => Self::because(Code::StoreFull),
            ApplyError::Round { .. } => Self::because(Code::Round),
            ApplyError::Accumulators => Self::because(Code::Unsupported),
        }
    }
}

/// A store, its ledger, and the gate between records and exports.
#[derive(Debug)]
pub struct Shard {
    store: Arc<Store>,
    ledger: Ledger,
    gate: RwLock<()>,
    joint: fetch::Joint,
    codec: Option<Arc<Codec>>,
    decoded: Scratches,
    norm_max: Option<f64>,
}

impl Shard {
    /// Around a store nobody has pushed into.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let joint = fetch::Joint::new(store.geometry());
        let gate = RwLock::new(());
        let decoded = Scratches::new(store.geometry());
        let (store, ledger) = (Arc::new(store), Ledger::default());
        Self { store, ledger, gate, joint, codec: None, decoded, norm_max: None }
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

    /// Elements of a fragment, which are fewer in the last one; `None` beyond the end.
    #[must_use]
    pub fn fragment_len(&self, fragment: usize) -> Option<usize> {
        let range = self.store.geometry().fragment_range(fragment);
        (!range.is_empty()).then_some(range.len())
    }

    /// Judge a run before its records arrive; see [`Ledger::admit`].
    #[must_use]
    pub fn admit(&self, run: &Run) -> Verdict {
        let _open = self.enter();
        self.ledger.admit(run)
    }

    /// Refuse older incarnations for ever.
    pub fn fence(&self, replica: u32, incarnation: u32) {
        let _open = self.enter();
        self.ledger.fence(replica, incarnation);
    }

    /// Fence and forget whoever left for good; see [`Ledger::retire`].
    pub fn retire(&self, next: u32, ranges: &[(u32, u32)]) -> bool {
        let _open = self.enter();
        self.ledger.retire(next, ranges)
    }

    /// Whether an id was retired.
    #[must_use]
    pub fn is_retired(&self, replica: u32) -> bool {
        self.ledger.is_retired(replica)
    }

    /// Records applied of replicas that are forgotten.
    #[must_use]
    pub fn applied_of_retired(&self) -> u64 {
        self.ledger.applied_of_retired()
    }

    /// Replicas that are remembered.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.ledger.replicas()
    }

    /// What is remembered of a replica.
    #[must_use]
    pub fn find(&self, replica: u32) -> Option<Entry> {
        self.ledger.find(replica)
    }

    /// Take a record that has no identity; see [`Store::take`].
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was taken.
    pub fn take(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        let _open = self.enter();
        self.check_norm(gradient)?;
        self.store.take(fragment, gradient, base_version, admission)
    }

    /// Apply what one fragment has accumulated; see [`Store::close_round`].
    ///
    /// # Errors
    /// [`CloseError`]; nothing was applied.
    pub fn close_round(
        &self,
        fragment: usize,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError> {
        let _open = self.enter();
        self.store.close_round(fragment, round, factor)
    }

    /// Judge, apply (or add to its round) and mark one record.
    ///
    /// # Errors
    /// [`Refused`]; nothing was applied and nothing was marked.
    pub fn settle(&self, record: &Record<'_>) -> Result<Outcome, Refused> {
        let _open = self.enter();
        let entry = self.ledger.entry(record.replica).ok_or_else(|| {
            let retired = self.ledger.is_retired(record.replica);
            Refused::because(if retired { Code::Fenced } else { Code::UnknownState })
        })?;
        let mut entry = lock(&entry);
        match entry.claim(record.incarnation, record.seq) {
            Claim::New => {}
            Claim::Done => return Ok(Outcome::Duplicate { lsn: entry.last_lsn() }),
            Claim::Fenced => return Err(Refused::because(Code::Fenced)),
            Claim::Unknown => return Err(Refused::because(Code::UnknownState)),
            Claim::Window => return Err(Refused::because(Code::Window)),
        }
        let mut scratch = None;
        let gradient = self.gradient(record, &mut scratch)?;
        self.check_norm(gradient)?;
        let fragment = record.fragment as usize;
        let applied =
            self.store.take(fragment, gradient, record.base_version, &record.admission)?;
        entry.complete(record.seq, applied.lsn);
        Ok(Outcome::Applied {
            lsn: applied.lsn,
            staleness: applied.version_before.saturating_sub(record.base_version),
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
        let len = self.fragment_len(record.fragment as usize);
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
