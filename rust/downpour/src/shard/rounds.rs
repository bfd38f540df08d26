//! Open rounds as bytes, within an exported state.
//!
//! # Layout
//! Little-endian, for each fragment of a store that combines:
//!
//! ```text
//! off  size  field
//!  0   40    round, records, weight (f64), samples, staleness
//! 40         if there are records: the sum's elements, f32
//! ```

use crate::dedupe::Words;
use crate::store::{Accumulated, Store};

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

/// Read what [`encode`] wrote of one fragment of `len` elements; `None` if that is not all there.
pub(super) fn decode(words: &mut Words<'_>, len: usize) -> Option<Open> {
    let mut word = || words.u64();
    let open = Accumulated {
        round: word()?,
        count: word()?,
        weight: f64::from_bits(word()?),
        samples: word()?,
        staleness: word()?,
    };
    let len = if open.count > 0 { len } else { 0 };
    let sum = bytemuck::pod_collect_to_vec(words.bytes(len.checked_mul(size_of::<f32>())?)?);
    Some((open, sum))
}
