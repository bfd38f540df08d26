//! A shard's state as bytes: LSN, fragment versions, and who has had what applied.
//!
//! # Layout
//! Little-endian:
//!
//! ```text
//! off  size  field
//!  0    4    magic "PDS1"
//!  4    1    version 1
//!  5    1    1 if the store combines records in rounds
//!  6    2    zeros
//!  8   16    elements of a fragment, elements of the shard
//! 24    8    the shard's first fragment, its number of fragments
//! 32    8    LSN
//! 40    8    replicas, zero
//! 48   24    for each fragment: version, LSN of its last update, samples behind its updates
//!  .         the open rounds: see rounds
//!  .   16    the first id that was not given yet, ranges of known ids below it, records of others
//!  .    8    for each range: start, stop
//!  .   56    for each replica, ascending: id, incarnation, whether it was admitted, zero, LSN of
//!            its last record, records, the highest push announced, floor, bitmaps
//!  .    .      for each bitmap: first push, last push, a bit for each fragment in whole u64
//!  .    4    CRC-32C of everything before
//! ```
//!
//! Nothing in it names a shard but which fragments were its own, so the states of some shards load
//! into others that own the same fragments. What belongs to one shard alone cannot: LSNs count its
//! records, and a shard whose fragments come from several, or are a part of another's, begins to
//! count at their updates and open records, as if all were changed then. Whoever fetches from such
//! a shard begins at 0.
//!
//! The parameters travel beside it: an export belongs to the planes read at the same LSN.

use std::ops::Range;
use std::sync::PoisonError;

use super::Shard;
use super::rounds::{self, Open};
use crate::checksum::crc32c;
use crate::dedupe::{StateError, Windows, Words};
use crate::store::StoreError;

const MAGIC: [u8; 4] = *b"PDS1";
const VERSION: u8 = 1;
const HEAD_SIZE: usize = 48;
const FRAGMENT_SIZE: usize = 24;
const CRC_SIZE: usize = 4;

