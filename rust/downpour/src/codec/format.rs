//! What a codec's file implements.

use crate::kernel::Level;
use crate::number::{Number, Numbers};

/// Elements that no bytes of a format can say. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub count: usize,
    pub first_index: usize,
}

/// Bytes that are not a whole encoding of as many elements as were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ragged {
    /// Bytes there should be, or the most there may be.
    pub expected: usize,
}

/// A byte format for runs of f32, with error feedback.
///
/// Its loops are kernels: the same bits on every instruction set.
pub(super) trait Format: Send + Sync {
    /// The most bytes that `len` elements become; never less for a longer run.
    fn size_max(&self, len: usize) -> usize;

    /// Encode `x = gradient + residual` into `target`, which has room for it; leave `x - decoded`
    /// in `residual`. Returns the bytes written: none only where they decode to zeros. An error
    /// leaves the residual as it was.
    fn encode(
        &self,
        level: Level,
        gradient: &[f32],
        residual: &mut [f32],
        target: &mut [u8],
    ) -> Result<usize, Bad>;

    /// Write every element of `target` from bytes that anybody may have made.
    fn decode(&self, level: Level, bytes: &[u8], target: &mut [f32]) -> Result<(), Ragged>;
}

/// A format with its place in the table.
pub(super) trait Listed: Format + Sized + 'static {
    const NAME: &'static str;
    /// What a frame's header says; for ever, and never 0.
    const NUMBER: u8;
    const NUMBERS: &'static [Number];

    /// From numbers that were read and are within their bounds.
    fn new(numbers: &Numbers) -> Self;
}

/// A row of the table of codecs.
pub(super) struct Row {
    pub name: &'static str,
    pub number: u8,
    pub numbers: &'static [Number],
    pub build: fn(&Numbers) -> Box<dyn Format>,
}

impl Row {
    pub(super) const fn of<F: Listed>() -> Self {
        Self {
            name: F::NAME,
            number: F::NUMBER,
            numbers: F::NUMBERS,
            build: |numbers| Box::new(F::new(numbers)),
        }
    }
}
