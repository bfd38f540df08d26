//! Adding one run of elements to another: accrual and the replica's local step.

use super::{Gradient, Kernel, KernelError, Level, widen};

/// Elements converted at a time when the source is not f32.
const PIECE: usize = 1024;

/// `target += source`, or `target = source` when `overwrite`.
///
/// # Errors
///
/// [`KernelError::Length`] if the lengths differ; nothing is written then.
pub fn accumulate(
    level: Level,
    target: &mut [f32],
    source: Gradient<'_>,
    overwrite: bool,
) -> Result<(), KernelError> {
    same_len(target, source)?;
    if overwrite {
        widen(level, source, target);
    } else {
        each_piece(level, target, source, |target, source| level.run(Add { target, source }));
    }
    Ok(())
}

/// `target -= rate * source`: plain gradient descent on the replica's own copy.
///
/// # Errors
///
/// [`KernelError::Length`] if the lengths differ; nothing is written then.
pub fn step(
    level: Level,
    target: &mut [f32],
    source: Gradient<'_>,
    rate: f32,
) -> Result<(), KernelError> {
    same_len(target, source)?;
    each_piece(level, target, source, |target, source| level.run(Step { target, source, rate }));
    Ok(())
}

fn same_len(target: &[f32], source: Gradient<'_>) -> Result<(), KernelError> {
    let (source_len, target_len) = (source.len(), target.len());
    if source_len == target_len {
        Ok(())
    } else {
        Err(KernelError::Length { source_len, target_len })
    }
}

/// Hand over pieces of the target with the same elements of the source as f32.
fn each_piece(
    level: Level,
    target: &mut [f32],
    source: Gradient<'_>,
    mut body: impl FnMut(&mut [f32], &[f32]),
) {
    if let Gradient::F32(source) = source {
        return body(target, source);
    }
    let mut piece = [0.0_f32; PIECE];
    for (index, target) in target.chunks_mut(PIECE).enumerate() {
        let piece = &mut piece[..target.len()];
        let start = index * PIECE;
        widen(level, source.slice(start, start + target.len()), piece);
        body(target, piece);
    }
}

struct Add<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target += source;
        }
    }
}

struct Step<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
    rate: f32,
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target -= self.rate * source;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{accumulate, step};
    use crate::kernel::{Gradient, KernelError, Level};

    #[test]
    fn adds_overwrites_and_steps_in_any_type() {
        let source: Vec<f64> = (0..3000_i32).map(f64::from).collect();
        for level in Level::available() {
            let mut target = vec![1.0_f32; 3000];
            accumulate(level, &mut target, Gradient::F64(&source), false).unwrap();
            assert_eq!(target[2999].to_bits(), 3000.0_f32.to_bits());
            step(level, &mut target, Gradient::F64(&source), 0.5).unwrap();
            assert_eq!(target[2000].to_bits(), 1001.0_f32.to_bits());
            accumulate(level, &mut target, Gradient::F64(&source), true).unwrap();
            assert_eq!(target[2000].to_bits(), 2000.0_f32.to_bits());
        }
    }

    #[test]
    fn unequal_lengths_change_nothing() {
        let mut target = [1.0_f32; 2];
        let refused = KernelError::Length { source_len: 3, target_len: 2 };
        let source = Gradient::F32(&[1.0; 3]);
        assert_eq!(step(Level::best(), &mut target, source, 1.0), Err(refused.clone()));
        assert_eq!(accumulate(Level::best(), &mut target, source, true), Err(refused));
        assert_eq!(target.map(f32::to_bits), [1.0_f32.to_bits(); 2]);
    }
}
