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

impl Check {
    /// What was found in the elements from `start` on, behind those looked at before.
    pub(crate) fn add(&mut self, start: usize, found: Check) {
        self.count += found.count;
        self.first_index = self.first_index.or(found.first_index.map(|index| start + index));
        self.sum_of_squares += found.sum_of_squares;
    }
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
        Gradient::F32(values) => scan(level, values),
        Gradient::F64(values) => scan(level, values),
        Gradient::F16(words) => scan::<F16>(level, bytemuck::cast_slice(words)),
        Gradient::Bf16(words) => scan::<Bf16>(level, bytemuck::cast_slice(words)),
        Gradient::Unaligned(raw) => match values.dtype() {
            DType::F32 => scan::<f32>(level, &bytemuck::pod_collect_to_vec(raw.bytes())),
            DType::F64 => scan::<f64>(level, &bytemuck::pod_collect_to_vec(raw.bytes())),
            DType::F16 => scan::<F16>(level, &bytemuck::pod_collect_to_vec(raw.bytes())),
            DType::Bf16 => scan::<Bf16>(level, &bytemuck::pod_collect_to_vec(raw.bytes())),
        },
    }
}

/// How many elements are zero, of either sign: what a narrower type has more of has underflowed.
#[must_use]
pub fn zeros(level: Level, values: Gradient<'_>) -> usize {
    match values {
        Gradient::F32(values) => level.run(Zeros { values }),
        Gradient::F64(values) => level.run(Zeros { values }),
        Gradient::F16(words) => level.run(Zeros::<F16> { values: bytemuck::cast_slice(words) }),
        Gradient::Bf16(words) => level.run(Zeros::<Bf16> { values: bytemuck::cast_slice(words) }),
        Gradient::Unaligned(raw) => match values.dtype() {
            DType::F32 => zeros_in::<f32>(level, raw.bytes()),
            DType::F64 => zeros_in::<f64>(level, raw.bytes()),
            DType::F16 => zeros_in::<F16>(level, raw.bytes()),
            DType::Bf16 => zeros_in::<Bf16>(level, raw.bytes()),
        },
    }
}

fn zeros_in<E: Element>(level: Level, bytes: &[u8]) -> usize {
    level.run(Zeros::<E> { values: &bytemuck::pod_collect_to_vec(bytes) })
}

/// Add up first and look later: squares are never negative, so one element that is not finite
/// leaves a total that is not, and elements are looked at one by one only then.
fn scan<E: Element>(level: Level, values: &[E]) -> Check {
    let sum_of_squares = level.run(Squares { values });
    if sum_of_squares.is_finite() {
        return Check { count: 0, first_index: None, sum_of_squares };
    }
    inspect(level, values)
}

/// Bad elements, or squares that do not fit in an f64.
#[cold]
fn inspect<E: Element>(level: Level, values: &[E]) -> Check {
    let (count, sum_of_squares) = level.run(Inspect { values });
    let first_index = values.iter().position(|value| !value.exact().is_finite());
    Check { count, first_index, sum_of_squares }
}

/// The sum of all elements, in f64, in the order of [`check`].
pub(crate) fn sum(level: Level, values: &[f32]) -> f64 {
    level.run(Sum { values })
}

struct Sum<'a> {
    values: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0_f64; LANES];
        let (chunks, tail) = self.values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += f64::from(chunk[lane]);
            }
        }
        for lane in 0..tail.len() {
            sums[lane] += f64::from(tail[lane]);
        }
        total(&sums)
    }
}

/// The sum of all squares.
struct Squares<'a, E> {
    values: &'a [E],
}

impl<E: Element> Kernel for Squares<'_, E> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0_f64; LANES];
        let (chunks, tail) = self.values.as_chunks::<LANES>();
        for chunk in chunks {
            add(&mut sums, chunk);
        }
        // The last elements fill up with zeros, which change no sum.
        let mut last = [E::zeroed(); LANES];
        last[..tail.len()].copy_from_slice(tail);
        add(&mut sums, &last);
        total(&sums)
    }
}

#[inline(always)]
fn add<E: Element>(sums: &mut [f64; LANES], chunk: &[E; LANES]) {
    let squares = chunk.map(|value| value.exact() * value.exact());
    for lane in 0..LANES {
        sums[lane] += squares[lane];
    }
}

/// How many elements are not finite, and the sum of the squares of the others.
struct Inspect<'a, E> {
    values: &'a [E],
}

impl<E: Element> Kernel for Inspect<'_, E> {
    type Output = (usize, f64);

    #[inline(always)]
    fn run(self) -> (usize, f64) {
        let mut sums = [0.0_f64; LANES];
        let mut count = 0;
        for chunk in self.values.chunks(LANES) {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                let exact = value.exact();
                let finite = exact.is_finite();
                *sum += if finite { exact * exact } else { 0.0 };
                count += usize::from(!finite);
            }
        }
        (count, total(&sums))
    }
}

/// How many elements are zero.
struct Zeros<'a, E> {
    values: &'a [E],
}

impl<E: Element> Kernel for Zeros<'_, E> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        // Counted by the chunk in 32 bits, so that lanes stay as narrow as the elements.
        let mut count = 0;
        for chunk in self.values.chunks(1 << 16) {
            let zeros: u32 = chunk.iter().map(|value| u32::from(value.exact() == 0.0)).sum();
            count += zeros as usize;
        }
        count
    }
}

/// Partial sums, added in pairs. Out of the loop's sight: if the compiler sees which lanes are
/// added at the end it shuffles them in every round.
#[inline(never)]
fn total(sums: &[f64; LANES]) -> f64 {
    let mut sums = *sums;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::{Check, check, zeros};
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
    fn zeros_of_either_sign_are_counted_and_nothing_else() {
        let mut values = vec![1e-45_f32; 100];
        values[3] = 0.0;
        values[98] = -0.0;
        values[99] = f32::NAN;
        let odd = [&[0_u8], bytemuck::cast_slice(&values)].concat();
        for level in Level::available() {
            assert_eq!(zeros(level, Gradient::F32(&values)), 2);
            assert_eq!(zeros(level, Gradient::from_bytes(&odd[1..], DType::F32).unwrap()), 2);
            assert_eq!(zeros(level, Gradient::F16(&[0, 0x8000, 1, 0x7c00])), 2);
            assert_eq!(zeros(level, Gradient::Bf16(&[0, 0x8000, 1])), 2);
            assert_eq!(zeros(level, Gradient::F64(&[0.0, 1e-320])), 1);
        }
    }

    #[test]
    fn squares_beyond_f64_are_no_bad_elements() {
        let values = [1e200_f64, 2.0, f64::NAN, 1e200];
        for level in Level::available() {
            let found = check(level, Gradient::F64(&values[..2]));
            assert_eq!((found.count, found.first_index), (0, None));
            assert!(found.sum_of_squares.is_infinite());
            let found = check(level, Gradient::F64(&values));
            assert_eq!((found.count, found.first_index), (1, Some(2)));
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
