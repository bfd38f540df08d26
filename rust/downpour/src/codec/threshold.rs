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

/// Elements that are looked at before their counts are added up.
const RUN: usize = 1 << 12;

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

/// What is sent of `x`.
#[inline(always)]
fn sent_of(x: f32, tau: f32) -> f32 {
    // The sign of x with the bits of tau, or of nothing: no branch.
    let mask = if magnitude(x) > tau.to_bits() { u32::MAX } else { 0 };
    f32::from_bits((tau.to_bits() | x.to_bits() & SIGN) & mask)
}

/// What is sent of each lane, whose residual moves.
#[inline(always)]
fn split(gradient: &[f32; LANES], residual: &mut [f32; LANES], tau: f32) -> [f32; LANES] {
    let mut sent = [0.0; LANES];
    for ((sent, g), r) in sent.iter_mut().zip(gradient).zip(residual) {
        let x = g + *r;
        *sent = sent_of(x, tau);
        *r = x - *sent;
    }
    sent
}

/// The same of fewer lanes than a whole chunk has; the others send nothing.
#[inline(always)]
fn split_rest(gradient: &[f32], residual: &mut [f32], tau: f32) -> [f32; LANES] {
    let mut sent = [0.0; LANES];
    for ((sent, g), r) in sent.iter_mut().zip(gradient).zip(residual) {
        let x = g + *r;
        *sent = sent_of(x, tau);
        *r = x - *sent;
    }
    sent
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
        let (mut largest, mut count) = (0, 0);
        // A few at a time: then no lane's count is ever too large for its type.
        let runs = self.gradient.chunks(RUN).zip(self.residual.chunks(RUN));
        for (gradient, residual) in runs {
            let mut more = 0_u32;
            for (g, r) in gradient.iter().zip(residual) {
                let bits = magnitude(g + r);
                largest = u32::max(largest, bits);
                more += u32::from(bits > tau);
            }
            count += more as usize;
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
        let mut write = |sent: &[f32; LANES]| {
            let start = starts.next().unwrap_or(0);
            if sent.iter().fold(0, |any, sent| any | sent.to_bits()) == 0 {
                return;
            }
            for (index, sent) in (start..).zip(sent).filter(|(_, sent)| sent.to_bits() != 0) {
                if let Some(word) = words.next() {
                    *word = (index | sent.to_bits() & SIGN).to_le_bytes();
                }
            }
        };
        let (gradient, gradient_rest) = self.gradient.as_chunks::<LANES>();
        let (residual, residual_rest) = self.residual.as_chunks_mut::<LANES>();
        for (gradient, residual) in gradient.iter().zip(residual) {
            write(&split(gradient, residual, self.tau));
        }
        write(&split_rest(gradient_rest, residual_rest, self.tau));
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
            pack(&split(gradient, residual, self.tau), bytes);
        }
        pack(&split_rest(gradient_rest, residual_rest, self.tau), bytes_rest);
    }
}

/// The codes of what is sent, four in each byte.
#[inline(always)]
fn pack(sent: &[f32; LANES], bytes: &mut [u8]) {
    let code = |sent: f32| u32::from(sent > 0.0) | u32::from(sent < 0.0) << 1;
    let mut codes = [0; LANES];
    for (code_of, sent) in codes.iter_mut().zip(sent) {
        *code_of = code(*sent);
    }
    for (byte, [a, b, c, d]) in bytes.iter_mut().zip(codes.as_chunks().0) {
        #[allow(clippy::cast_possible_truncation, reason = "two bits each")]
        let four = (a | b << 2 | c << 4 | d << 6) as u8;
        *byte = four;
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
    f32::from((code & 1).cast_signed() - (code >> 1 & 1).cast_signed()) * tau
}
