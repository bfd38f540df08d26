//! One quantum for each element that has grown larger than it; the others wait.
//!
//! Strom 2015: what has been accumulated of an element is sent only when it exceeds the threshold
//! `tau`, and then as `tau` or `-tau`: an index and a sign. What the rest lacks stays in the
//! residual.
//!
//! # Layout
//!
//! `n` elements of which `k` are sent; little-endian. Which form it is, the length says.
//!
//! | form | bytes | what |
//! |---|---:|---|
//! | nothing | 0 | every element is 0: the fragment may be left out of its push |
//! | sparse, `4 k < ceil(n / 4)` | 4 k | a word, u32, for each element that is sent; ascending |
//! | dense, else | ceil(n / 4) | two bits an element, four elements a byte from its low end |
//!
//! | bits | of | what |
//! |---|---|---|
//! | 0 to 30 | a word | the element's index in the fragment |
//! | 31 | a word | 0 `tau`, 1 `-tau` |
//! | two | the dense form | 0 nothing, 1 `tau`, 2 `-tau`; beyond the last element 0 |
//!
//! Two bits are the most that an element costs. Indices that do not ascend or are too large, codes
//! of 3 and anything beyond the last element are refused.
//!
//! # Encoding
//!
//! For each compensated element `x`, in f32:
//!
//! ```text
//! x > tau:   send  tau, leave x - tau
//! x < -tau:  send -tau, leave x + tau
//! else:      send nothing, leave x
//! ```
//!
//! One quantum an element and push, so that more than `tau` may be left. `tau` is rounded to 8
//! significant bits (bfloat16), for then what is left is exact: with `tau = m * 2^k`, `m < 2^8`,
//! both `x` and `tau` are multiples of the smaller of `2^k` and the last place of `x`, and the
//! difference is below `2^24` of these as long as `|x| < 2^(k + 24)`. That is more than 65,536
//! times `tau`. A fragment with a larger element is refused, as one with NaN or infinity is: it
//! would take as many pushes to say it.

use super::format::{Bad, Format, Listed, Ragged};
use crate::kernel::{Kernel, LANES, Level};
use crate::number::{Bound, Number, Numbers};

const WORD_SIZE: usize = size_of::<u32>();

/// Elements that share a byte of the dense form.
const A_BYTE: usize = 4;

/// Where the sign is, of a float and of a word.
const SIGN: u32 = 1 << 31;

/// Indices of the sparse form are below.
const INDICES: usize = 1 << 31;

const PLUS: u8 = 1;
const MINUS: u8 = 2;

/// The format, with its quantum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    tau: f32,
    /// Bits of the magnitude that no element may reach.
    limit: u32,
}

impl Listed for Threshold {
    const NAME: &'static str = "threshold";
    const NUMBER: u8 = 2;
    const NUMBERS: &'static [Number] = &[Number::new("tau", Bound::Quantum)];

    fn new(numbers: &Numbers) -> Self {
        let bits = numbers.single("tau").to_bits();
        // To the nearest of 8 significant bits, ties to even.
        let rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
        let infinite = f32::INFINITY.to_bits();
        // 2^17 times the power of two in it: 2^24 times the last of its 8 bits.
        let limit = (rounded & infinite) + (17 << 23);
        Self { tau: f32::from_bits(rounded), limit: limit.min(infinite) }
    }
}

impl Format for Threshold {
    fn size_max(&self, len: usize) -> usize {
        len.div_ceil(A_BYTE)
    }

    fn encode(
        &self,
        level: Level,
        gradient: &[f32],
        residual: &mut [f32],
        target: &mut [u8],
    ) -> Result<usize, Bad> {
        let (tau, len) = (self.tau, gradient.len());
        // Before anything is changed it must be known that there is no bad element.
        let (largest, count) = level.run(Measure { tau, gradient, residual });
        if largest >= self.limit {
            return Err(self.bad(gradient, residual));
        }
        let (sparse, dense) = (count.saturating_mul(WORD_SIZE), self.size_max(len));
        let size = if len <= INDICES { sparse.min(dense) } else { dense };
        if size < dense {
            level.run(Sparse { tau, gradient, residual, words: &mut target[..size] });
        } else {
            level.run(Dense { tau, gradient, residual, codes: &mut target[..size] });
        }
        Ok(size)
    }

