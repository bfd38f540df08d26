//! What a journal is told: every update, in the order of its number, before anybody can see it.
//!
//! A journal is a function of nothing but these entries, and the store's contents are a function of
//! the journal. The store does no I/O: [`Recording`] is a bounded buffer that somebody else empties
//! and writes out. Without a journal updates are only counted.
//!
//! # Layout of a recorded entry
//!
//! Little-endian, 96 bytes and the payload behind them:
//!
//! | offset | bytes | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 8 | lsn | |
//! | 8 | 4 | fragment | of the whole layout |
//! | 12 | 1 | change | 1 a record is applied, 2 added to a round, 3 a round is closed |
//! | 13 | 1 | dtype | of the payload |
//! | 14 | 1 | codec | of the payload |
//! | 15 | 1 | | 0 |
//! | 16 | 4 | replica | 0: a record without identity |
//! | 20 | 4 | incarnation | |
//! | 24 | 8 | push | |
//! | 32 | 8 | base version | |
//! | 40 | 8 | round | |
//! | 48 | 8 | weight | f64: of the record in its round |
//! | 56 | 8 | samples | |
//! | 64 | 8 | staleness | |
//! | 72 | 4 | factor | f32: what the gradient, or the sum, is multiplied by |
//! | 76 | 8 | length | bytes of payload |
//! | 84 | 8 | | 0 |
//! | 92 | 4 | chain | CRC-32C of the entry, continued from that of the one before |

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::admission::Round;
use super::error::ApplyError;
use crate::checksum::extend;

/// One record as it was received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who pushed it; 0 if that is nobody's to know.
    pub replica: u32,
    pub incarnation: u32,
    /// Which of its pushes.
    pub push: u64,
    /// The fragment's version that its gradient was computed from.
    pub base_version: u64,
    pub dtype: u8,
    pub codec: u8,
    pub payload: &'a [u8],
}

/// What becomes of a fragment.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// A record is applied, or added to a round: with everything that was decided about it.
    Record {
        received: Received<'a>,
        staleness: u64,
        factor: f32,
        samples: u64,
        round: Option<Round>,
    },
    /// A round's sum is applied, or dropped because it is not finite.
    Close { round: u64, factor: f32 },
}

/// One update, with its number in the shard's one order.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub lsn: u64,
    /// Its number in the whole layout.
    pub fragment: u32,
    pub change: Change<'a>,
}

/// Takes updates before they are visible.
pub trait Journal: Send + Sync {
    /// Take the next entry: one above the last that was taken. Called by one thread at a time.
    ///
    /// # Errors
    ///
    /// [`ApplyError::Full`] if there is no room: the update is refused, and its number is the next
    /// entry's.
    fn append(&self, entry: &Entry<'_>) -> Result<(), ApplyError>;
}

/// Bytes of an entry before its payload.
pub const ENTRY_SIZE: usize = 96;

/// A bounded buffer of entries as bytes, for whoever writes them out. Clones share it.
#[derive(Clone)]
pub struct Recording(Arc<Mutex<Buffer>>);

struct Buffer {
    entries: VecDeque<Vec<u8>>,
    size: usize,
    size_max: usize,
    chain: u32,
    last_lsn: u64,
}

impl Recording {
    /// One that holds at most so many bytes, however they are cut.
    #[must_use]
    pub fn new(size_max: usize) -> Self {
        let entries = VecDeque::new();
        let buffer = Buffer { entries, size: 0, size_max, chain: 0, last_lsn: 0 };
        Self(Arc::new(Mutex::new(buffer)))
    }

    /// Take everything out, oldest first: there is room for as much again.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut buffer = self.enter();
        buffer.size = 0;
        buffer.entries.drain(..).collect()
    }

    /// The number of the newest entry, taken out or not; 0 before the first.
    #[must_use]
    pub fn last_lsn(&self) -> u64 {
        self.enter().last_lsn
    }

    fn enter(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Recording {
    fn append(&self, entry: &Entry<'_>) -> Result<(), ApplyError> {
        let payload = match entry.change {
            Change::Record { received, .. } => received.payload,
            Change::Close { .. } => &[],
        };
        let mut buffer = self.enter();
        let size = ENTRY_SIZE + payload.len();
        if buffer.size + size > buffer.size_max {
            let (used, limit) = (buffer.size, buffer.size_max);
            return Err(ApplyError::Full { what: "bytes of the journal", used, limit });
        }
        let mut bytes = Vec::with_capacity(size);
        encode(entry, payload, &mut bytes);
        let chain = extend(extend(buffer.chain, &bytes), payload);
        bytes.extend_from_slice(&chain.to_le_bytes());
        bytes.extend_from_slice(payload);
        buffer.chain = chain;
        buffer.last_lsn = entry.lsn;
        buffer.size += size;
        buffer.entries.push_back(bytes);
        Ok(())
    }
}

/// An entry's fields up to its place in the chain.
fn encode(entry: &Entry<'_>, payload: &[u8], bytes: &mut Vec<u8>) {
    let nobody = Received {
        replica: 0,
        incarnation: 0,
        push: 0,
        base_version: 0,
        dtype: 0,
        codec: 0,
        payload,
    };
    let (kind, received, round, weight, samples, staleness, factor) = match entry.change {
        Change::Record { received, staleness, factor, samples, round: None } => {
            (1, received, 0, 0.0, samples, staleness, factor)
        }
        Change::Record { received, staleness, factor, samples, round: Some(round) } => {
            (2, received, round.number, round.weight, samples, staleness, factor)
        }
        Change::Close { round, factor } => (3, nobody, round, 0.0, 0, 0, factor),
    };
    bytes.extend_from_slice(&entry.lsn.to_le_bytes());
    bytes.extend_from_slice(&entry.fragment.to_le_bytes());
    bytes.extend_from_slice(&[kind, received.dtype, received.codec, 0]);
    bytes.extend_from_slice(&received.replica.to_le_bytes());
    bytes.extend_from_slice(&received.incarnation.to_le_bytes());
    for number in [received.push, received.base_version, round] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&weight.to_le_bytes());
    for number in [samples, staleness] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&factor.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
}
