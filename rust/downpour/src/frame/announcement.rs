//! The payload of a PUSH frame: what the policy needs to know before the first record.

use super::{Fault, Kind};

/// Bytes of an encoded [`Announcement`].
pub const ANNOUNCEMENT_SIZE: usize = 24;

/// What a replica says about a push with each run of its fragments.
///
/// # Layout
/// Three u64, little-endian: `first_open`, `clock`, `samples`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The replica's oldest push here without all of its answers; every one below is settled for
    /// ever.
    pub first_open: u64,
    /// Steps the replica has finished.
    pub clock: u64,
    /// Training samples behind this push.
    pub samples: u64,
}

impl Announcement {
    /// The bytes of the payload.
    #[must_use]
    pub fn encode(&self) -> [u8; ANNOUNCEMENT_SIZE] {
        let mut bytes = [0; ANNOUNCEMENT_SIZE];
        for (slot, value) in
            bytes.chunks_exact_mut(8).zip([self.first_open, self.clock, self.samples])
        {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Read a payload.
    ///
    /// # Errors
    /// [`Fault::PayloadMismatch`] unless there are exactly [`ANNOUNCEMENT_SIZE`] bytes.
    pub fn decode(payload: &[u8]) -> Result<Self, Fault> {
        let bytes: &[u8; ANNOUNCEMENT_SIZE] =
            payload.try_into().map_err(|_| Fault::PayloadMismatch {
                kind: Kind::Push,
                size: payload.len() as u64,
                expected: ANNOUNCEMENT_SIZE as u64,
            })?;
        let word = |i: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_le_bytes(value)
        };
        Ok(Self { first_open: word(0), clock: word(1), samples: word(2) })
    }
}
