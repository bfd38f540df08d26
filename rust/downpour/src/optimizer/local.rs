//! A chain at work on one copy of the parameters, which others do not read: a replica's own.

use super::{Context, Optimizer, PIECE, Stripe};
use crate::kernel::KernelError;
use crate::push::Arrays;

/// An optimizer, its state, and how far it has come.
///
/// A store publishes what it computes, so it writes elsewhere than it reads. Here the parameters
/// are the caller's and are written in place, a piece at a time through memory that stays in the
/// nearest cache: the same loops, and so the same bits.
#[derive(Debug)]
pub struct Local {
    optimizer: Optimizer,
    /// The state planes, one behind the other, each as long as the parameters.
    state: Vec<f32>,
    len: usize,
    /// Steps since the state began.
    count: u64,
    steps: u64,
    samples: u64,
}

impl Local {
    /// For `len` parameters, before the first step.
    #[must_use]
    pub fn new(optimizer: Optimizer, len: usize) -> Self {
        let state = vec![0.0; len * optimizer.planes()];
        let mut local = Self { optimizer, state, len, count: 0, steps: 0, samples: 0 };
        local.begin();
        local
    }

    /// Forget the state: the next step is the first. What schedules count goes on.
    pub fn begin(&mut self) {
        self.count = 0;
        let len = self.len.max(1);
        for (plane, values) in self.state.chunks_mut(len).enumerate() {
            values.fill(self.optimizer.initial(plane));
        }
    }

    /// Bytes of the state.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of_val(self.state.as_slice())
    }

    /// Step `parameters` by a gradient over so many samples; says whether all of it stayed finite.
    ///
    /// Nothing is taken back where it did not: parameters and state are as they came out.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] if the lengths differ; nothing is written then.
    pub fn step(
        &mut self,
        parameters: &mut [f32],
        gradient: &Arrays<'_>,
        samples: u64,
    ) -> Result<bool, KernelError> {
        let (source_len, target_len) = (gradient.len(), parameters.len());
        if source_len != target_len || target_len != self.len {
            return Err(KernelError::Length { source_len, target_len });
        }
        (self.count, self.steps) = (self.count + 1, self.steps + 1);
        let context = Context {
            count: self.steps,
            rate: 1.0,
            staleness: 0,
            round_count: 1,
            samples_before: self.samples,
            samples: self.samples + samples,
        };
        let prepared = self.optimizer.prepare_since(context, self.count);
        self.samples += samples;
        let planes = 1 + self.optimizer.planes();
        let (mut old, mut new) = (vec![0.0; planes * PIECE], vec![0.0; planes * PIECE]);
        let mut values = vec![0.0; PIECE];
        let mut is_finite = true;
        for start in (0..self.len).step_by(PIECE) {
            let len = PIECE.min(self.len - start);
            let values = &mut values[..len];
            gradient.read(self.optimizer.level(), start, values);
            let kept = self.state.chunks(self.len).map(|plane| &plane[start..][..len]);
            let piece = &mut parameters[start..start + len];
            old[..len].copy_from_slice(piece);
            for (plane, values) in kept.enumerate() {
                old[(1 + plane) * PIECE..][..len].copy_from_slice(values);
            }
            let stripe = Stripe {
                before: [&old[..PIECE], &old[..PIECE]],
                old: &old,
                new: &mut new,
                stride: PIECE,
                gradient: values,
                scale: 1.0,
                bypass: false,
            };
            let (worst, _) = self.optimizer.update(prepared, stripe);
            is_finite &= worst.gradient_finite() && worst.result_finite();
            piece.copy_from_slice(&new[..len]);
            let kept = self.state.chunks_mut(self.len).map(|plane| &mut plane[start..][..len]);
            for (plane, values) in kept.enumerate() {
                values.copy_from_slice(&new[(1 + plane) * PIECE..][..len]);
            }
        }
        Ok(is_finite)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Local;
    use crate::kernel::{Gradient, KernelError};
    use crate::optimizer::{Optimizer, PIECE};
    use crate::push::{Arrays, Source};

    fn momentum(len: usize) -> Local {
        let numbers = [("lr", 0.5), ("momentum", 0.5), ("nesterov", 0.0)];
        let numbers: BTreeMap<_, _> = numbers.map(|(name, value)| (name.to_owned(), value)).into();
        Local::new(Optimizer::compile(&[("momentum".to_owned(), numbers)], None).unwrap(), len)
    }

    fn gradient(values: &[f32]) -> Arrays<'_> {
        [Source::Values(Gradient::F32(values))].into_iter().collect()
    }

    #[test]
    fn each_element_has_its_own_state_wherever_pieces_end() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3] {
            let (mut local, mut p) = (momentum(len), vec![0.0; len]);
            let steps: Vec<f32> = (0..len).map(|index| [0.0, 1.0, 3.0, -2.0][index % 4]).collect();
            assert!(local.step(&mut p, &gradient(&steps), 1).unwrap());
            assert!(local.step(&mut p, &gradient(&steps), 1).unwrap());
            // b = g, then 1.5 g: together -0.5 * 2.5 g.
            assert_eq!(p, steps.iter().map(|g| -1.25 * g).collect::<Vec<_>>());
            assert_eq!(local.size(), 4 * len);
            local.begin();
            assert!(local.step(&mut p, &gradient(&steps), 1).unwrap());
            assert_eq!(p, steps.iter().map(|g| -1.75 * g).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_does_not_fit_changes_nothing_and_what_overflows_is_said() {
        let (mut local, mut p) = (momentum(3), vec![1.0; 3]);
        let error = local.step(&mut p, &gradient(&[1.0; 2]), 1).unwrap_err();
        assert_eq!(error, KernelError::Length { source_len: 2, target_len: 3 });
        assert!(local.step(&mut p[..2], &gradient(&[1.0; 2]), 1).is_err());
        assert_eq!(p, [1.0; 3]);
        assert!(local.step(&mut p, &gradient(&[0.0, f32::MAX, 0.0]), 1).unwrap());
        assert!(!local.step(&mut p, &gradient(&[0.0, f32::MAX, 0.0]), 1).unwrap());
    }
}
