//! The versions of a fragment that its parts look back at.
//!
//! # Theory
//!
//! A stale gradient is a function of the parameters that its replica had, and some parts of an
//! optimizer compare those with what they are now. A replica says which version that was, and a
//! fragment's past versions are what it published: so a store keeps the blocks of the last few, in
//! place of a copy a replica. A retired block is immutable, and keeping it costs a reference and no
//! copy. Which of them an update sees depends on its record's base version alone: contents stay a
//! function of the journal.
//!
//! A record whose base is kept no more sees the oldest that is; [`Store::bases_gone`] counts those.
//! A round's base is that of the record in it that was the most stale.
//!
//! # Limits
//!
//! [`Optimizer::history`] versions a fragment, each a whole copy of its planes. A store whose
//! optimizer needs none has none, and pays nothing.
//!
//! [`Optimizer::history`]: crate::optimizer::Optimizer::history

use std::collections::VecDeque;

use super::block::Held;
use super::sync::Ordering;
use super::{Store, StoreError};

/// A fragment's past versions, the newest first. Only the holder of its claim has it.
#[derive(Default)]
pub(super) struct History(VecDeque<Box<[Held]>>);

impl History {
    /// One that is empty, unless nobody looks back at all.
    pub(super) fn of(versions: usize) -> Option<Box<Self>> {
        (versions > 0).then(Box::default)
    }

    /// A stripe `back` versions ago, or in the oldest that is kept; `None`: as it is now.
    pub(super) fn stripe(&self, back: u64, place: usize) -> Option<&Held> {
        let oldest = self.0.len().min(usize::try_from(back).unwrap_or(usize::MAX));
        Some(&self.0[oldest.checked_sub(1)?][place])
    }
}

impl Store {
    /// Versions that are remembered of each fragment, beside the newest.
    #[must_use]
    pub fn history(&self) -> usize {
        self.optimizer.history()
    }

    /// Updates that saw the oldest version kept in place of an older one, so far.
    #[must_use]
    pub fn bases_gone(&self) -> u64 {
        // ORDERING: Relaxed, a statistic.
        self.bases_gone.load(Ordering::Relaxed)
    }

    /// Keep what was published until now. The update that replaced it looked `back` so far.
    pub(super) fn remember(&self, history: &mut History, old: Box<[Held]>, back: u64) {
        let kept = &mut history.0;
        if back > kept.len() as u64 {
            // ORDERING: Relaxed, here and below; statistics.
            self.bases_gone.fetch_add(1, Ordering::Relaxed);
        }
        self.remembered.fetch_add(old.len(), Ordering::Relaxed);
        kept.push_front(old);
        if kept.len() > self.history() {
            self.forget(kept.pop_back());
        }
    }

    fn forget(&self, version: Option<Box<[Held]>>) {
        for held in version.into_iter().flatten() {
            self.remembered.fetch_sub(1, Ordering::Relaxed);
            self.words.release(held);
        }
    }

    /// Set elements of a stripe `back` versions ago, before the first record.
    pub(super) fn rewrite_past(
        &self,
        stripe: usize,
        back: usize,
        change: impl FnOnce(&mut [f32]),
    ) -> Result<(), StoreError> {
        let fragment = stripe * self.geometry.stripe_len / self.geometry.fragment_len;
        let mut owned = self.fragments[fragment].claim();
        self.expect_unsealed()?;
        let Some(history) = owned.history.as_deref_mut() else {
            return Ok(()); // The range was checked: there is one.
        };
        let stripes = self.geometry.fragment_stripes(fragment);
        let bytes = self.words.arena().block_bytes();
        let copy = |source: &[f32]| {
            let mut fresh = self.words.arena().take().ok_or(StoreError::Memory { bytes })?;
            fresh.planes_mut()[..self.stride].copy_from_slice(&source[..self.stride]);
            Ok(fresh)
        };
        while history.0.len() < back {
            let mut version = Vec::with_capacity(stripes.len());
            for stripe in stripes.clone() {
                let fresh = copy(self.words.borrow(stripe).planes())?;
                version.push(self.words.hold(fresh));
            }
            self.remembered.fetch_add(version.len(), Ordering::Relaxed);
            history.0.push_back(version.into());
        }
        let held = &mut history.0[back - 1][stripe - stripes.start];
        let mut fresh = copy(self.words.arena().planes(held))?;
        change(fresh.planes_mut());
        self.words.release(std::mem::replace(held, self.words.hold(fresh)));
        Ok(())
    }

    /// Look at a stripe `back` versions ago.
    pub(super) fn with_past<R>(
        &self,
        stripe: usize,
        back: usize,
        look: impl FnOnce(&[f32]) -> R,
    ) -> R {
        let fragment = stripe * self.geometry.stripe_len / self.geometry.fragment_len;
        let place = stripe - self.geometry.fragment_stripes(fragment).start;
        let owned = self.fragments[fragment].claim();
        let held = owned.history.as_ref().and_then(|history| history.stripe(back as u64, place));
        match held {
            Some(held) => look(self.words.arena().planes(held)),
            None => look(self.words.borrow(stripe).planes()),
        }
    }
}
