//! Taking one record: computing its new blocks and publishing all of them or none, or adding it to
//! its round.

use super::block::Fresh;
use super::block_words::Borrowed;
use super::fragment::{Fragment, Owned};
use super::history::History;
use super::journal::{Change, Received};
use super::sync::Ordering;
use super::{Admission, ApplyError, Store};
use crate::kernel::{Gradient, widen};
use crate::optimizer::{Context, Stripe, Worst};

/// A record that was applied, or added to its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The shard's log sequence number of this record; the first is 1.
    pub lsn: u64,
    /// Updates of the fragment before this one.
    pub version_before: u64,
}

/// What is known of an update beside its gradient.
#[derive(Clone, Copy)]
pub(super) struct Update {
    /// Multiplies the gradient.
    pub scale: f32,
    pub staleness: u64,
    /// Records that it combines.
    pub round_count: u64,
    pub samples: u64,
}

impl Store {
    /// Apply a gradient that is not stale to a fragment; see [`take`](Self::take).
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then.
    pub fn apply(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        admission: impl Into<Admission>,
    ) -> Result<Applied, ApplyError> {
        self.take(fragment, gradient, u64::MAX, &admission.into())
    }

    /// Apply a record computed from `base_version` to a fragment, or add it to its round.
    ///
    /// Waits while another thread takes a record of the same fragment.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then.
    pub fn take(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        let (dtype, payload) = (gradient.dtype() as u8, gradient.bytes());
        let (replica, incarnation, push, codec) = (0, 0, 0, 0);
        let received = Received { replica, incarnation, push, base_version, dtype, codec, payload };
        self.take_received(fragment, gradient, received, admission)
    }

    /// The same for a record that somebody pushed, maybe encoded: `gradient` is what it decodes to.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then.
    pub fn take_received(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        received: Received<'_>,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        self.expect_len(fragment, &gradient)?;
        let shared = &self.fragments[fragment];
        let mut claim = shared.claim();
        let Owned { accumulator, history } = &mut *claim;
        let version_before = shared.version();
        let staleness = version_before.saturating_sub(received.base_version);
        if let Some(allowed) = admission.staleness_max.filter(|&allowed| staleness > allowed) {
            return Err(ApplyError::Superseded { staleness, allowed });
        }
        let (scale, samples) = (admission.factor(staleness), admission.samples);
        let round = None;
        let update = Update { scale, staleness, round_count: 1, samples };
        match admission.round {
            None => {
                let factor = scale;
                let change = Change::Record { received, staleness, factor, samples, round };
                self.update(fragment, shared, history, gradient, update, change)
            }
            Some(round) => {
                let lsn =
                    self.accumulate(accumulator, fragment, gradient, round, update, received)?;
                Ok(Applied { lsn, version_before })
            }
        }
    }

    /// One update of a fragment, whose claim the caller holds: computed, checked, numbered,
    /// published.
    pub(super) fn update(
        &self,
        fragment: usize,
        shared: &Fragment,
        history: &mut Option<Box<History>>,
        gradient: Gradient<'_>,
        Update { scale, staleness, round_count, samples }: Update,
        change: Change<'_>,
    ) -> Result<Applied, ApplyError> {
        let samples_before = shared.samples();
        let samples = samples_before.saturating_add(samples);
        let prepared = self.optimizer.prepare(Context {
            count: shared.version() + 1,
            rate: 1.0,
            staleness,
            round_count,
            samples_before,
            samples,
        });
        let stripes = self.geometry.fragment_stripes(fragment);
        let start = self.geometry.fragment_range(fragment).start;
        let mut scratch = self.scratch(&gradient)?;
        // All references first: their blocks' headers are cold, and come in side by side.
        let old: Vec<_> = stripes.clone().map(|stripe| self.words.borrow(stripe)).collect();
        // The new blocks; dropped, and so put back, on every early return.
        let mut fresh = Vec::with_capacity(stripes.len());
        let (mut worst, mut told) = (Worst::default(), 0.0);
        for (place, (stripe, old)) in stripes.clone().zip(&old).enumerate() {
            let range = self.geometry.stripe_range(stripe);
            let part = gradient.slice(range.start - start, range.end - start);
            let part = as_f32(self, part, scratch.as_mut());
            let before = [1, staleness].map(|back| {
                let held = history.as_ref().and_then(|history| history.stripe(back, place));
                let planes = held.map_or(old.planes(), |held| self.words.arena().planes(held));
                &planes[..self.stride]
            });
            let mut new = self.spare()?;
            let (of_stripe, sum) = self.optimizer.update(
                prepared,
                Stripe {
                    old: old.planes(),
                    new: new.planes_mut(),
                    stride: self.stride,
                    gradient: part,
                    scale,
                    before,
                    bypass: self.bypass,
                },
            );
            (worst, told) = (worst.and(of_stripe), told + sum);
            fresh.push(new);
            if !worst.gradient_finite() {
                return Err(self.refuse_gradient(gradient, scale));
            }
        }
        if !worst.result_finite() {
            return Err(self.refuse_result(fragment, &fresh));
        }
        let lsn = self.order.decide(fragment, change)?;
        self.seal();
        let old = history.as_ref().map(|_| old.into_iter().map(Borrowed::hold).collect());
        shared.publishing(lsn);
        for (stripe, fresh) in stripes.zip(fresh) {
            self.words.publish(stripe, fresh);
        }
        if let (Some(history), Some(old)) = (history, old) {
            self.remember(history, old, staleness);
        }
        shared.tell(told);
        let version_before = shared.published(lsn, samples);
        self.order.published(lsn);
        Ok(Applied { lsn, version_before })
    }

