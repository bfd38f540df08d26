//! Whole runs of elements from one type to another.

use super::convert::{Bf16, Element, F16};
use super::{DType, Gradient, Kernel, KernelError, Level};

/// Elements converted at a time when an operand is not aligned: small enough for the stack and L1.
const PIECE: usize = 256;

/// Convert `source` to `target_dtype`, element by element, into `target`'s bytes (any address).
///
/// Rounds to nearest, ties to even, once: f64 to f16 is not rounded through f32.
///
/// # Errors
///
/// [`KernelError::Length`] or [`KernelError::Ragged`] if `target` has not room for exactly
/// `source.len()` elements; nothing is written then.
pub fn cast(
    level: Level,
    source: Gradient<'_>,
    target: &mut [u8],
    target_dtype: DType,
) -> Result<(), KernelError> {
    let size = target_dtype.size();
    if !target.len().is_multiple_of(size) {
        return Err(KernelError::Ragged { bytes: target.len(), size });
    }
    let target_len = target.len() / size;
    if source.len() != target_len {
        return Err(KernelError::Length { source_len: source.len(), target_len });
    }
    match target_dtype {
        DType::F32 => into::<f32>(level, source, target),
        DType::F64 => into::<f64>(level, source, target),
        DType::F16 => into::<F16>(level, source, target),
        DType::Bf16 => into::<Bf16>(level, source, target),
    }
    Ok(())
}

/// Convert to f32. The lengths must match: the caller checked.
pub(crate) fn widen(level: Level, source: Gradient<'_>, target: &mut [f32]) {
    from_any(level, source, target);
}

fn into<T: Element>(level: Level, source: Gradient<'_>, target: &mut [u8]) {
    if let Ok(aligned) = bytemuck::try_cast_slice_mut::<u8, T>(target) {
        return from_any(level, source, aligned);
    }
    let mut piece = [T::zeroed(); PIECE];
    for (index, bytes) in target.chunks_mut(PIECE * size_of::<T>()).enumerate() {
        let len = bytes.len() / size_of::<T>();
        let start = index * PIECE;
        from_any(level, source.slice(start, start + len), &mut piece[..len]);
        bytes.copy_from_slice(bytemuck::cast_slice(&piece[..len]));
    }
}

fn from_any<T: Element>(level: Level, source: Gradient<'_>, target: &mut [T]) {
    match source {
        Gradient::F32(source) => level.run(Cast { source, target }),
        Gradient::F64(source) => level.run(Cast { source, target }),
        Gradient::F16(words) => {
            level.run(Cast { source: bytemuck::cast_slice::<u16, F16>(words), target });
        }
        Gradient::Bf16(words) => {
            level.run(Cast { source: bytemuck::cast_slice::<u16, Bf16>(words), target });
        }
        Gradient::Unaligned(raw) => match source.dtype() {
            DType::F32 => pieces::<f32, T>(level, raw.bytes(), target),
            DType::F64 => pieces::<f64, T>(level, raw.bytes(), target),
            DType::F16 => pieces::<F16, T>(level, raw.bytes(), target),
            DType::Bf16 => pieces::<Bf16, T>(level, raw.bytes(), target),
        },
    }
}

/// Copy unaligned elements to an aligned piece on the stack, then convert that.
fn pieces<S: Element, T: Element>(level: Level, source: &[u8], target: &mut [T]) {
    let mut piece = [S::zeroed(); PIECE];
    for (bytes, target) in source.chunks(PIECE * size_of::<S>()).zip(target.chunks_mut(PIECE)) {
        let piece = &mut piece[..target.len()];
        bytemuck::cast_slice_mut(piece).copy_from_slice(bytes);
        level.run(Cast { source: &*piece, target });
    }
}

struct Cast<'a, S, T> {
    source: &'a [S],
    target: &'a mut [T],
}

impl<S: Element, T: Element> Kernel for Cast<'_, S, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            // Known at compile time: only f64 needs the way through f64.
            *target = if size_of::<S>() == 8 {
                T::from_f64(source.exact())
            } else {
                T::from_f32(source.widen())
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cast;
    use crate::kernel::{DType, Gradient, KernelError, Level};

    #[test]
    fn any_addresses_give_the_same_bytes() {
        let values: Vec<f32> = (0..600_u16).map(|i| f32::from(i) * 0.37 - 100.0).collect();
        let mut expected = vec![0_u8; 1200];
        cast(Level::Baseline, Gradient::F32(&values), &mut expected, DType::F16).unwrap();
        let odd = [&[0_u8], bytemuck::cast_slice(&values)].concat();
        let source = Gradient::from_bytes(&odd[1..], DType::F32).unwrap();
        for level in Level::available() {
            let mut target = vec![0_u8; 1201];
            cast(level, source, &mut target[1..], DType::F16).unwrap();
            assert_eq!(target[1..], expected);
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let source = Gradient::F32(&[1.0, 2.0]);
        let mut room = [7_u8; 9];
        assert_eq!(
            cast(Level::best(), source, &mut room[..6], DType::F16),
            Err(KernelError::Length { source_len: 2, target_len: 3 })
        );
        assert_eq!(
            cast(Level::best(), source, &mut room, DType::F32),
            Err(KernelError::Ragged { bytes: 9, size: 4 })
        );
        assert_eq!(room, [7; 9]);
    }
}
