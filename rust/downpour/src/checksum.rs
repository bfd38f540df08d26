//! CRC-32C (Castagnoli), the checksum of every frame and of every exported state.
//!
//! One function over bytes, one that continues, and a [`Combiner`] that joins the checksums of
//! two neighbouring runs without touching their bytes again: the store keeps one checksum per
//! published stripe, a fragment is several stripes, and its frame wants one number.
//!
//! # Numerics
//! The CRC of bytes `a ++ b` is `shift(crc(a), len(b)) ^ crc(b)`, where `shift` multiplies by
//! `x^(8 len)` modulo the polynomial, in GF(2). A [`Combiner`] for a fixed length stores that
//! multiplication as 32 columns, so combining costs at most 32 exclusive-ors.

use crc_fast::{CrcAlgorithm, Digest};

/// The Castagnoli polynomial, bit-reversed as the algorithm shifts right.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `x^0` in the reversed representation: the one of the multiplication.
const ONE: u32 = 1 << 31;

/// CRC-32C of `data`.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// CRC-32C of some earlier bytes, whose checksum is `value`, followed by `data`.
///
/// `extend(0, data)` equals [`crc32c`]`(data)`.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // A 32-bit algorithm's state and result fit in 32 bits.
pub fn extend(value: u32, data: &[u8]) -> u32 {
    let mut digest =
        Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(value ^ u32::MAX));
    digest.update(data);
    digest.finalize() as u32
}

/// The loop that computes checksums on this CPU, for the doctor and for bug reports.
#[must_use]
pub fn implementation() -> String {
    crc_fast::get_calculator_target(CrcAlgorithm::Crc32Iscsi)
}

/// Product of two polynomials modulo the Castagnoli polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 0 { b >> 1 } else { (b >> 1) ^ POLYNOMIAL };
        bit >>= 1;
    }
    product
}

/// Joins checksums when the second run has a fixed number of bytes.
#[derive(Clone, Debug)]
pub struct Combiner {
    len: usize,
    columns: [u32; 32],
}

impl Combiner {
    /// For second runs of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let mut factor = ONE;
        let mut square = ONE >> 8; // x^8: one byte.
        let mut rest = len;
        while rest != 0 {
            if rest & 1 == 1 {
                factor = multiply(factor, square);
            }
            square = multiply(square, square);
            rest >>= 1;
        }
        let columns = std::array::from_fn(|i| multiply(factor, 1 << i));
        Self { len, columns }
    }

    /// Bytes of the second run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the second run is empty, so that combining changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The checksum of two neighbouring runs from the checksum of each.
    #[must_use]
    pub fn combine(&self, first: u32, second: u32) -> u32 {
        let shifted = self
            .columns
            .iter()
            .enumerate()
            .fold(0, |sum, (i, column)| sum ^ (column & 0u32.wrapping_sub(first >> i & 1)));
        shifted ^ second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, appendix B.4, and the check value of the catalogue.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn extending_and_combining_equal_one_pass_for_every_cut() {
        let data: Vec<u8> = (0..600u32).map(|i| (i * 37 % 251) as u8).collect();
        for cut in (0..=data.len()).step_by(7) {
            let (a, b) = data.split_at(cut);
            let whole = crc32c(&data);
            assert_eq!(extend(crc32c(a), b), whole);
            assert_eq!(Combiner::new(b.len()).combine(crc32c(a), crc32c(b)), whole);
        }
    }

    #[test]
    fn combining_with_an_empty_run_changes_nothing() {
        let combiner = Combiner::new(0);
        assert!(combiner.is_empty());
        assert_eq!(combiner.combine(0xDEAD_BEEF, 0), 0xDEAD_BEEF);
    }
}
