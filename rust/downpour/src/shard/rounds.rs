//! Open rounds as bytes, within an exported ledger.
//!
//! # Layout
//! Little-endian, for each fragment of a store that combines:
//!
//! ```text
//! off  size  field
//!  0   40    round, records, weight (f64), samples, staleness
//! 40         if there are records: the sum's elements, f32
//! ```

use crate::dedupe::LedgerError;
use crate::store::{Accumulated, Store};

/// Bytes of a fragment's counters.
const HEAD_SIZE: usize = 40;

/// One fragment's counters and sum, which is empty where nothing was accumulated.
pub(super) type Open = (Accumulated, Vec<f32>);

/// Append what every fragment has accumulated. The caller keeps records away.
pub(super) fn encode(store: &Store, bytes: &mut Vec<u8>) {
    let mut sum = Vec::new();
    for fragment in 0..store.fragments() {
        sum.resize(store.geometry().fragment_range(fragment).len(), 0.0);
        let Ok(Some(open)) = store.read_accumulated(fragment, &mut sum) else {
            return; // It does not combine: there is nothing to write.
        };
        let Accumulated { round, count, weight, samples, staleness } = open;
        for word in [round, count, weight.to_bits(), samples, staleness] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        if count > 0 {
            bytes.extend_from_slice(bytemuck::cast_slice(&sum));
        }
    }
}

/// Read what [`encode`] wrote; `at` is where `bytes` begin. Returns the bytes behind it.
pub(super) fn decode<'a>(
    store: &Store,
    mut bytes: &'a [u8],
    mut at: usize,
) -> Result<(Vec<Open>, &'a [u8]), LedgerError> {
    let mut opens = Vec::new();
    if !store.accumulates() {
        return Ok((opens, bytes));
    }
    for fragment in 0..store.fragments() {
        let mut take = |size: usize| {
            let short = LedgerError::Size { actual: at + bytes.len(), expected: at + size };
            let (taken, rest) = bytes.split_at_checked(size).ok_or(short)?;
            (bytes, at) = (rest, at + size);
            Ok::<_, LedgerError>(taken)
        };
        let head = take(HEAD_SIZE)?;
        let word = |index: usize| super::export::u64_at(head, 8 * index);
        let open = Accumulated {
            round: word(0),
            count: word(1),
            weight: f64::from_bits(word(2)),
            samples: word(3),
            staleness: word(4),
        };
        let len = if open.count > 0 { store.geometry().fragment_range(fragment).len() } else { 0 };
        let sum: Vec<f32> = bytemuck::pod_collect_to_vec(take(len * size_of::<f32>())?);
        if !store.may_hold(fragment, &open, &sum) {
            return Err(LedgerError::Inconsistent { what: "a fragment's round", offset: at });
        }
        opens.push((open, sum));
    }
    Ok((opens, bytes))
}
