//! Who will never push again.

use super::bytes::Words;

/// Ranges that [`Windows::retire`](super::Windows::retire) takes: whoever has more joins the last
/// ones.
pub const RANGES_MAX: usize = 1024;

/// Which ids will never push again: those below `next` that are in none of the ranges.
///
/// Ids are given in ascending order and never twice, so this is all there is to say about any
/// number of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Retired {
    next: u32,
    /// Records applied that no entry counts: of who is forgotten, and of before the fragments came
    /// to this shard.
    pub(super) applied: u64,
    /// Ascending, `[start, stop)`, with gaps between them.
    known: Vec<(u32, u32)>,
}

impl Retired {
    /// `None` if the ranges overlap, do not ascend, pass `next`, or are more than [`RANGES_MAX`].
    pub(super) fn new(next: u32, ranges: &[(u32, u32)]) -> Option<Self> {
        let retired = Self { next, applied: 0, known: ranges.to_vec() };
        retired.is_sound().then_some(retired)
    }

    /// The same with another number of records that no entry counts.
    pub(super) fn counting(self, applied: u64) -> Self {
        Self { applied, ..self }
    }

    pub(super) fn has(&self, replica: u32) -> bool {
        let after = self.known.partition_point(|(start, _)| *start <= replica);
        replica < self.next && after.checked_sub(1).is_none_or(|i| replica >= self.known[i].1)
    }

    fn is_sound(&self) -> bool {
        let mut end = 0;
        self.known.len() <= RANGES_MAX
            && self.known.iter().all(|(start, stop)| {
                let fits = end <= *start && start < stop && *stop <= self.next;
                end = *stop;
                fits
            })
    }

    /// Everybody who is retired here or there; `None` if that takes too many ranges.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let next = self.next.max(other.next);
        let with_rest = |retired: &Self| {
            let rest = (retired.next < next).then_some((retired.next, next));
            retired.known.iter().copied().chain(rest).collect::<Vec<_>>()
        };
        let (ours, theirs) = (with_rest(self), with_rest(other));
        let mut known = Vec::new();
        let (mut i, mut j) = (0, 0);
        while i < ours.len() && j < theirs.len() {
            let (start, stop) = (ours[i].0.max(theirs[j].0), ours[i].1.min(theirs[j].1));
            if start < stop {
                known.push((start, stop));
            }
            if ours[i].1 <= theirs[j].1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        (known.len() <= RANGES_MAX).then_some(Self { next, applied: 0, known })
    }

    /// Bytes of [`encode`](Self::encode).
    pub(super) fn size(&self) -> usize {
        16 + 8 * self.known.len()
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        // There are no more ranges than 32 bits count.
        let count = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        bytes.extend([self.next, count].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.applied.to_le_bytes());
        let words = self.known.iter().flat_map(|(start, stop)| [*start, *stop]);
        bytes.extend(words.flat_map(u32::to_le_bytes));
    }

    pub(super) fn decode(words: &mut Words<'_>) -> Option<Self> {
        let (next, count, applied) = (words.u32()?, words.u32()? as usize, words.u64()?);
        if count > RANGES_MAX {
            return None;
        }
        let ranges = (0..count).map(|_| Some((words.u32()?, words.u32()?)));
        let retired = Self { next, applied, known: ranges.collect::<Option<_>>()? };
        retired.is_sound().then_some(retired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_retired_anywhere_is_retired_in_both() {
        let one = Retired::new(10, &[(2, 4), (6, 9)]).expect("sound");
        let other = Retired::new(14, &[(3, 7), (8, 12)]).expect("sound");
        let both = one.and(&other).expect("few ranges");
        for replica in 0..20 {
            assert_eq!(both.has(replica), one.has(replica) || other.has(replica), "{replica}");
        }
        assert_eq!(both, other.and(&one).expect("few ranges"));
    }
}