    fn decode(&self, level: Level, bytes: &[u8], target: &mut [f32]) -> Result<(), Ragged> {
        let expected = self.size_max(target.len());
        let tau = self.tau;
        let is_whole = if bytes.len() == expected {
            level.run(DecodeDense { tau, codes: bytes, target })
        } else {
            bytes.len() < expected && scatter(tau, bytes, target)
        };
        if is_whole { Ok(()) } else { Err(Ragged { expected }) }
    }
}

impl Threshold {
    /// Which elements are too large, when some are.
    #[cold]
    fn bad(self, gradient: &[f32], residual: &[f32]) -> Bad {
        let is_bad = |(g, r): (&f32, &f32)| magnitude(g + r) >= self.limit;
        Bad {
            count: gradient.iter().zip(residual).filter(|&pair| is_bad(pair)).count(),
            first_index: gradient.iter().zip(residual).position(is_bad).unwrap_or(0),
        }
    }
}

/// In the order of magnitudes: NaN is larger than infinity, and that than the rest.
#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.to_bits() & !SIGN
}

/// The code of `x`, and what it leaves.
#[inline(always)]
fn split(x: f32, tau: f32) -> (u8, f32) {
    let (plus, minus) = (x > tau, x < -tau);
    let sent = if plus { tau } else { 0.0 } - if minus { tau } else { 0.0 };
    (if plus { PLUS } else { 0 } | if minus { MINUS } else { 0 }, x - sent)
}

/// The first pass: the largest magnitude, in bits, and how many elements exceed `tau`.
struct Measure<'a> {
    tau: f32,
    gradient: &'a [f32],
    residual: &'a [f32],
}

impl Kernel for Measure<'_> {
    type Output = (u32, usize);

    #[inline(always)]
    fn run(self) -> (u32, usize) {
        let tau = magnitude(self.tau);
        let (gradient, gradient_rest) = self.gradient.as_chunks::<LANES>();
        let (residual, residual_rest) = self.residual.as_chunks::<LANES>();
        let (mut largest, mut counts) = ([0_u32; LANES], [0_u32; LANES]);
        let mut count = 0;
        // A few at a time, so that no lane's count is ever too large.
        for (gradient, residual) in gradient.chunks(1 << 16).zip(residual.chunks(1 << 16)) {
            counts.fill(0);
            for (gradient, residual) in gradient.iter().zip(residual) {
                for lane in 0..LANES {
                    let bits = magnitude(gradient[lane] + residual[lane]);
                    largest[lane] = largest[lane].max(bits);
                    counts[lane] += u32::from(bits > tau);
                }
            }
            count += counts.iter().map(|count| *count as usize).sum::<usize>();
        }
        let mut largest = largest.into_iter().fold(0, u32::max);
        for (g, r) in gradient_rest.iter().zip(residual_rest) {
            let bits = magnitude(g + r);
            largest = largest.max(bits);
            count += usize::from(bits > tau);
        }
        (largest, count)
    }
}

/// The second pass, where few elements are sent.
struct Sparse<'a> {
    tau: f32,
    gradient: &'a [f32],
    residual: &'a mut [f32],
    words: &'a mut [u8],
}

