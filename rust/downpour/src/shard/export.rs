//! The ledger as bytes: LSN, fragment versions, and who has had what applied.
//!
//! # Layout
//! Little-endian:
//!
//! ```text
//! off  size  field
//!  0    4    magic "PDL1"
//!  4    1    version 3
//!  5    1    1 if the store combines records in rounds
//!  6    2    zeros
//!  8   24    len, stripe_len, fragment_len
//! 32    8    LSN
//! 40    4    fragments
//! 44    4    replicas
//! 48   24    for each fragment: version, LSN of its last update, samples behind its updates
//!  .         the open rounds: see rounds
//!  .   16    the first id that was not given yet, ranges of known ids below it, records of others
//!  .    8    for each range: start, stop
//!  .  172    for each replica, ascending: see dedupe
//!  .    4    CRC-32C of everything before
//! ```
//!
//! The parameters travel beside it: an export belongs to the planes read at the same LSN.

use std::sync::PoisonError;

use super::Shard;
use super::rounds::{self, Open};
use crate::checksum::crc32c;
use crate::dedupe::{Ledger, LedgerError};
use crate::store::StoreError;

const MAGIC: [u8; 4] = *b"PDL1";
const VERSION: u8 = 3;
const HEAD_SIZE: usize = 48;
const FRAGMENT_SIZE: usize = 24;
const CRC_SIZE: usize = 4;

/// Why an exported ledger was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The bytes are wrong.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The store is in use already.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the bytes say, once they were checked.
struct Parsed {
    lsn: u64,
    versions: Vec<u64>,
    lsns: Vec<u64>,
    samples: Vec<u64>,
    rounds: Vec<Open>,
    ledger: Ledger,
}

