//! The 64-byte header: encode, decode, check.

use super::{Fault, Kind};
use crate::checksum::crc32c;

/// Bytes of a header.
pub const HEADER_SIZE: usize = 64;

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"PDP1";

/// The version of the wire that this code speaks.
pub const WIRE_VERSION: u8 = 1;

/// Bytes covered by the header's own checksum.
const CHECKED_SIZE: usize = 60;

/// A header whose checksum matched and whose kind and flags are known.
///
/// The meaning of `seq`, `version`, `aux` and `count` depends on the kind; see [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame says.
    pub kind: Kind,
    /// How the payload is compressed; 0 is not at all.
    pub codec: u8,
    /// Element type of the payload, 0 where there are no elements.
    pub dtype: u8,
    /// Bits; see [`Kind::flags_known`].
    pub flags: u32,
    /// Who pushes.
    pub replica: u32,
    /// Which life of the replica.
    pub incarnation: u32,
    /// Which fragment of the layout, or the first of a run.
    pub fragment: u32,
    /// Number of the push or request.
    pub seq: u64,
    /// A fragment version or an LSN.
    pub version: u64,
    /// Bytes of the payload. Compare with a limit before use.
    pub length: u64,
    /// A number whose meaning depends on the kind.
    pub aux: u32,
    /// How many records or frames.
    pub count: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

impl Header {
    /// A header of this kind with everything else zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            codec: 0,
            dtype: 0,
            flags: 0,
            replica: 0,
            incarnation: 0,
            fragment: 0,
            seq: 0,
            version: 0,
            length: 0,
            aux: 0,
            count: 0,
            payload_crc: 0,
        }
    }

    /// The same header, describing `payload`: its length and checksum.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8]) -> Self {
        self.length = payload.len() as u64;
        self.payload_crc = crc32c(payload);
        self
    }

    /// The 64 bytes, with the header's checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[WIRE_VERSION, self.kind as u8, self.codec, self.dtype]);
        let words = [self.flags, self.replica, self.incarnation, self.fragment];
        for (slot, word) in bytes[8..24].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        for (slot, word) in
            bytes[24..48].chunks_exact_mut(8).zip([self.seq, self.version, self.length])
        {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        for (slot, word) in
            bytes[48..60].chunks_exact_mut(4).zip([self.aux, self.count, self.payload_crc])
        {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c(&bytes[..CHECKED_SIZE]);
        bytes[CHECKED_SIZE..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Read 64 bytes: magic, then the checksum, then the wire version, then the rest.
    ///
    /// # Errors
    /// A [`Fault`] naming the first thing that is wrong.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, Fault> {
        let magic = u32_at(bytes, 0);
        let expected = u32::from_le_bytes(MAGIC);
        if magic != expected {
            return Err(Fault::Magic { found: magic, expected });
        }
        let (stored, computed) = (u32_at(bytes, CHECKED_SIZE), crc32c(&bytes[..CHECKED_SIZE]));
        if stored != computed {
            return Err(Fault::HeaderChecksum { stored, computed });
        }
        if bytes[4] != WIRE_VERSION {
            return Err(Fault::WireVersion { found: bytes[4], expected: WIRE_VERSION });
        }
        let kind = Kind::from_number(bytes[5]).ok_or(Fault::Kind { found: bytes[5] })?;
        let flags = u32_at(bytes, 8);
        let unknown = flags & !kind.flags_known();
        if unknown != 0 {
            return Err(Fault::Flags { kind, unknown });
        }
        // Elements have a dtype; a fragment's is judged by the shard, which can refuse the record.
        if !kind.carries_elements() && (bytes[6] != 0 || bytes[7] != 0) {
            let (codec, dtype) = (bytes[6], bytes[7]);
            return Err(Fault::Encoding { kind, dtype, codec, expected: 0 });
        }
        Ok(Self {
            kind,
            codec: bytes[6],
            dtype: bytes[7],
            flags,
            replica: u32_at(bytes, 12),
            incarnation: u32_at(bytes, 16),
            fragment: u32_at(bytes, 20),
            seq: u64_at(bytes, 24),
            version: u64_at(bytes, 32),
            length: u64_at(bytes, 40),
            aux: u32_at(bytes, 48),
            count: u32_at(bytes, 52),
            payload_crc: u32_at(bytes, 56),
        })
    }

    /// The payload's size in memory, once it is known to be within `limit` bytes.
    ///
    /// # Errors
    /// [`Fault::PayloadSize`] above the limit.
    pub fn payload_size(&self, limit: usize) -> Result<usize, Fault> {
        match usize::try_from(self.length) {
            Ok(size) if size <= limit => Ok(size),
            _ => {
                Err(Fault::PayloadSize { kind: self.kind, size: self.length, limit: limit as u64 })
            }
        }
    }

    /// Compare the payload with its checksum.
    ///
    /// # Errors
    /// [`Fault::PayloadChecksum`] if they differ.
    pub fn verify(&self, payload: &[u8]) -> Result<(), Fault> {
        let computed = crc32c(payload);
        if computed == self.payload_crc {
            return Ok(());
        }
        Err(Fault::PayloadChecksum { kind: self.kind, stored: self.payload_crc, computed })
    }
}

/// The little-endian word at `offset`.
fn u32_at(bytes: &[u8; HEADER_SIZE], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// The little-endian double word at `offset`.
fn u64_at(bytes: &[u8; HEADER_SIZE], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}