/// Why exported states were not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The bytes are wrong, or not of this shard's fragments.
    #[error(transparent)]
    State(#[from] StateError),
    /// The store is in use already.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the bytes of one shard say, once they were checked.
#[derive(Debug)]
struct State {
    fragment_len: u64,
    len: u64,
    lsn: u64,
    fragments: Vec<Fragment>,
    windows: Windows,
}

/// What they say of one fragment.
#[derive(Clone, Debug, Default)]
struct Fragment {
    version: u64,
    lsn: u64,
    samples: u64,
    /// `None` if the shard does not combine.
    round: Option<Open>,
}

impl Fragment {
    /// Updates and records that wait for one.
    fn records(&self) -> u64 {
        let open = self.round.as_ref().map_or(0, |(open, _)| open.count);
        self.version.saturating_add(open)
    }
}

impl Shard {
    /// LSN, fragment versions, open rounds and dedupe windows at one moment between two records.
    ///
    /// Waits for records that are being applied and holds new ones back while it copies.
    ///
    /// # Panics
    /// Never: replicas are numbered with 32 bits.
    #[must_use]
    pub fn export_state(&self) -> Vec<u8> {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let (store, Range { start, end }) = (self.store(), self.fragments());
        let windows = self.windows.encode();
        let size = HEAD_SIZE + FRAGMENT_SIZE * store.fragments() + windows.len() + CRC_SIZE;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, u8::from(store.accumulates()), 0, 0]);
        let geometry = store.geometry();
        for length in [geometry.fragment_len, geometry.len] {
            bytes.extend_from_slice(&(length as u64).to_le_bytes());
        }
        for number in [start, end - start] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&store.lsn().to_le_bytes());
        let replicas = u32::try_from(self.windows.replicas()).expect("ids have 32 bits");
        for number in [replicas, 0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for place in 0..store.fragments() {
            bytes.extend_from_slice(&store.version(place).to_le_bytes());
            bytes.extend_from_slice(&store.fragment_lsn(place).to_le_bytes());
            bytes.extend_from_slice(&store.samples(place).to_le_bytes());
        }
        rounds::encode(store, &mut bytes);
        bytes.extend_from_slice(&windows);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Take the states of shards that together own every fragment of this one, in place of this
    /// shard's empty one. The state of a shard with just these fragments is taken as it is. If one
    /// of them combines, this one does from now on.
    ///
    /// # Errors
    /// [`ImportError::State`] if bytes are damaged, of another version or another layout, or a
    /// fragment is in none or two of them; [`ImportError::Store`] after the first record. Nothing
    /// was changed.
    pub fn import_state(&self, states: &[&[u8]]) -> Result<(), ImportError> {
        let states =
            states.iter().map(|bytes| State::parse(bytes)).collect::<Result<Vec<_>, _>>()?;
        let merged = self.merge(states)?;
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let store = self.store();
        let all = |of: fn(&Fragment) -> u64| merged.fragments.iter().map(of).collect::<Vec<_>>();
        let (versions, lsns) = (all(|one| one.version), all(|one| one.lsn));
        store.restore(merged.lsn, &versions, &lsns, &all(|one| one.samples))?;
        if merged.fragments.iter().any(|fragment| fragment.round.is_some()) {
            store.start_accumulating()?;
        }
        for (place, fragment) in merged.fragments.iter().enumerate() {
            if let Some((open, sum)) = &fragment.round {
                store.restore_accumulated(place, *open, sum)?;
            }
        }
        self.windows.replace(merged.windows);
        Ok(())
    }

    /// One state of this shard's fragments.
    fn merge(&self, mut states: Vec<State>) -> Result<State, StateError> {
        let own = self.fragments();
        states.retain(|state| {
            let theirs = state.windows.fragments();
            theirs.start < own.end && own.start < theirs.end
        });
        self.compare(&states)?;
        if states.len() == 1 && states[0].windows.fragments() == own {
            return Ok(states.remove(0));
        }
        let mut fragments = vec![Fragment::default(); own.len()];
        let mut shares = Vec::with_capacity(states.len());
        for state in &states {
            let theirs = state.windows.fragments();
            let common = own.start.max(theirs.start)..own.end.min(theirs.end);
            for fragment in common.clone() {
                let [to, from] = [&own, &theirs].map(|all| (fragment - all.start) as usize);
                fragments[to].clone_from(&state.fragments[from]);
            }
            shares.push((&state.windows, common));
        }
        let records = fragments.iter().map(Fragment::records);
        let lsn = records.fold(0, u64::saturating_add);
        for fragment in &mut fragments {
            fragment.lsn = if fragment.version > 0 { lsn } else { 0 };
        }
        let windows = Windows::join(own, &shares, lsn)?;
        let geometry = self.store().geometry();
        let (fragment_len, len) = (geometry.fragment_len as u64, geometry.len as u64);
        Ok(State { fragment_len, len, lsn, fragments, windows })
    }

    /// Whether every fragment of this shard comes from one of the states, with all its elements.
    fn compare(&self, states: &[State]) -> Result<(), StateError> {
        let expected = self.store().geometry().fragment_len as u64;
        if let Some(state) = states.iter().find(|state| state.fragment_len != expected) {
            return Err(StateError::FragmentLen { found: state.fragment_len, expected });
        }
        for (place, fragment) in self.fragments().enumerate() {
            let mut lens = states.iter().filter_map(|state| state.elements(fragment));
            let (found, others) = (lens.next(), lens.count());
            let Some(found) = found.filter(|_| others == 0) else {
                let count = others + usize::from(found.is_some());
                return Err(StateError::Count { fragment, count });
            };
            let expected = self.fragment_len(fragment).unwrap_or(0) as u64;
            if found != expected {
                return Err(StateError::Fragment { fragment, found, expected });
            }
            let mut rounds = states.iter().filter_map(|state| state.round(fragment));
            if rounds.any(|(open, sum)| !self.store().may_hold(place, open, sum)) {
                return Err(StateError::Round { fragment });
            }
        }
        Ok(())
    }
}

impl State {
    /// Elements of a fragment, if it is one of this state's.
    fn elements(&self, fragment: u32) -> Option<u64> {
        let place = u64::from(self.windows.place(fragment)?);
        Some(self.fragment_len.min(self.len - place * self.fragment_len))
    }

