//! Sums of records that become one update together, beside the published stripes.
//!
//! # Theory
//!
//! Where a policy combines, a record is added to its fragment's accumulator instead of applied:
//! `sum += factor * gradient` in the order of arrival, and its weight to the sum of weights.
//! Closing the round applies `sum * factor` as one update. The sums are plain memory that only the
//! holder of the fragment's claim touches: readers never see them, so there is nothing to publish,
//! and adding in place moves less memory than any other way.
//!
//! A fragment has at most one round open. The first record of a round opens it, if it was not
//! closed before; a record of another round is refused until this one is closed.
//!
//! # Limits
//!
//! One f32 an element and a few counters a fragment, reserved when records are to be combined for
//! the first time; a store that never combines has none.

use super::error::CloseError;
use super::fragment::Owned;
use super::journal::{Change, Received};
use super::record::{Applied, Update};
use super::sync::Ordering;
use super::{ApplyError, Round, Store, StoreError};
use crate::kernel::{Gradient, add_scaled, are_finite};
use crate::number::single;

/// What one fragment has accumulated.
pub(super) struct Accumulator {
    /// Empty before the first record, then as long as the fragment.
    sum: Vec<f32>,
    open: Accumulated,
}

/// How far a fragment's rounds have come, and what the open one holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accumulated {
    /// The open round if `count` is not 0, else the lowest that may open.
    pub round: u64,
    /// Records in the open round.
    pub count: u64,
    /// The sum of their weights.
    pub weight: f64,
    /// The sum of their samples.
    pub samples: u64,
    /// The largest of their stalenesses.
    pub staleness: u64,
}

/// A round that was applied to a fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closed {
    /// The LSN of the update.
    pub lsn: u64,
    /// Updates of the fragment, this one included.
    pub version: u64,
    /// What it was made of.
    pub of: Accumulated,
}

impl Store {
    /// The same store with an accumulator for each fragment.
    ///
    /// # Errors
    ///
    /// As [`Store::start_accumulating`].
    pub fn accumulating(self) -> Result<Self, StoreError> {
        self.start_accumulating()?;
        Ok(self)
    }

    /// Have an accumulator for each fragment from now on; again, it changes nothing. Records may
    /// be applied meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError::Memory`] if there is none left to reserve: records cannot be combined then,
    /// and everything else goes on.
    pub fn start_accumulating(&self) -> Result<(), StoreError> {
        for (fragment, shared) in self.fragments.iter().enumerate() {
            let mut claim = shared.claim();
            if claim.accumulator.is_none() {
                let len = self.geometry.fragment_range(fragment).len();
                let mut sum = Vec::new();
                let bytes = self.geometry.len * size_of::<f32>();
                sum.try_reserve_exact(len).map_err(|_| StoreError::Memory { bytes })?;
                let open = Accumulated::default();
                claim.accumulator = Some(Box::new(Accumulator { sum, open }));
            }
        }
        // ORDERING: Release, paired with the Acquire in `accumulates`.
        self.accumulates.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether records may be combined in rounds.
    #[must_use]
    pub fn accumulates(&self) -> bool {
        // ORDERING: Acquire, paired with the Release in `start_accumulating`: who sees it finds
        // every fragment's accumulator.
        self.accumulates.load(Ordering::Acquire)
    }

    /// How far a fragment's rounds have come; `None` if there are no accumulators.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn accumulated(&self, fragment: usize) -> Option<Accumulated> {
        Some(self.fragments[fragment].claim().accumulator.as_ref()?.open)
    }

    /// Copy a fragment's accumulated sum: zeros if nothing was accumulated.
    ///
    /// # Errors
    ///
    /// [`ApplyError`] if `target` has not the fragment's length, or there is no such fragment.
    pub fn read_accumulated(
        &self,
        fragment: usize,
        target: &mut [f32],
    ) -> Result<Option<Accumulated>, ApplyError> {
        self.expect_len(fragment, &Gradient::F32(target))?;
        let claim = self.fragments[fragment].claim();
        let Some(accumulator) = claim.accumulator.as_ref() else {
            return Ok(None);
        };
        if accumulator.open.count == 0 {
            target.fill(0.0);
        } else {
            target.copy_from_slice(&accumulator.sum);
        }
        Ok(Some(accumulator.open))
    }