    /// From the first record on nothing can be loaded.
    pub(super) fn seal(&self) {
        if !self.sealed.load(Ordering::Relaxed) {
            // ORDERING: Relaxed; loading planes is ordered by the claims it takes.
            self.sealed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn expect_len(
        &self,
        fragment: usize,
        gradient: &Gradient<'_>,
    ) -> Result<(), ApplyError> {
        self.fragment(fragment)?;
        let expected = self.geometry.fragment_range(fragment).len();
        let actual = gradient.len();
        if expected == actual { Ok(()) } else { Err(ApplyError::Length { expected, actual }) }
    }

    /// A block to write to.
    pub(super) fn spare(&self) -> Result<Fresh<'_>, ApplyError> {
        let arena = self.words.arena();
        arena.take().ok_or_else(|| {
            let limit = arena.copies_max();
            ApplyError::Full { what: "stripe copies", used: arena.counts().1, limit }
        })
    }

    /// A block to convert the gradient in, if it is not f32 already.
    fn scratch(&self, gradient: &Gradient<'_>) -> Result<Option<Fresh<'_>>, ApplyError> {
        match gradient {
            Gradient::F32(_) => Ok(None),
            _ => self.spare().map(Some),
        }
    }

    /// The whole gradient is scanned only now, when it is known to be bad.
    #[cold]
    pub(super) fn refuse_gradient(&self, gradient: Gradient<'_>, scale: f32) -> ApplyError {
        let mut values = vec![0.0; gradient.len()];
        widen(self.optimizer.level(), gradient, &mut values);
        let bad = |value: &f32| !(value * scale).is_finite();
        ApplyError::NonFinite {
            count: values.iter().filter(|&value| bad(value)).count(),
            first_index: values.iter().position(bad).unwrap_or(0),
        }
    }

    #[cold]
    fn refuse_result(&self, fragment: usize, fresh: &[Fresh<'_>]) -> ApplyError {
        let len = self.geometry.fragment_range(fragment).len();
        let bad = (0..len).filter(|index| {
            let planes = fresh[index / self.geometry.stripe_len].planes();
            let offset = index % self.geometry.stripe_len;
            planes.chunks_exact(self.stride).any(|plane| !plane[offset].is_finite())
        });
        let (mut count, mut first_index) = (0, None);
        for index in bad {
            count += 1;
            first_index = first_index.or(Some(index));
        }
        ApplyError::ResultNonFinite { count, first_index: first_index.unwrap_or(0) }
    }
}

/// The elements as f32: as they are, or converted in the scratch block.
fn as_f32<'a>(
    store: &Store,
    gradient: Gradient<'a>,
    scratch: Option<&'a mut Fresh<'_>>,
) -> &'a [f32] {
    match (gradient, scratch) {
        (Gradient::F32(values), _) => values,
        (other, Some(scratch)) => {
            let target = &mut scratch.planes_mut()[..other.len()];
            widen(store.optimizer.level(), other, target);
            target
        }
        (_, None) => unreachable!("every type but f32 has a scratch block"),
    }
}
