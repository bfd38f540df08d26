//! Adding one run of elements to another: accrual, the replica's local step, and rounds of a shard.

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

/// `target += factor * source`, or `target = factor * source` when `overwrite`: each product is
/// rounded, then each sum. The lengths must match: the caller checked.
pub(crate) fn add_scaled(
    level: Level,
    target: &mut [f32],
    source: Gradient<'_>,
    factor: f32,
    overwrite: bool,
) {
    each_piece(level, target, source, |target, source| {
        if overwrite {
            level.run(Scale { target, source, factor });
        } else {
            level.run(AddScaled { target, source, factor });
        }
    });
}

/// Whether every element of `factor * source` is finite as f32.
pub(crate) fn are_finite(level: Level, source: Gradient<'_>, factor: f32) -> bool {
    if let Gradient::F32(source) = source {
        return level.run(AreFinite { source, factor });
    }
    let mut piece = [0.0_f32; PIECE];
    (0..source.len()).step_by(PIECE).all(|start| {
        let stop = source.len().min(start + PIECE);
        let piece = &mut piece[..stop - start];
        widen(level, source.slice(start, stop), piece);
        level.run(AreFinite { source: piece, factor })
    })
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

struct Scale<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
    factor: f32,
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target = self.factor * source;
        }
    }
}

struct AddScaled<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
    factor: f32,
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target += self.factor * source;
        }
    }
}

struct AreFinite<'a> {
    source: &'a [f32],
    factor: f32,
}

impl Kernel for AreFinite<'_> {
    type Output = bool;

    /// The largest magnitude decides: NaN and infinity are above every finite number's bits.
    #[inline(always)]
    fn run(self) -> bool {
        let mut worst = 0;
        for source in self.source {
            worst = worst.max((self.factor * source).to_bits() & 0x7fff_ffff);
        }
        worst < 0x7f80_0000
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
    use super::{accumulate, add_scaled, are_finite, step};
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
    fn scaled_sums_are_rounded_twice_in_any_type_at_any_level() {
        let source: Vec<f64> = (0..3000_i32).map(|i| f64::from(i) * 0.37 - 500.0).collect();
        #[allow(clippy::cast_possible_truncation)]
        let narrow: Vec<f32> = source.iter().map(|&value| value as f32).collect();
        for level in Level::available() {
            for gradient in [Gradient::F64(&source), Gradient::F32(&narrow)] {
                let mut target = vec![f32::NAN; 3000];
                add_scaled(level, &mut target, gradient, 0.1, true);
                add_scaled(level, &mut target, gradient, -0.3, false);
                for (target, source) in target.iter().zip(&narrow) {
                    let product = -0.3 * source;
                    let expected = 0.1 * source + product;
                    assert_eq!(target.to_bits(), expected.to_bits());
                }
                assert!(are_finite(level, gradient, 1e30) && !are_finite(level, gradient, 1e37));
            }
            let mut poison = source.clone();
            for bad in [f64::NAN, f64::NEG_INFINITY, 1e300] {
                poison[2999] = bad;
                assert!(!are_finite(level, Gradient::F64(&poison), 0.5));
            }
            assert!(are_finite(level, Gradient::F32(&[]), 1.0));
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
