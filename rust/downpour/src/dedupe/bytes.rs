//! Little-endian words, read one after the other from bytes that may end.

/// What is left to read.
#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// So many bytes; `None`, and nothing is read, if there are fewer.
    pub(crate) fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        Some(bytes)
    }

    /// The bytes that were not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next four bytes; `None`, and nothing is read, if there are fewer.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*word))
    }

    /// The next eight bytes; `None`, and nothing is read, if there are fewer.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*word))
    }
}
