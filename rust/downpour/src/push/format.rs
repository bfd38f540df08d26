//! Fragments as frames.

use std::ops::Range;

use thiserror::Error;

use super::Arrays;
use super::arrays::GATHERED;
use crate::checksum::crc32c;
use crate::codec::{self, Codec};
use crate::frame::{HEADER_SIZE, Header, Kind};
use crate::kernel::{self, Check, DType, Gradient, Level};

/// How the elements of a push travel.
#[derive(Clone, Copy, Debug)]
pub struct Format<'a> {
    /// Element type of the payload; with a codec what it decodes to.
    pub dtype: DType,
    /// Elements of a fragment.
    pub fragment_len: usize,
    pub codec: Option<&'a Codec>,
    /// Fragments of which the codec has nothing to say are not sent, not even as empty ones.
    pub leaves_out: bool,
}

/// Who pushes what, for the headers.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    pub replica: u32,
    pub incarnation: u32,
    /// The push's number, from 1.
    pub push: u64,
    /// For each fragment of the layout the version it was computed from.
    pub versions: &'a [u64],
}

/// What a codec left out of earlier pushes, one element for each of the layout.
pub type Residual<'a> = &'a mut [f32];

/// What encoding has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// Elements of the arrays that are NaN or infinite as f32, and the sum of squares of those that
    /// are finite *as they travel*; with a codec, as they arrive.
    pub gradient: Check,
    /// Elements that were finite and are not as they travel.
    pub overflowed: usize,
    /// The first that is not finite as it travels.
    pub overflowed_first: Option<usize>,
    /// Elements that are zero as they travel and were not.
    pub underflowed: usize,
    /// With a codec, where each fragment's frame ends in the target, and the next one begins; one
    /// that ends where it begins is left out.
    pub ends: Vec<usize>,
}

/// What does not fit. Nothing was encoded.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EncodeError {
    #[error(
        "fragments {} .. {}, but {len} elements in fragments of {fragment_len} are {fragments}, \
         and there are {versions} versions",
        range.start, range.end
    )]
    Range {
        range: Range<usize>,
        len: usize,
        fragment_len: usize,
        fragments: usize,
        versions: usize,
    },
    #[error("the frames of {len} elements have {needed} bytes, the target {actual}")]
    Target { len: usize, needed: usize, actual: usize },
    #[error("a codec needs a residual of {len} elements, not {actual}")]
    Residual { len: usize, actual: usize },
    #[error("push {push}: pushes have the numbers 1 to 2^64 - 2")]
    Push { push: u64 },
}