    /// Whether a fragment of this store may have accumulated this: the sum is as long as the
    /// fragment (or empty, without records), and every number is finite.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn may_hold(&self, fragment: usize, open: &Accumulated, sum: &[f32]) -> bool {
        let has_records = open.count > 0;
        let len = if has_records { self.geometry.fragment_range(fragment).len() } else { 0 };
        sum.len() == len
            && are_finite(self.optimizer.level(), Gradient::F32(sum), 1.0)
            && open.weight.is_finite()
            && (open.weight > 0.0) == has_records
            && open.round < u64::MAX
    }

    /// Continue with what an earlier store had accumulated in a fragment.
    ///
    /// # Errors
    ///
    /// [`StoreError::Sealed`] after the first record, [`StoreError::Accumulator`] if it may not
    /// [hold](Self::may_hold) it. Nothing changes then.
    pub fn restore_accumulated(
        &self,
        fragment: usize,
        open: Accumulated,
        sum: &[f32],
    ) -> Result<(), StoreError> {
        let fits = self.may_hold(fragment, &open, sum);
        let mut claim = self.fragments[fragment].claim();
        self.expect_unsealed()?;
        let accumulator = claim.accumulator.as_mut().filter(|_| fits);
        let accumulator = accumulator.ok_or(StoreError::Accumulator { fragment })?;
        accumulator.sum.clear();
        accumulator.sum.extend_from_slice(sum);
        accumulator.open = open;
        Ok(())
    }

    /// Apply a fragment's round as one update: its sum times `factor`, or times one over the sum
    /// of weights (in f64, rounded to f32) if that is `None`. No record is taken into it after.
    ///
    /// `None`: nothing was accumulated, so nothing was applied; the round is closed nevertheless,
    /// which has an LSN of its own.
    ///
    /// # Errors
    ///
    /// [`CloseError::Factor`] if it is not finite; [`CloseError::NotNow`] if another round is open
    /// or this one was closed, or there is no block free or no room in the journal
    /// ([`ApplyError::Full`]: try again). Nothing changed then. [`CloseError::Dropped`] if the sum
    /// times the factor is not finite ([`ApplyError::NonFinite`]), or the new parameters or
    /// optimizer state would not be ([`ApplyError::ResultNonFinite`]): they are as before, the
    /// round is closed, and what was accumulated in it is gone.
    pub fn close_round(
        &self,
        fragment: usize,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError> {
        if let Some(factor) = factor.filter(|factor| !factor.is_finite()) {
            return Err(CloseError::Factor { factor });
        }
        let shared = self.fragment(fragment).map_err(CloseError::NotNow)?;
        let mut claim = shared.claim();
        let Owned { accumulator, history } = &mut *claim;
        let accumulator = open_accumulator(accumulator, round).map_err(CloseError::NotNow)?;
        let of = accumulator.open;
        let answer = if of.count == 0 {
            // Nothing changes but which records may come: whoever replays the journal has to know.
            let change = Change::Close { round, factor: 1.0 };
            let lsn = self.order.decide(fragment, change).map_err(CloseError::NotNow)?;
            self.seal();
            self.order.published(lsn);
            Ok(None)
        } else {
            let scale = factor.unwrap_or_else(|| single(1.0 / of.weight));
            let Accumulated { staleness, count, samples, .. } = of;
            let update = Update { scale, staleness, round_count: count, samples };
            let change = Change::Close { round, factor: scale };
            let sum = Gradient::F32(&accumulator.sum);
            match self.update(fragment, shared, history, sum, update, change) {
                Ok(Applied { lsn, version_before }) => {
                    Ok(Some(Closed { lsn, version: version_before + 1, of }))
                }
                Err(full @ ApplyError::Full { .. }) => return Err(CloseError::NotNow(full)),
                Err(cause) => {
                    // What was taken before is gone: that has its place in the order, too.
                    let lsn = self.order.decide(fragment, change);
                    self.order.published(lsn.map_err(CloseError::NotNow)?);
                    Err(CloseError::Dropped { of, cause })
                }
            }
        };
        accumulator.open = Accumulated { round: round + 1, ..Accumulated::default() };
        answer
    }

    /// Add a record of the right length to its round; returns its LSN.
    pub(super) fn accumulate(
        &self,
        accumulator: &mut Option<Box<Accumulator>>,
        fragment: usize,
        gradient: Gradient<'_>,
        round: Round,
        Update { scale: factor, staleness, samples, .. }: Update,
        received: Received<'_>,
    ) -> Result<u64, ApplyError> {
        let Accumulator { sum, open } = open_accumulator(accumulator, round.number)?;
        let level = self.optimizer.level();
        if !are_finite(level, gradient, factor) {
            return Err(self.refuse_gradient(gradient, factor));
        }
        let round_of = Some(round);
        let change = Change::Record { received, staleness, factor, samples, round: round_of };
        let lsn = self.order.decide(fragment, change)?;
        self.seal();
        let is_first = open.count == 0;
        if is_first {
            sum.resize(gradient.len(), 0.0);
        }
        add_scaled(level, sum, gradient, factor, is_first);
        *open = Accumulated {
            round: round.number,
            count: open.count + 1,
            weight: open.weight + round.weight,
            samples: open.samples.saturating_add(samples),
            staleness: open.staleness.max(staleness),
        };
        self.order.published(lsn);
        Ok(lsn)
    }
}

/// The accumulator, if `round` is open or may be opened.
fn open_accumulator(
    accumulator: &mut Option<Box<Accumulator>>,
    round: u64,
) -> Result<&mut Accumulator, ApplyError> {
    let accumulator = accumulator.as_mut().ok_or(ApplyError::Accumulators)?;
    let Accumulated { round: open, count, .. } = accumulator.open;
    let fits = if count == 0 { (open..u64::MAX).contains(&round) } else { round == open };
    if fits { Ok(accumulator) } else { Err(ApplyError::Round { round, open, count }) }
}
