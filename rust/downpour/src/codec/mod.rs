//! Codecs: how the elements of a fragment travel in fewer bytes, and what that left out.
//!
//! | number | name | numbers | bytes of `n` elements | file |
//! |---:|---|---|---|---|
//! | 0 | (none) | | `n` elements of the frame's dtype | |
//! | 1 | `int8` | `block` | `n + 4 ceil(n / block)` | [`int8`] |
//! | 2 | `threshold` | `tau` | 4 for each that is sent, up to `n / 4` | [`threshold`] |
//!
//! A codec sees one fragment at a time and keeps nothing between two of them, so fragments are
//! encoded, sent again, refused and decoded each by itself. To add one, write one file with a type
//! that implements [`format::Format`] and add its row to [`CODECS`]; the compiled interface, error
//! feedback, the shard's scratch, the checks of sizes and the shared tests come with it.
//!
//! # Error feedback
//!
//! What encoding loses of a gradient `g` is kept in a residual `r` and sent later (Seide et al.
//! 2014, section 2; Karimireddy et al. 2019, algorithm 2 without the step size):
//!
//! ```text
//! x = g + r             in f32
//! bytes = encode(x)     d = decode(bytes)
//! r = x - d
//! ```
//!
//! What has been decoded and what is left add up to what went in. A push that is not applied gives
//! back what it changed ([`Codec::give_back`]): its gradient is lost, as it is without a codec, and
//! nothing of the others.
//!
//! # Limits
//!
//! Decoding writes as many elements as it is asked for into memory of its caller's and allocates
//! nothing: no payload can be a bomb. Bytes either are refused or decode to some elements; those
//! that are not finite are found where every gradient is looked at, before anything is applied.
//!
//! No bytes are the elements of a fragment of which there is nothing to say, zeros: who encodes may
//! leave it out of its push.

mod format;
mod int8;
mod threshold;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::kernel::{DType, Level};
use crate::number::{NumberError, Numbers};
use format::{Format, Row};

/// Every codec there is.
const CODECS: &[Row] = &[Row::of::<int8::Int8>(), Row::of::<threshold::Threshold>()];

/// The number of no codec: elements as they are.
pub const NONE: u8 = 0;

/// The dtype that every codec decodes to.
pub const DECODED: DType = DType::F32;

/// What can be wrong with a codec, or with what it is given.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CodecError {
    #[error("codec {name:?} is unknown; known are {known}")]
    Unknown { name: String, known: String },
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error(
        "{size} bytes are not {len} elements encoded by {codec}, which are up to {expected} bytes"
    )]
    Length { codec: &'static str, size: usize, len: usize, expected: usize },
    #[error("{what} has {actual} {unit}, needs {needed}")]
    Room { what: &'static str, unit: &'static str, actual: usize, needed: usize },
    #[error(
        "{count} elements of the gradient, with what is left of earlier ones, cannot be encoded by \
         {codec}, the first at {first_index}: they are NaN, infinite or too large"
    )]
    NonFinite { codec: &'static str, count: usize, first_index: usize },
}

/// A codec, compiled for one instruction set. Holds no elements: residuals are the caller's.
pub struct Codec {
    format: Box<dyn Format>,
    row: &'static Row,
    level: Level,
}

impl Codec {
    /// Compile a codec of this name with its numbers, for `simd` or the CPU's widest level.
    ///
    /// # Errors
    ///
    /// [`CodecError`] names the codec, the number and its bound.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use downpour::codec::Codec;
    ///
    /// let int8 = Codec::compile("int8", &BTreeMap::from([("block".to_owned(), 256.0)]), None)?;
    /// assert_eq!(int8.size_max(1000), 1000 + 4 * 4);
    /// # Ok::<(), downpour::codec::CodecError>(())
    /// ```
    pub fn compile(
        name: &str,
        numbers: &BTreeMap<String, f64>,
        simd: Option<Level>,
    ) -> Result<Self, CodecError> {
        let Some(row) = CODECS.iter().find(|row| row.name == name) else {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(CodecError::Unknown { name: name.to_owned(), known });
        };
        let format = (row.build)(&Numbers::read(row.name, row.numbers, numbers)?);
        Ok(Self { format, row, level: simd.unwrap_or_else(Level::best) })
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.row.name
    }

