//! Many frames at once: the headers of a push, and the frames of a buffer.

use super::{Fault, HEADER_SIZE, Header, Kind, ProtocolError};
use crate::checksum::crc32c;
use crate::kernel::DType;

/// Which consecutive fragments of a push are sent, and as whom.
#[derive(Clone, Copy, Debug)]
pub struct FragmentRun {
    /// Element type of the values.
    pub dtype: DType,
    /// Elements of a fragment.
    pub fragment_len: usize,
    /// The first fragment.
    pub first_fragment: usize,
    /// How many.
    pub count: usize,
    /// Who pushes.
    pub replica: u32,
    /// Which life of the replica.
    pub incarnation: u32,
    /// The push's number.
    pub push: u64,
}

/// A run that does not fit its values. Nothing was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Bytes that are not whole elements, or fragments without elements.
    #[error(
        "{size} bytes in elements of {element_size} and fragments of {fragment_len} elements: \
             there must be whole elements and at least one a fragment"
    )]
    Shape { size: usize, element_size: usize, fragment_len: usize },
    /// Fragments beyond the values or the versions.
    #[error(
        "fragments {first} .. {first} + {count}, but there are {fragments} and {versions} \
             versions"
    )]
    Range { first: usize, count: usize, fragments: usize, versions: usize },
    /// A push without a number.
    #[error("push {push}: pushes have the numbers 1 to 2^64 - 2")]
    Push { push: u64 },
}

impl FragmentRun {
    /// `count` headers of kind FRAGMENT, one after the other, for the fragments of `values`.
    ///
    /// # Shapes
    /// `values`: the bytes of all elements of the layout; only the run's are read. `versions`: one
    /// base version for each fragment of the layout.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn headers(&self, values: &[u8], versions: &[u64]) -> Result<Vec<u8>, RunError> {
        let element_size = self.dtype.size();
        let fragment_size = self.fragment_len.saturating_mul(element_size);
        if fragment_size == 0 || !values.len().is_multiple_of(element_size) {
            let fragment_len = self.fragment_len;
            return Err(RunError::Shape { size: values.len(), element_size, fragment_len });
        }
        let fragments = values.len().div_ceil(fragment_size);
        let (first, count) = (self.first_fragment, self.count);
        let stop = first.checked_add(count).filter(|stop| *stop <= fragments.min(versions.len()));
        let (Some(stop), Ok(_)) = (stop, u32::try_from(fragments)) else {
            return Err(RunError::Range { first, count, fragments, versions: versions.len() });
        };
        if self.push == 0 || self.push == u64::MAX {
            return Err(RunError::Push { push: self.push });
        }
        let mut headers = Vec::with_capacity(count * HEADER_SIZE);
        for (fragment, version) in (first..stop).zip(&versions[first..stop]) {
            let start = fragment * fragment_size;
            let payload = &values[start..(start + fragment_size).min(values.len())];
            let header = Header {
                dtype: self.dtype as u8,
                replica: self.replica,
                incarnation: self.incarnation,
                // Below `fragments`, which was found to fit.
                fragment: u32::try_from(fragment).unwrap_or(u32::MAX),
                seq: self.push,
                version: *version,
                length: payload.len() as u64,
                payload_crc: crc32c(payload),
                ..Header::new(Kind::Fragment)
            };
            headers.extend_from_slice(&header.encode());
        }
        Ok(headers)
    }
}

/// The frames of a buffer that holds whole ones, in order.
///
/// Ends after the first error. Nothing is copied.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    rest: &'a [u8],
    offset: u64,
}

impl<'a> Scan<'a> {
    /// Over all of `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data, offset: 0 }
    }

    fn frame(&mut self) -> Result<(Header, &'a [u8]), Fault> {
        let available = self.rest.len() as u64;
        let truncated = |needed| Fault::Truncated { available, needed };
        let (head, rest) = self
            .rest
            .split_first_chunk::<HEADER_SIZE>()
            .ok_or_else(|| truncated(HEADER_SIZE as u64))?;
        let header = Header::decode(head)?;
        let (payload, rest) = usize::try_from(header.length)
            .ok()
            .and_then(|size| rest.split_at_checked(size))
            .ok_or_else(|| truncated(header.length.saturating_add(HEADER_SIZE as u64)))?;
        header.verify(payload)?;
        self.offset += (HEADER_SIZE + payload.len()) as u64;
        self.rest = rest;
        Ok((header, payload))
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Result<(Header, &'a [u8]), ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let offset = self.offset;
        let frame = self.frame().map_err(|fault| fault.at(offset));
        if frame.is_err() {
            self.rest = &[];
        }
        Some(frame)
    }
}
