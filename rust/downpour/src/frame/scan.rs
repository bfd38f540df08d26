//! Many frames at once: those of a buffer.

use super::{Fault, HEADER_SIZE, Header, ProtocolError};

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
