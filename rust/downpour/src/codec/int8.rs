//! One byte an element and one scale a block.
//!
//! # Layout
//!
//! `n` elements in `b = ceil(n / block)` blocks, the last of which may be shorter. Little-endian.
//!
//! | offset | bytes | what |
//! |---:|---:|---|
//! | 0 | 4 b | the scale of each block, f32 |
//! | 4 b | n | the code of each element, i8 |
//!
//! An element decodes to `code * scale` in f32, whatever the two are.
//!
//! # Encoding
//!
//! Per block of compensated elements `x`, all in f32 and rounded to nearest, ties to even:
//!
//! ```text
//! scale = max |x| / 127          0 if that is not a normal number
//! code  = round(x * (1 / scale)) 0 if the scale is 0
//! ```
//!
//! Codes are -127 to 127. An error is at most `scale / 2 * (1 + 2^-14)`: a product and a quotient
//! are rounded before the code is, and the decoded element after it. The residual is exact,
//! `code * scale + residual` is `x`: where the code is not 0, `x` and what it decodes to are within
//! a factor of two, and the difference of such numbers is one (Sterbenz 1974).
//!
//! A block whose largest element is below `127 * 2^-126`, all zeros among them, has scale 0 and
//! leaves everything in the residual: subnormal scales would break both promises. A block in which
//! `127 * scale` would be infinite is refused, as NaN and infinity are: nothing this codec sends
//! decodes to them.
//!
//! Not random: rounding is deterministic, and unbiased over time by the feedback (Karimireddy et
//! al. 2019), not by chance as in QSGD.

use super::format::{Bad, Format, Listed, Ragged};
use crate::kernel::{Kernel, Level};
use crate::number::{Bound, Number, Numbers};

const SCALE_SIZE: usize = size_of::<f32>();

/// The largest code.
const CODE_MAX: f32 = 127.0;

/// Added to a number below 2^22 it leaves the nearest whole number in the low bits of the sum:
/// rounding that every instruction set has, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Where the sign is not.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// The format, with elements a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Int8 {
    block: usize,
}

impl Listed for Int8 {
    const NAME: &'static str = "int8";
    const NUMBER: u8 = 1;
    const NUMBERS: &'static [Number] = &[Number::new("block", Bound::Block)];

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within its bound")]
    fn new(numbers: &Numbers) -> Self {
        Self { block: numbers.double("block") as usize }
    }
}

impl Int8 {
    /// Bytes of the scales of `len` elements.
    fn scales_size(self, len: usize) -> usize {
        len.div_ceil(self.block).saturating_mul(SCALE_SIZE)
    }
}

impl Format for Int8 {
    fn size_max(&self, len: usize) -> usize {
        self.scales_size(len).saturating_add(len)
    }

    fn encode(
        &self,
        level: Level,
        gradient: &[f32],
        residual: &mut [f32],
        target: &mut [u8],
    ) -> Result<usize, Bad> {
        let (block, size) = (self.block, self.size_max(gradient.len()));
        let (scales, codes) = target[..size].split_at_mut(self.scales_size(gradient.len()));
        // All scales before any code: only then is it known that there is no bad element.
        if !level.run(Measure { block, gradient, residual, scales }) {
            return Err(bad(gradient, residual));
        }
        level.run(Quantise { block, gradient, residual, scales, codes });
        Ok(size)
    }

    fn decode(&self, level: Level, bytes: &[u8], target: &mut [f32]) -> Result<(), Ragged> {
        let expected = self.size_max(target.len());
        if bytes.len() != expected {
            return Err(Ragged { expected });
        }
        let (scales, codes) = bytes.split_at(self.scales_size(target.len()));
        level.run(Decode { block: self.block, scales, codes, target });
        Ok(())
    }
}

/// The scale of a block by its largest magnitude; NaN if there is none.
#[inline(always)]
fn scale_of(largest: f32) -> f32 {
    let scale = largest / CODE_MAX;
    if !(scale * CODE_MAX).is_finite() {
        f32::NAN
    } else if scale < f32::MIN_POSITIVE {
        0.0
    } else {
        scale
    }
}

#[inline(always)]
fn scale_at(scales: &[u8; SCALE_SIZE]) -> f32 {
    f32::from_le_bytes(*scales)
}

/// Which elements have no scale, when some have none.
#[cold]
fn bad(gradient: &[f32], residual: &[f32]) -> Bad {
    let is_bad = |(g, r): (&f32, &f32)| scale_of((g + r).abs()).is_nan();
    Bad {
        count: gradient.iter().zip(residual).filter(|&pair| is_bad(pair)).count(),
        first_index: gradient.iter().zip(residual).position(is_bad).unwrap_or(0),
    }
}

/// The first pass: a scale for each block. Whether each block has one.
struct Measure<'a> {
    block: usize,
    gradient: &'a [f32],
    residual: &'a [f32],
    scales: &'a mut [u8],
}

impl Kernel for Measure<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let blocks = self.gradient.chunks(self.block).zip(self.residual.chunks(self.block));
        let mut all = true;
        for (scale, (gradient, residual)) in self.scales.as_chunks_mut().0.iter_mut().zip(blocks) {
            let found = scale_of(largest(gradient, residual));
            all &= !found.is_nan();
            *scale = found.to_le_bytes();
        }
        all
    }
}

/// The largest magnitude of a block's sums; NaN is larger than infinity, and that than the rest.
#[inline(always)]
fn largest(gradient: &[f32], residual: &[f32]) -> f32 {
    // As whole numbers, magnitudes are in the order of their bits, NaN among them; and the largest
    // of whole numbers does not depend on the order they are looked at.
    let magnitude = |(g, r): (&f32, &f32)| ((g + r).to_bits() & MAGNITUDE).cast_signed();
    let bits = gradient.iter().zip(residual).map(magnitude).fold(0, i32::max);
    f32::from_bits(bits.cast_unsigned())
}

/// The second pass: codes, and what they leave.
struct Quantise<'a> {
    block: usize,
    gradient: &'a [f32],
    residual: &'a mut [f32],
    scales: &'a [u8],
    codes: &'a mut [u8],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let block = self.block;
        let blocks = self.gradient.chunks(block).zip(self.residual.chunks_mut(block));
        let blocks = blocks.zip(self.codes.chunks_mut(block));
        for (scale, ((gradient, residual), codes)) in self.scales.as_chunks().0.iter().zip(blocks) {
            let scale = scale_at(scale);
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for ((g, r), code) in gradient.iter().zip(residual).zip(codes) {
                (*code, *r) = quantise(g + *r, scale, inverse);
            }
        }
    }
}

/// The code of `x`, and what it leaves of it.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low byte of the sum is the code")]
fn quantise(x: f32, scale: f32, inverse: f32) -> (u8, f32) {
    let rounded = x * inverse + ROUND;
    (rounded.to_bits() as u8, x - (rounded - ROUND) * scale)
}

struct Decode<'a> {
    block: usize,
    scales: &'a [u8],
    codes: &'a [u8],
    target: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.codes.chunks(self.block).zip(self.target.chunks_mut(self.block));
        for (scale, (codes, target)) in self.scales.as_chunks().0.iter().zip(blocks) {
            let scale = scale_at(scale);
            for (target, code) in target.iter_mut().zip(codes) {
                *target = f32::from(code.cast_signed()) * scale;
            }
        }
    }
}