    /// What a frame's header says for it, never [`NONE`].
    #[must_use]
    pub fn number(&self) -> u8 {
        self.row.number
    }

    /// The instruction set it was compiled for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The most bytes that `len` elements become, whatever they are.
    #[must_use]
    pub fn size_max(&self, len: usize) -> usize {
        self.format.size_max(len)
    }

    /// Encode `gradient + residual` into the first bytes of `target`, and leave in `residual` what
    /// they do not say. Returns how many bytes; none say that every element is 0.
    ///
    /// # Shapes
    ///
    /// `residual`: as long as `gradient`. `target`: at least [`size_max`](Self::size_max) bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Room`] for lengths that do not fit, [`CodecError::NonFinite`] for elements
    /// that no bytes can say. The residual is as it was then.
    pub fn encode(
        &self,
        gradient: &[f32],
        residual: &mut [f32],
        target: &mut [u8],
    ) -> Result<usize, CodecError> {
        same_len(gradient.len(), residual.len())?;
        let needed = self.size_max(gradient.len());
        if target.len() < needed {
            let actual = target.len();
            return Err(CodecError::Room { what: "target", unit: "bytes", actual, needed });
        }
        self.format.encode(self.level, gradient, residual, target).map_err(|bad| {
            let codec = self.row.name;
            CodecError::NonFinite { codec, count: bad.count, first_index: bad.first_index }
        })
    }

    /// Decode exactly `target.len()` elements.
    ///
    /// # Errors
    ///
    /// [`CodecError::Length`] if the bytes are not so many elements. The target's contents are
    /// undefined then.
    pub fn decode(&self, bytes: &[u8], target: &mut [f32]) -> Result<(), CodecError> {
        self.format.decode(self.level, bytes, target).map_err(|format::Ragged { expected }| {
            let (codec, size, len) = (self.row.name, bytes.len(), target.len());
            CodecError::Length { codec, size, len, expected }
        })
    }

    /// Undo what encoding a gradient that was not applied has changed of the residual.
    ///
    /// `residual = (residual + decoded) - gradient`, each step rounded to f32. If nothing was
    /// encoded since, `residual + decoded` is exactly the `gradient + residual` of then, so the
    /// residual is again what it was, up to the rounding of that one sum. An element that would
    /// not be finite becomes 0.
    ///
    /// # Errors
    ///
    /// [`CodecError::Room`] or [`CodecError::Length`] for lengths that do not fit; nothing has
    /// changed then.
    pub fn give_back(
        &self,
        bytes: &[u8],
        gradient: &[f32],
        residual: &mut [f32],
    ) -> Result<(), CodecError> {
        same_len(gradient.len(), residual.len())?;
        let mut decoded = vec![0.0; gradient.len()];
        self.decode(bytes, &mut decoded)?;
        for ((residual, decoded), gradient) in residual.iter_mut().zip(decoded).zip(gradient) {
            let before = (*residual + decoded) - gradient;
            *residual = if before.is_finite() { before } else { 0.0 };
        }
        Ok(())
    }
}

fn same_len(needed: usize, actual: usize) -> Result<(), CodecError> {
    let (what, unit) = ("residual", "elements");
    if needed == actual { Ok(()) } else { Err(CodecError::Room { what, unit, actual, needed }) }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, level) = (self.row.name, self.level);
        f.debug_struct("Codec").field("name", &name).field("level", &level).finish_non_exhaustive()
    }
}

/// The names of all codecs, for tests, help texts and what a build says it can.
pub fn names() -> impl Iterator<Item = &'static str> {
    CODECS.iter().map(|row| row.name)
}

#[cfg(test)]
mod tests {
    use super::{CODECS, NONE};

    #[test]
    fn names_and_numbers_are_nobody_elses() {
        for (index, row) in CODECS.iter().enumerate() {
            assert_ne!(row.number, NONE, "{}", row.name);
            for other in &CODECS[..index] {
                assert!(row.name != other.name && row.number != other.number, "{}", row.name);
            }
        }
    }
}
