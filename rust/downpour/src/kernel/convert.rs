//! One element from one type to another, without branches, so that loops over it vectorise.
//!
//! # Numerics
//!
//! Widening to f32 is exact (f64 rounds). Narrowing rounds to nearest, ties to even; too large
//! becomes infinity; NaN stays NaN and becomes quiet. f64 to 16 bits goes through an f32 *rounded
//! to odd*, which keeps the sticky bit and so avoids rounding twice (Boldo and Melquiond, 2008).

/// An element type of the wire.
pub(crate) trait Element: bytemuck::Pod {
    /// To f32, rounding if it must.
    fn widen(self) -> f32;
    /// To f64, always exact.
    fn exact(self) -> f64;
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
}

/// A raw half precision word.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(pub u16);

/// A raw bfloat16 word.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16(pub u16);

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn exact(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        narrow(value)
    }
}

impl Element for f64 {
    #[inline(always)]
    fn widen(self) -> f32 {
        narrow(self)
    }
    #[inline(always)]
    fn exact(self) -> f64 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
}

impl Element for F16 {
    /// Shift the 15 magnitude bits to f32's place and rescale by 2^112, which is exact and makes
    /// subnormals normal; then give infinity and NaN their exponent back.
    #[inline(always)]
    fn widen(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        let sign = u32::from(self.0 & 0x8000) << 16;
        let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = if magnitude >= 0x7c00 << 13 { 0xff << 23 } else { 0 };
        f32::from_bits(scaled | special | sign)
    }
    #[inline(always)]
    fn exact(self) -> f64 {
        f64::from(self.widen())
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(half_bits(value))
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Self(half_bits(round_to_odd(value)))
    }
}

impl Element for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    #[inline(always)]
    fn exact(self) -> f64 {
        f64::from(self.widen())
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(brain_bits(value))
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Self(brain_bits(round_to_odd(value)))
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "rounding to nearest even is the purpose")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// The f32 next to `value` towards zero, with its last bit set if anything was cut off.
#[inline(always)]
fn round_to_odd(value: f64) -> f32 {
    let nearest = narrow(value);
    let back = f64::from(nearest);
    let bits = nearest.to_bits() - u32::from(back.abs() > value.abs());
    let inexact = (back - value).abs() > 0.0;
    f32::from_bits(bits | u32::from(inexact))
}

/// f32 to half precision (after F. Giesen's branchless conversion): normals by rounding the
/// mantissa in place, subnormals by letting an addition shift and round them.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "every candidate fits in 16 bits")]
fn half_bits(value: f32) -> u16 {
    const INFINITE: u32 = 0x7f80_0000;
    const OVERFLOW: u32 = (127 + 16) << 23; // 65536: this and more rounds to infinity
    const NORMAL: u32 = (127 - 14) << 23; // 2^-14, the smallest normal half
    const SHIFT: u32 = (127 - 15 + 23 - 10 + 1) << 23; // 0.5: its last place is 2^-24
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let shifted = (f32::from_bits(magnitude) + f32::from_bits(SHIFT)).to_bits();
    let subnormal = shifted.wrapping_sub(SHIFT);
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let large = if magnitude > INFINITE { 0x7e00 | (magnitude >> 13 & 0x3ff) } else { 0x7c00 };
    (sign | if magnitude >= OVERFLOW { large } else { finite }) as u16
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "shifted down to 16 bits")]
fn brain_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use half::{bf16, f16};

    use super::{Bf16, Element, F16};

    fn same(ours: f32, theirs: f32) -> bool {
        ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan())
    }

    #[test]
    fn every_16_bit_word_widens_as_half_does_and_comes_back() {
        for word in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(word), bf16::from_bits(word));
            assert!(same(F16(word).widen(), half.to_f32()), "f16 {word:#06x}");
            assert!(same(Bf16(word).widen(), brain.to_f32()), "bf16 {word:#06x}");
            if !half.is_nan() {
                assert_eq!(F16::from_f32(half.to_f32()).0, word);
            }
            if !brain.is_nan() {
                assert_eq!(Bf16::from_f32(brain.to_f32()).0, word);
            }
        }
    }

    /// The word that `value`, near the middle between `word` and the next, must round to. Not
    /// asked of the half crate, which rounds f64 to f32 first and so rounds some values twice.
    fn nearest(value: f64, middle: f64, word: u16) -> u16 {
        match value.total_cmp(&middle) {
            Ordering::Less => word,
            Ordering::Equal => word + (word & 1),
            Ordering::Greater => word + 1,
        }
    }

    /// Values at, just below and just above every midpoint between neighbours, where rounding
    /// can go wrong.
    #[test]
    fn narrowing_rounds_to_nearest_even_around_every_midpoint() {
        for word in 0..0x7c00_u16 {
            let low = f16::from_bits(word).to_f64();
            let high = if word == 0x7bff { 65536.0 } else { f16::from_bits(word + 1).to_f64() };
            let middle = f64::midpoint(low, high);
            for value in [middle, middle.next_down(), middle.next_up()] {
                let expected = nearest(value, middle, word);
                assert_eq!(F16::from_f64(value).0, expected, "{value:e}");
                assert_eq!(F16::from_f64(-value).0, expected | 0x8000, "{value:e}");
                let single = super::narrow(value);
                for single in [single, single.next_down(), single.next_up()] {
                    let expected = nearest(f64::from(single), middle, word);
                    assert_eq!(F16::from_f32(single).0, expected, "{single:e}");
                    assert_eq!(f16::from_f32(single).to_bits(), expected, "{single:e}");
                }
            }
        }
        for word in 0..0x7f7f_u16 {
            let low = f64::from(bf16::from_bits(word).to_f32());
            let middle = f64::midpoint(low, f64::from(bf16::from_bits(word + 1).to_f32()));
            for value in [middle, middle.next_down(), middle.next_up()] {
                assert_eq!(Bf16::from_f64(value).0, nearest(value, middle, word), "{value:e}");
            }
        }
    }

    #[test]
    fn extremes_keep_their_meaning() {
        for value in [f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 1e-300, -0.0] {
            assert_eq!(F16::from_f64(value).0, f16::from_f64(value).to_bits(), "{value:e}");
            assert_eq!(Bf16::from_f64(value).0, bf16::from_f64(value).to_bits(), "{value:e}");
        }
        assert!(F16::from_f64(f64::NAN).widen().is_nan());
        assert!(Bf16::from_f32(f32::from_bits(0x7f80_0001)).widen().is_nan());
    }
}
