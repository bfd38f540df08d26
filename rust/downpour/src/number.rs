//! The numbers of an optimizer's part or a codec: names, bounds, and reading them strictly.

use std::collections::BTreeMap;

use thiserror::Error;

/// Why numbers are not those of the part that they were given for.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum NumberError {
    #[error("{part} has no number {name:?}; its numbers are {known}")]
    Unknown { part: String, name: String, known: String },
    #[error("{part} needs the number {name:?} ({bound})")]
    Missing { part: String, name: &'static str, bound: &'static str },
    #[error("{part}: {name} is {value}, must be {bound}")]
    OutOfRange { part: String, name: &'static str, value: f64, bound: &'static str },
}

/// What values a number may take. Checked before and after rounding to f32, so that a tiny
/// positive step size cannot silently become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Positive,
    NotNegative,
    /// At least 0 and less than 1.
    Fraction,
    /// A whole number of at least 1.
    Whole,
    /// How many versions of the parameters are remembered: 1 to 256, each a copy of them.
    Versions,
    /// A multiple of 16 from 16 to 65,536.
    Block,
    /// What elements are sent in multiples of: no subnormal, and not beyond what f32 can add up.
    Quantum,
    Flag,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Positive => value > 0.0,
                Self::NotNegative => value >= 0.0,
                Self::Fraction => (0.0..1.0).contains(&value),
                Self::Versions => (1.0..=256.0).contains(&value) && value.fract() == 0.0,
                Self::Whole => value >= 1.0 && value.fract() == 0.0 && value < 9e15,
                Self::Block => (16.0..=65536.0).contains(&value) && value % 16.0 == 0.0,
                Self::Quantum => (power(0.5, 122)..=power(2.0, 122)).contains(&value),
                Self::Flag => value.to_bits() == 0 || value.to_bits() == 1.0_f64.to_bits(),
            }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Positive => "a finite f32 > 0",
            Self::NotNegative => "a finite f32 >= 0",
            Self::Fraction => "in [0, 1) as f32",
            Self::Versions => "a whole number from 1 to 256",
            Self::Whole => "a whole number >= 1",
            Self::Block => "a multiple of 16 from 16 to 65536",
            Self::Quantum => "from 2^-122 to 2^122",
            Self::Flag => "0 or 1",
        }
    }
}

/// One number that a part takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub name: &'static str,
    pub bound: Bound,
}

impl Number {
    pub(crate) const fn new(name: &'static str, bound: Bound) -> Self {
        Self { name, bound }
    }
}

/// All numbers of a part, each present and within its bound.
#[derive(Debug)]
pub(crate) struct Numbers(Vec<(&'static str, f64)>);

impl Numbers {
    /// Read exactly the `wanted` numbers from `given`.
    pub(crate) fn read(
        part: &str,
        wanted: &[Number],
        given: &BTreeMap<String, f64>,
    ) -> Result<Self, NumberError> {
        if let Some(name) = given.keys().find(|name| !wanted.iter().any(|n| n.name == *name)) {
            let known = wanted.iter().map(|number| number.name).collect::<Vec<_>>().join(", ");
            let (part, name) = (part.to_owned(), name.clone());
            return Err(NumberError::Unknown { part, name, known });
        }
        let mut read = Vec::with_capacity(wanted.len());
        for &Number { name, bound } in wanted {
            let part = part.to_owned();
            let Some(&value) = given.get(name) else {
                return Err(NumberError::Missing { part, name, bound: bound.words() });
            };
            if !bound.holds(value) || !bound.holds(f64::from(single(value))) {
                let bound = bound.words();
                return Err(NumberError::OutOfRange { part, name, value, bound });
            }
            read.push((name, value));
        }
        Ok(Self(read))
    }

    /// The number `name`, which the part's own table names.
    pub(crate) fn double(&self, name: &str) -> f64 {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("{name} is not in this part's table")).1
    }

    pub(crate) fn single(&self, name: &str) -> f32 {
        single(self.double(name))
    }
}

/// A number whose bound makes it a small whole one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, from 1 on")]
pub(crate) fn whole(value: f64) -> usize {
    value as usize
}

#[allow(clippy::cast_possible_truncation, reason = "numbers are rounded to f32 here, once")]
pub(crate) fn single(value: f64) -> f32 {
    value as f32
}

/// `base` to the power `exponent`, by repeated squaring: the same bits on every machine, which
/// the platform's `pow` does not promise.
pub(crate) fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// `base >= 1` to the power `exponent >= 0`: squarings for the whole part, square roots for the
/// rest, so only operations that are rounded exactly, and the same bits on every machine.
pub(crate) fn raise(base: f64, exponent: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, or huge")]
    let mut result = power(base, exponent as u64);
    let (mut root, mut rest) = (base, exponent.fract());
    while rest > 0.0 && root > 1.0 {
        root = root.sqrt();
        rest *= 2.0;
        if rest >= 1.0 {
            result *= root;
            rest -= 1.0;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::{Bound, power, raise};

    #[test]
    fn power_by_squaring() {
        assert!((power(0.9, 0) - 1.0).abs() < f64::EPSILON);
        assert!((power(0.999, 1000) - 0.999_f64.powf(1000.0)).abs() < 1e-13);
        assert!(power(0.999, u64::MAX) < f64::MIN_POSITIVE);
    }

    #[test]
    fn raising_by_roots() {
        for base in [1.0, 2.0, 3.0, 10.0, 1e6] {
            for exponent in [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 0.1, 0.7, 3.3, 1e-300] {
                let (ours, exact) = (raise(base, exponent), base.powf(exponent));
                assert!((ours / exact - 1.0).abs() < 1e-14, "{base}^{exponent}: {ours} {exact}");
            }
        }
        assert!((raise(9.0, 0.5) - 3.0).abs() < f64::EPSILON);
        assert!(raise(2.0, 1e300).is_infinite());
    }

    #[test]
    fn flags_are_exactly_zero_or_one() {
        assert!(Bound::Flag.holds(0.0) && Bound::Flag.holds(1.0));
        assert!(!Bound::Flag.holds(0.5) && !Bound::Flag.holds(-0.0) && !Bound::Flag.holds(2.0));
    }
}