    fn round(&self, fragment: u32) -> Option<&Open> {
        let place = self.windows.place(fragment)?;
        self.fragments[place as usize].round.as_ref()
    }

    fn parse(bytes: &[u8]) -> Result<Self, StateError> {
        let short = StateError::Size { actual: bytes.len(), expected: HEAD_SIZE + CRC_SIZE };
        let (body, stored) = bytes.split_last_chunk::<CRC_SIZE>().ok_or(short)?;
        let (head, rest) = body.split_first_chunk::<HEAD_SIZE>().ok_or(short)?;
        if head[..4] != MAGIC {
            let found = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            return Err(StateError::Magic { found, expected: u32::from_le_bytes(MAGIC) });
        }
        let (stored, computed) = (u32::from_le_bytes(*stored), crc32c(body));
        if stored != computed {
            return Err(StateError::Checksum { stored, computed });
        }
        if head[4] != VERSION {
            return Err(StateError::Version { found: head[4], expected: VERSION });
        }
        if head[5] > 1 || head[6..8] != [0; 2] || head[44..] != [0; 4] {
            return Err(StateError::Inconsistent { what: "reserved bytes", offset: 5 });
        }
        let accumulates = head[5] == 1;
        let mut words = Words::new(&head[8..]);
        let mut double = || words.u64().ok_or(short);
        let (fragment_len, len, numbers, lsn) = (double()?, double()?, double()?, double()?);
        let (first, count) = (numbers & 0xFFFF_FFFF, numbers >> 32);
        let [first, count] = [first, count].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let end = first.checked_add(count);
        let is_cut = fragment_len > 0 && len > 0 && len.div_ceil(fragment_len) == u64::from(count);
        let (Some(end), true) = (end, is_cut) else {
            return Err(StateError::Inconsistent { what: "the numbers of fragments", offset: 8 });
        };
        let replicas = words.u32().ok_or(short)?;
        // Everything behind is counted by the bytes that are there.
        let rounds_at = HEAD_SIZE + FRAGMENT_SIZE * count as usize;
        let Some((head, rest)) = rest.split_at_checked(rounds_at - HEAD_SIZE) else {
            let expected = rounds_at + CRC_SIZE;
            return Err(StateError::Size { actual: bytes.len(), expected });
        };
        let fragments = parse_fragments(head, lsn)?;
        let mut state =
            Self { fragment_len, len, lsn, fragments, windows: Windows::new(first..end) };
        let mut words = Words::new(rest);
        for fragment in (first..end).filter(|_| accumulates) {
            let wrong = StateError::Inconsistent {
                what: "a fragment's round",
                offset: body.len() - words.left(),
            };
            let elements = state.elements(fragment).and_then(|len| usize::try_from(len).ok());
            let round = elements.and_then(|len| rounds::decode(&mut words, len));
            state.fragments[(fragment - first) as usize].round = Some(round.ok_or(wrong)?);
        }
        let offset = body.len() - words.left();
        state.windows = Windows::decode(first..end, words.rest(), offset, lsn)?;
        if state.windows.replicas() != replicas as usize {
            return Err(StateError::Inconsistent { what: "the number of replicas", offset: 40 });
        }
        Ok(state)
    }
}

/// Versions, LSNs and samples of all fragments; every update has one LSN, so neither of the first
/// two passes the shard's.
fn parse_fragments(bytes: &[u8], lsn: u64) -> Result<Vec<Fragment>, StateError> {
    let mut words = Words::new(bytes);
    let mut fragments = Vec::with_capacity(bytes.len() / FRAGMENT_SIZE);
    let mut sum = 0_u64;
    while let (Some(version), Some(last), Some(samples)) = (words.u64(), words.u64(), words.u64()) {
        sum = sum.saturating_add(version);
        if version > last || last > lsn || (version == 0) != (last == 0) || sum > lsn {
            let offset = HEAD_SIZE + FRAGMENT_SIZE * fragments.len();
            return Err(StateError::Inconsistent { what: "a fragment's version", offset });
        }
        fragments.push(Fragment { version, lsn: last, samples, round: None });
    }
    Ok(fragments)
}