impl Shard {
    /// LSN, fragment versions, open rounds and dedupe windows at one moment between two records.
    ///
    /// Waits for records that are being applied and holds new ones back while it copies.
    ///
    /// # Panics
    /// Never: fragments and replicas are numbered with 32 bits.
    #[must_use]
    pub fn export_ledger(&self) -> Vec<u8> {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let store = self.store();
        let ledger = self.ledger.encode();
        let fragments = store.fragments();
        let mut bytes =
            Vec::with_capacity(HEAD_SIZE + FRAGMENT_SIZE * fragments + ledger.len() + CRC_SIZE);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, u8::from(store.accumulates()), 0, 0]);
        let geometry = store.geometry();
        for length in [geometry.len, geometry.stripe_len, geometry.fragment_len] {
            bytes.extend_from_slice(&(length as u64).to_le_bytes());
        }
        bytes.extend_from_slice(&store.lsn().to_le_bytes());
        for count in [fragments, self.ledger.replicas()] {
            let count = u32::try_from(count).expect("fragments and replicas have 32-bit numbers");
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        for fragment in 0..fragments {
            bytes.extend_from_slice(&store.version(fragment).to_le_bytes());
            bytes.extend_from_slice(&store.fragment_lsn(fragment).to_le_bytes());
            bytes.extend_from_slice(&store.samples(fragment).to_le_bytes());
        }
        rounds::encode(store, &mut bytes);
        bytes.extend_from_slice(&ledger);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Take an exported ledger in place of this shard's empty one.
    ///
    /// # Errors
    /// [`ImportError::Ledger`] if the bytes are damaged, of another version or another shard;
    /// [`ImportError::Store`] after the first record. Nothing was changed.
    pub fn import_ledger(&self, bytes: &[u8]) -> Result<(), ImportError> {
        let parsed = self.parse(bytes)?;
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let store = self.store();
        store.restore(parsed.lsn, &parsed.versions, &parsed.lsns, &parsed.samples)?;
        for (fragment, (open, sum)) in parsed.rounds.iter().enumerate() {
            store.restore_accumulated(fragment, *open, sum)?;
        }
        self.ledger.replace(parsed.ledger);
        Ok(())
    }

    fn parse(&self, bytes: &[u8]) -> Result<Parsed, LedgerError> {
        let short = LedgerError::Size { actual: bytes.len(), expected: HEAD_SIZE + CRC_SIZE };
        let (body, stored) = bytes.split_last_chunk::<CRC_SIZE>().ok_or(short)?;
        if body.len() < HEAD_SIZE {
            return Err(short);
        }
        if body[..4] != MAGIC {
            let (found, expected) = (u32_at(body, 0), u32::from_le_bytes(MAGIC));
            return Err(LedgerError::Magic { found, expected });
        }
        let (stored, computed) = (u32::from_le_bytes(*stored), crc32c(body));
        if stored != computed {
            return Err(LedgerError::Checksum { stored, computed });
        }
        if body[4] != VERSION {
            return Err(LedgerError::Version { found: body[4], expected: VERSION });
        }
        if body[5] != u8::from(self.store().accumulates()) {
            let what = "whether records are combined in rounds";
            return Err(LedgerError::Inconsistent { what, offset: 5 });
        }
        if body[6..8] != [0; 2] {
            return Err(LedgerError::Inconsistent { what: "reserved bytes", offset: 6 });
        }
        self.compare_geometry(body)?;
        let (lsn, fragments) = (u64_at(body, 32), u32_at(body, 40) as usize);
        if fragments != self.store().fragments() {
            return Err(LedgerError::Inconsistent { what: "the number of fragments", offset: 40 });
        }
        // The store is that large, and everything behind is counted by the bytes that are there.
        let rounds_at = HEAD_SIZE + FRAGMENT_SIZE * fragments;
        let Some(rest) = body.get(rounds_at..) else {
            let expected = rounds_at + CRC_SIZE;
            return Err(LedgerError::Size { actual: bytes.len(), expected });
        };
        let [versions, lsns, samples] = parse_fragments(body, fragments, lsn)?;
        let (rounds, rest) = rounds::decode(self.store(), rest, rounds_at)?;
        let ledger = Ledger::decode(rest, body.len() - rest.len(), lsn)?;
        if ledger.replicas() != u32_at(body, 44) as usize {
            return Err(LedgerError::Inconsistent { what: "the number of replicas", offset: 44 });
        }
        Ok(Parsed { lsn, versions, lsns, samples, rounds, ledger })
    }

    fn compare_geometry(&self, body: &[u8]) -> Result<(), LedgerError> {
        let [len, stripe_len, fragment_len] = [8, 16, 24].map(|at| u64_at(body, at));
        let own = self.store().geometry();
        let [expected_len, expected_stripe_len, expected_fragment_len] =
            [own.len, own.stripe_len, own.fragment_len].map(|length| length as u64);
        if (len, stripe_len, fragment_len)
            == (expected_len, expected_stripe_len, expected_fragment_len)
        {
            return Ok(());
        }
        Err(LedgerError::Geometry {
            len,
            stripe_len,
            fragment_len,
            expected_len,
            expected_stripe_len,
            expected_fragment_len,
        })
    }
}

/// Versions, LSNs and samples of all fragments; every update has one LSN, so neither of the first
/// two passes the shard's.
fn parse_fragments(body: &[u8], fragments: usize, lsn: u64) -> Result<[Vec<u64>; 3], LedgerError> {
    let [mut versions, mut lsns, mut samples] = [(); 3].map(|()| Vec::with_capacity(fragments));
    for fragment in 0..fragments {
        let offset = HEAD_SIZE + FRAGMENT_SIZE * fragment;
        let (version, last) = (u64_at(body, offset), u64_at(body, offset + 8));
        if version > last || last > lsn || (version == 0) != (last == 0) {
            return Err(LedgerError::Inconsistent { what: "a fragment's version", offset });
        }
        versions.push(version);
        lsns.push(last);
        samples.push(u64_at(body, offset + 16));
    }
    Ok([versions, lsns, samples])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