impl Kernel for Sparse<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut words = self.words.as_chunks_mut::<WORD_SIZE>().0.iter_mut();
        let mut starts = (0_u32..).step_by(LANES);
        let mut write = |codes: &[u8; LANES]| {
            let start = starts.next().unwrap_or(0);
            if codes.iter().fold(0, |any, code| any | code) == 0 {
                return;
            }
            for (index, code) in (start..).zip(codes).filter(|(_, code)| **code != 0) {
                let word = if *code == MINUS { index | SIGN } else { index };
                if let Some(place) = words.next() {
                    *place = word.to_le_bytes();
                }
            }
        };
        let (gradient, gradient_rest) = self.gradient.as_chunks::<LANES>();
        let (residual, residual_rest) = self.residual.as_chunks_mut::<LANES>();
        for (gradient, residual) in gradient.iter().zip(residual) {
            let mut codes = [0; LANES];
            for lane in 0..LANES {
                (codes[lane], residual[lane]) = split(gradient[lane] + residual[lane], self.tau);
            }
            write(&codes);
        }
        let mut codes = [0; LANES];
        for ((g, r), code) in gradient_rest.iter().zip(residual_rest).zip(&mut codes) {
            (*code, *r) = split(g + *r, self.tau);
        }
        write(&codes);
    }
}

/// The second pass, where many are.
struct Dense<'a> {
    tau: f32,
    gradient: &'a [f32],
    residual: &'a mut [f32],
    codes: &'a mut [u8],
}

impl Kernel for Dense<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (gradient, gradient_rest) = self.gradient.as_chunks::<LANES>();
        let (residual, residual_rest) = self.residual.as_chunks_mut::<LANES>();
        let (bytes, bytes_rest) = self.codes.split_at_mut(gradient.len() * (LANES / A_BYTE));
        let bytes = bytes.as_chunks_mut::<{ LANES / A_BYTE }>().0;
        for ((gradient, residual), bytes) in gradient.iter().zip(residual).zip(bytes) {
            let mut codes = [0; LANES];
            for lane in 0..LANES {
                (codes[lane], residual[lane]) = split(gradient[lane] + residual[lane], self.tau);
            }
            pack(&codes, bytes);
        }
        let mut codes = [0; LANES];
        for ((g, r), code) in gradient_rest.iter().zip(residual_rest).zip(&mut codes) {
            (*code, *r) = split(g + *r, self.tau);
        }
        pack(&codes, bytes_rest);
    }
}

/// Codes, four in each byte.
#[inline(always)]
fn pack(codes: &[u8; LANES], bytes: &mut [u8]) {
    for (byte, [a, b, c, d]) in bytes.iter_mut().zip(codes.as_chunks().0) {
        *byte = a | b << 2 | c << 4 | d << 6;
    }
}

/// The sparse form; false if it is none.
fn scatter(tau: f32, bytes: &[u8], target: &mut [f32]) -> bool {
    target.fill(0.0);
    let (words, rest) = bytes.as_chunks();
    let mut least = 0;
    for word in words {
        let word = u32::from_le_bytes(*word);
        let index = (word & !SIGN) as usize;
        let Some(element) = target.get_mut(index).filter(|_| index >= least) else {
            return false;
        };
        *element = f32::from_bits(tau.to_bits() | word & SIGN);
        least = index + 1;
    }
    rest.is_empty()
}

/// The dense form; false if it is none.
struct DecodeDense<'a> {
    tau: f32,
    codes: &'a [u8],
    target: &'a mut [f32],
}

impl Kernel for DecodeDense<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let (whole, rest) = self.target.as_chunks_mut::<A_BYTE>();
        let (codes, last) = self.codes.split_at(whole.len().min(self.codes.len()));
        let mut is_bad = 0;
        for (target, byte) in whole.iter_mut().zip(codes) {
            is_bad |= byte & byte >> 1 & 0b0101_0101;
            for (place, target) in target.iter_mut().enumerate() {
                *target = quantum(byte >> (2 * place), self.tau);
            }
        }
        if let [byte] = last {
            is_bad |= byte & byte >> 1 & 0b0101_0101 | byte >> (2 * rest.len());
            for (place, target) in rest.iter_mut().enumerate() {
                *target = quantum(byte >> (2 * place), self.tau);
            }
        }
        is_bad == 0
    }
}

/// What the low two bits of a byte mean; 3 is nothing.
#[inline(always)]
fn quantum(code: u8, tau: f32) -> f32 {
    f32::from((code & PLUS).cast_signed() - (code >> 1 & 1).cast_signed()) * tau
}
