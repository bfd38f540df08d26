//! Setting and copying planes: initial values, restoring, reading out.

use std::ops::Range;

use super::sync::Ordering;
use super::{Store, StoreError};

impl Store {
    /// Set elements `start..start + values.len()` of a plane: 0 = parameters, then state, then the
    /// parameters of one version ago, of two, and so on.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if there is no such plane or range, after the first record, or if memory for
    /// copies is short (some stripes may have been set then).
    pub fn load_plane(&self, plane: usize, start: usize, values: &[f32]) -> Result<(), StoreError> {
        self.expect_range(plane, start, values.len())?;
        let stop = start + values.len();
        let mut stripe = start / self.geometry.stripe_len;
        while stripe < self.stripes() && self.geometry.stripe_range(stripe).start < stop {
            let range = self.geometry.stripe_range(stripe);
            let (from, to) = (range.start.max(start), range.end.min(stop));
            let part = &values[from - start..to - start];
            let set = |planes: &mut [f32], plane: usize| {
                let offset = plane * self.stride + from - range.start;
                planes[offset..offset + part.len()].copy_from_slice(part);
            };
            match plane.saturating_sub(self.optimizer.planes()) {
                0 => self.rewrite(stripe, |planes| set(planes, plane))?,
                back => self.rewrite_past(stripe, back, |planes| set(planes, 0))?,
            }
            stripe += 1;
        }
        if Some(plane) == self.optimizer.told() && start < stop {
            let fragment_len = self.geometry.fragment_len;
            self.recount(start / fragment_len..stop.div_ceil(fragment_len));
        }
        Ok(())
    }

    /// Add up again what replicas are told of.
    fn recount(&self, fragments: Range<usize>) {
        for fragment in fragments {
            let _claim = self.fragments[fragment].claim();
            let mut told = 0.0;
            for stripe in self.geometry.fragment_stripes(fragment) {
                let len = self.geometry.stripe_range(stripe).len();
                let held = self.words.borrow(stripe);
                told += self.optimizer.sum_told(held.planes(), self.stride, len);
            }
            self.fragments[fragment].tell(told);
        }
    }

    /// Copy elements `start..start + target.len()` of a plane, stripe by stripe. Of a version that
    /// there was not, or that is kept no more: the oldest there is.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if there is no such plane or range; nothing is written then.
    pub fn read_plane(
        &self,
        plane: usize,
        start: usize,
        target: &mut [f32],
    ) -> Result<(), StoreError> {
        self.expect_range(plane, start, target.len())?;
        let mut at = start;
        let mut rest = target;
        while !rest.is_empty() {
            let stripe = at / self.geometry.stripe_len;
            let range = self.geometry.stripe_range(stripe);
            let (part, after) = rest.split_at_mut(rest.len().min(range.end - at));
            let mut get = |planes: &[f32], plane: usize| {
                let offset = plane * self.stride + at - range.start;
                part.copy_from_slice(&planes[offset..offset + part.len()]);
            };
            match plane.saturating_sub(self.optimizer.planes()) {
                0 => get(self.words.borrow(stripe).planes(), plane),
                back => self.with_past(stripe, back, |planes| get(planes, 0)),
            }
            at += part.len();
            rest = after;
        }
        Ok(())
    }

    /// Continue where an earlier store ended: its LSN, and every fragment's version, LSN and
    /// samples.
    ///
    /// # Errors
    ///
    /// [`StoreError`] after the first record, or if the numbers cannot belong to this store;
    /// nothing changes then.
    pub fn restore(
        &self,
        lsn: u64,
        versions: &[u64],
        fragment_lsns: &[u64],
        samples: &[u64],
    ) -> Result<(), StoreError> {
        let expected = self.fragments();
        let all = [("versions", versions), ("fragment_lsns", fragment_lsns), ("samples", samples)];
        for (name, values) in all {
            if values.len() != expected {
                let actual = values.len();
                return Err(StoreError::Fragments { name, actual, expected });
            }
        }
        if let Some(fragment) = fragment_lsns.iter().position(|&its| its > lsn) {
            let fragment_lsn = fragment_lsns[fragment];
            return Err(StoreError::Lsn { fragment, fragment_lsn, lsn });
        }
        self.expect_unsealed()?;
        self.order.restore(lsn);
        for fragment in 0..expected {
            let (version, lsn) = (versions[fragment], fragment_lsns[fragment]);
            let _claim = self.fragments[fragment].claim();
            self.fragments[fragment].restore(version, lsn, samples[fragment]);
        }
        Ok(())
    }

    /// Write what the optimizer's state is before the first update.
    pub(super) fn fill_initial_state(&self) -> Result<(), StoreError> {
        let initial: Vec<f32> =
            (0..self.optimizer.planes()).map(|plane| self.optimizer.initial(plane)).collect();
        if initial.iter().all(|value| value.to_bits() == 0) {
            return Ok(()); // Blocks come zeroed, and their pages stay untouched.
        }
        for stripe in 0..self.stripes() {
            self.rewrite(stripe, |planes| {
                for (plane, value) in planes.chunks_exact_mut(self.stride).skip(1).zip(&initial) {
                    plane.fill(*value);
                }
            })?;
        }
        if self.optimizer.told().is_some() {
            self.recount(0..self.fragments());
        }
        Ok(())
    }

    /// Publish a changed copy of a stripe that counts as no update.
    fn rewrite(&self, stripe: usize, change: impl FnOnce(&mut [f32])) -> Result<(), StoreError> {
        let fragment = stripe * self.geometry.stripe_len / self.geometry.fragment_len;
        let _claim = self.fragments[fragment].claim();
        self.expect_unsealed()?;
        let bytes = self.words.arena().block_bytes();
        let mut fresh = self.words.arena().take().ok_or(StoreError::Memory { bytes })?;
        fresh.planes_mut().copy_from_slice(self.words.borrow(stripe).planes());
        change(fresh.planes_mut());
        self.words.publish(stripe, fresh);
        Ok(())
    }

    pub(super) fn expect_unsealed(&self) -> Result<(), StoreError> {
        // ORDERING: Relaxed; for a fragment with a record, the claim orders it.
        if self.sealed.load(Ordering::Relaxed) {
            return Err(StoreError::Sealed { lsn: self.lsn() });
        }
        Ok(())
    }

    fn expect_range(&self, plane: usize, start: usize, len: usize) -> Result<(), StoreError> {
        let last = self.optimizer.planes() + self.history();
        if plane > last {
            return Err(StoreError::Plane { plane, last });
        }
        let stop = start.saturating_add(len);
        if stop > self.geometry.len {
            return Err(StoreError::Range { start, stop, len: self.geometry.len });
        }
        Ok(())
    }
}