impl Format<'_> {
    /// The most bytes of the payload of `len` elements: without a codec so many.
    #[must_use]
    pub fn payload_size(&self, len: usize) -> usize {
        self.codec.map_or(len * self.dtype.size(), |codec| codec.size_max(len))
    }

    /// Without a codec, bytes from the beginning of one fragment's frame to the next one's.
    #[must_use]
    pub fn stride(&self) -> usize {
        HEADER_SIZE + self.payload_size(self.fragment_len)
    }

    /// The most bytes of all frames of `len` elements.
    #[must_use]
    pub fn size(&self, len: usize) -> usize {
        let (whole, rest) = (len / self.fragment_len, len % self.fragment_len);
        let last = if rest == 0 { 0 } else { HEADER_SIZE + self.payload_size(rest) };
        whole * self.stride() + last
    }

    /// Encode some fragments, each into its place in `target`, header and payload. With a codec,
    /// which makes frames of any length, they lie one behind the other from the first on.
    ///
    /// With a codec the arrays must be finite: look first ([`Arrays::check`]), for encoding moves
    /// the residual. A sum with the residual that cannot be encoded counts as overflowed; the
    /// residual is then as it was, but for rounding.
    ///
    /// # Shapes
    /// `arrays`: the whole layout. `target`: [`size`](Self::size) bytes, of which only those of
    /// `range` are written. `residual`: with a codec one element for each of the layout, else none.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode(
        &self,
        level: Level,
        arrays: &Arrays<'_>,
        author: Author<'_>,
        range: Range<usize>,
        residual: Residual<'_>,
        target: &mut [u8],
    ) -> Result<Encoded, EncodeError> {
        self.fits(arrays.len(), author, &range, residual, target)?;
        let mut found = Encoded::default();
        let mut scratch = vec![0.0; self.fragment_len.min(arrays.len())];
        let mut begin = 0;
        for fragment in range.clone() {
            let start = fragment * self.fragment_len;
            let len = self.fragment_len.min(arrays.len() - start);
            if self.codec.is_none() {
                begin = fragment * self.stride();
            }
            let frame = &mut target[begin..begin + HEADER_SIZE + self.payload_size(len)];
            let (head, mut payload) = frame.split_at_mut(HEADER_SIZE);
            let piece = Piece { level, arrays, start, scratch: &mut scratch[..len] };
            if let Some(codec) = self.codec {
                let left = &mut residual[start..start + len];
                let Some(size) = encoded(piece, codec, left, payload, &mut found) else {
                    self.take_back(
                        level,
                        arrays,
                        codec,
                        range.start,
                        &found.ends,
                        residual,
                        target,
                    );
                    return Ok(found);
                };
                let is_left_out = self.leaves_out && size == 0;
                begin += if is_left_out { 0 } else { HEADER_SIZE + size };
                found.ends.push(begin);
                if is_left_out {
                    continue;
                }
                payload = &mut payload[..size];
            } else {
                self.plain(piece, payload, &mut found);
            }
            let header = Header {
                dtype: self.dtype as u8,
                codec: self.codec.map_or(codec::NONE, Codec::number),
                replica: author.replica,
                incarnation: author.incarnation,
                // Below the number of fragments, which was found to fit.
                fragment: u32::try_from(fragment).unwrap_or(u32::MAX),
                seq: author.push,
                version: author.versions[fragment],
                length: payload.len() as u64,
                payload_crc: crc32c(payload),
                ..Header::new(Kind::Fragment)
            };
            head.copy_from_slice(&header.encode());
        }
        Ok(found)
    }

    fn fits(
        &self,
        len: usize,
        author: Author<'_>,
        range: &Range<usize>,
        residual: &[f32],
        target: &[u8],
    ) -> Result<(), EncodeError> {
        let fragment_len = self.fragment_len;
        let fragments = len.div_ceil(fragment_len.max(1));
        let fit = fragment_len > 0 && range.start <= range.end && range.end <= fragments;
        let versions = author.versions.len();
        if !fit || versions != fragments || u32::try_from(fragments).is_err() {
            let range = range.clone();
            return Err(EncodeError::Range { range, len, fragment_len, fragments, versions });
        }
        if author.push == 0 || author.push == u64::MAX {
            return Err(EncodeError::Push { push: author.push });
        }
        let (needed, actual) = (self.size(len), target.len());
        if needed != actual {
            return Err(EncodeError::Target { len, needed, actual });
        }
        if residual.len() != if self.codec.is_some() { len } else { 0 } {
            return Err(EncodeError::Residual { len, actual: residual.len() });
        }
        Ok(())
    }

    /// Elements as they are, in the wire's type.
    fn plain(&self, piece: Piece<'_, '_>, payload: &mut [u8], found: &mut Encoded) {
        let Piece { level, arrays, start, scratch } = piece;
        if self.dtype == GATHERED
            && let Ok(values) = bytemuck::try_cast_slice_mut::<u8, f32>(payload)
        {
            arrays.read(level, start, values);
            found.gradient.add(start, kernel::check(level, Gradient::F32(values)));
            return;
        }
        arrays.read(level, start, scratch);
        let before = kernel::check(level, Gradient::F32(scratch));
        // The lengths are those of the same elements, so neither of these can fail.
        let _ = kernel::cast(level, Gradient::F32(scratch), payload, self.dtype);
        let Ok(sent) = Gradient::from_bytes(payload, self.dtype) else { return };
        let after = kernel::check(level, sent);
        let gone = kernel::zeros(level, sent) - kernel::zeros(level, Gradient::F32(scratch));
        found.underflowed += gone;
        found.overflowed += after.count - before.count;
        let first = after.first_index.map(|index| start + index);
        found.overflowed_first = found.overflowed_first.or(first);
        let sum_of_squares = after.sum_of_squares;
        found.gradient.add(start, Check { sum_of_squares, ..before });
    }

    /// Give back what encoding the fragments from `first` on has moved of the residual.
    #[allow(clippy::too_many_arguments, reason = "what they were encoded from, and into")]
    fn take_back(
        &self,
        level: Level,
        arrays: &Arrays<'_>,
        codec: &Codec,
        first: usize,
        ends: &[usize],
        residual: &mut [f32],
        target: &[u8],
    ) {
        let mut values = vec![0.0; self.fragment_len];
        let mut begin = 0;
        for (fragment, end) in (first..).zip(ends) {
            // Whole ones: the last fragment has none behind it that could have failed.
            let start = fragment * self.fragment_len;
            arrays.read(level, start, &mut values);
            let payload = target[begin..*end].get(HEADER_SIZE..).unwrap_or_default();
            let _ = codec.give_back(payload, &values, &mut residual[start..][..values.len()]);
            begin = *end;
        }
    }
}

/// One fragment's elements, and room for them.
struct Piece<'a, 'b> {
    level: Level,
    arrays: &'a Arrays<'b>,
    start: usize,
    scratch: &'a mut [f32],
}

/// Encode one fragment into how many bytes; `None` if it cannot be.
fn encoded(
    piece: Piece<'_, '_>,
    codec: &Codec,
    residual: &mut [f32],
    payload: &mut [u8],
    found: &mut Encoded,
) -> Option<usize> {
    let Piece { level, arrays, start, scratch } = piece;
    arrays.read(level, start, scratch);
    match codec.encode(scratch, residual, payload) {
        Ok(size) => {
            // How long it is where it arrives.
            let decoded = codec.decode(&payload[..size], scratch);
            let looked = kernel::check(level, Gradient::F32(scratch));
            found.gradient.add(start, looked);
            decoded.is_ok().then_some(size)
        }
        Err(codec::CodecError::NonFinite { count, first_index, .. }) => {
            found.overflowed += count;
            found.overflowed_first = Some(start + first_index);
            None
        }
        // The lengths are those of the same elements.
        Err(_) => None,
    }
}
