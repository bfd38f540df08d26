//! Are all elements finite, and how large are they?

use super::convert::{Bf16, Element, F16};
use super::{DType, Gradient, Kernel, LANES, Level};

/// What a scan found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Check {
    /// Elements that are NaN or infinite.
    pub count: usize,
    /// The first of them.
    pub first_index: Option<usize>,
    /// Sum of the squares of the finite elements, in f64.
    pub sum_of_squares: f64,
}

/// Scan elements once: how many are not finite, where the first is, and the sum of squares of the
/// others.
///
/// # Numerics
///
/// Element `i` is added to partial sum `i % 16`; the partial sums are then added in pairs, so the
/// bits do not depend on the level.
#[must_use]
pub fn check(level: Level, values: Gradient<'_>) -> Check {
    match values {
        Gradient::F32(values) => scan(level, values, 0),
        Gradient::F64(values) => scan(level, values, 0),
        Gradient::F16(words) => scan::<F16>(level, bytemuck::cast_slice(words), 0),
        Gradient::Bf16(words) => scan::<Bf16>(level, bytemuck::cast_slice(words), 0),
        Gradient::Unaligned(raw) => match values.dtype() {
            DType::F32 => scan::<f32>(level, &bytemuck::pod_collect_to_vec(raw.bytes()), 0),
            DType::F64 => scan::<f64>(level, &bytemuck::pod_collect_to_vec(raw.bytes()), 0),
            DType::F16 => scan::<F16>(level, &bytemuck::pod_collect_to_vec(raw.bytes()), 0),
            DType::Bf16 => scan::<Bf16>(level, &bytemuck::pod_collect_to_vec(raw.bytes()), 0),
        },
    }
}

/// Scan `values`, whose first element has the index `start`.
fn scan<E: Element>(level: Level, values: &[E], start: usize) -> Check {
    let (count, sum_of_squares) = level.run(Scan { values });
    let first_index = if count == 0 {
        None
    } else {
        values.iter().position(|value| !value.exact().is_finite()).map(|index| start + index)
    };
    Check { count, first_index, sum_of_squares }
}

struct Scan<'a, E> {
    values: &'a [E],
}

impl<E: Element> Kernel for Scan<'_, E> {
    type Output = (usize, f64);

    #[inline(always)]
    fn run(self) -> (usize, f64) {
        let mut sums = [0.0_f64; LANES];
        let mut counts = [0_u64; LANES];
        let (chunks, tail) = self.values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                add(chunk[lane], &mut sums[lane], &mut counts[lane]);
            }
        }
        for (lane, &value) in tail.iter().enumerate() {
            add(value, &mut sums[lane], &mut counts[lane]);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
                counts[lane] += counts[lane + width];
            }
            width /= 2;
        }
        (usize::try_from(counts[0]).unwrap_or(usize::MAX), sums[0])
    }
}

#[inline(always)]
fn add<E: Element>(value: E, sum: &mut f64, count: &mut u64) {
    let exact = value.exact();
    let finite = exact.abs() < f64::INFINITY;
    *sum += if finite { exact * exact } else { 0.0 };
    *count += u64::from(!finite);
}

#[cfg(test)]
mod tests {
    use super::{Check, check};
    use crate::kernel::{DType, Gradient, Level};

    #[test]
    fn counts_and_places_what_is_not_finite() {
        let mut values = vec![2.0_f32; 100];
        values[37] = f32::NAN;
        values[99] = f32::NEG_INFINITY;
        for level in Level::available() {
            let found = check(level, Gradient::F32(&values));
            assert_eq!((found.count, found.first_index), (2, Some(37)));
            assert!((found.sum_of_squares - 98.0 * 4.0).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn nothing_is_nothing_and_bytes_may_lie_anywhere() {
        assert_eq!(check(Level::best(), Gradient::F64(&[])), Check::default());
        let room = [0_u64, f64::INFINITY.to_bits(), 0];
        let bytes: &[u8] = bytemuck::cast_slice(&room);
        let odd = [&[0_u8], bytes].concat();
        let found = check(Level::best(), Gradient::from_bytes(&odd[1..], DType::F64).unwrap());
        assert_eq!(found.first_index, Some(1));
    }
}
