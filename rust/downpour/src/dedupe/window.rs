//! The floor and the bitmap above it.

/// Seqs above the floor that are remembered one by one; `floor + WINDOW` is already outside.
pub const WINDOW: u64 = 1024;

const WORDS: usize = 16;

/// The seqs of one incarnation that are done.
///
/// # Layout
/// The bitmap is a ring: seq `s` lives in bit `s % 1024`, so raising the floor moves nothing. Bits
/// at or below the floor are clear, and the bit of `floor + 1` is clear too (else the floor would
/// be higher): every state has one representation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    floor: u64,
    words: [u64; WORDS],
}

/// Word and mask of a seq's bit.
const fn place(seq: u64) -> (usize, u64) {
    let bit = seq % WINDOW;
    ((bit / 64) as usize, 1 << (bit % 64))
}

impl Window {
    /// Every seq up to here is done or will never be asked about.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether `seq` is too far above the floor to be remembered.
    #[must_use]
    pub fn is_beyond(&self, seq: u64) -> bool {
        seq >= self.floor.saturating_add(WINDOW)
    }

    /// Whether `seq` is done.
    #[must_use]
    pub fn is_done(&self, seq: u64) -> bool {
        if seq <= self.floor {
            return true;
        }
        if self.is_beyond(seq) {
            return false;
        }
        let (word, mask) = place(seq);
        self.words[word] & mask != 0
    }

    /// Remember that `seq` is done.
    ///
    /// # Panics
    /// If `seq` is beyond the window: the caller asks [`is_beyond`](Self::is_beyond) first.
    pub fn mark(&mut self, seq: u64) {
        assert!(!self.is_beyond(seq), "seq {seq} is beyond the window above {}", self.floor);
        if seq <= self.floor {
            return;
        }
        let (word, mask) = place(seq);
        self.words[word] |= mask;
        self.settle();
    }

    /// Raise the floor to `floor` if it is lower, and then over done seqs that touch it.
    pub fn raise(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        if floor - self.floor >= WINDOW {
            self.words = [0; WORDS];
        } else {
            for seq in self.floor + 1..=floor {
                let (word, mask) = place(seq);
                self.words[word] &= !mask;
            }
        }
        self.floor = floor;
        self.settle();
    }

    /// How many of the `count` seqs from `first` on are done. The work is bounded by the window,
    /// not by `count`, which may be a number that somebody made up.
    #[must_use]
    pub fn done_in(&self, first: u64, count: u32) -> u32 {
        let stop = first.saturating_add(u64::from(count));
        let above = self.floor.saturating_add(1);
        let below = stop.min(above).saturating_sub(first);
        let end = stop.min(self.floor.saturating_add(WINDOW));
        let remembered = (first.max(above)..end).filter(|seq| self.is_done(*seq)).count() as u64;
        // Not more than `count`, which has 32 bits.
        u32::try_from(below + remembered).unwrap_or(count)
    }

    /// The highest seq that is done, or the floor.
    pub(super) fn last(&self) -> u64 {
        let end = self.floor.saturating_add(WINDOW);
        (self.floor..end).rev().find(|seq| self.is_done(*seq)).unwrap_or(self.floor)
    }

    /// The floor climbs over done seqs that touch it.
    fn settle(&mut self) {
        // The highest seq whose successor still is a number stays the end of the climb.
        while let Some(next) = self.floor.checked_add(1) {
            let (word, mask) = place(next);
            if self.words[word] & mask == 0 {
                return;
            }
            self.words[word] &= !mask;
            self.floor = next;
        }
    }

    /// Bytes of an encoded window.
    pub(super) const SIZE: usize = 8 + 8 * WORDS;

    /// Append floor and bitmap, little-endian.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.floor.to_le_bytes());
        for word in self.words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Read what [`encode`](Self::encode) wrote; `None` if it is not the one representation.
    pub(super) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let floor = words.next()?;
        let mut window = Self { floor, words: [0; WORDS] };
        for slot in &mut window.words {
            *slot = words.next()?;
        }
        // `floor` and `floor + WINDOW` share a bit, and neither is remembered by it.
        let is_clear = |seq: u64| {
            let (word, mask) = place(seq);
            window.words[word] & mask == 0
        };
        let beyond_the_end = u64::MAX - floor < WINDOW && window.words != [0; WORDS];
        (is_clear(floor) && is_clear(floor.wrapping_add(1)) && !beyond_the_end).then_some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_climbs_over_contiguous_seqs_only() {
        let mut window = Window::default();
        for seq in [2, 3, 5] {
            window.mark(seq);
        }
        assert_eq!(window.floor(), 0);
        window.mark(1);
        assert_eq!(window.floor(), 3);
        window.raise(4);
        assert_eq!(window.floor(), 5);
    }

    #[test]
    fn the_last_remembered_seq_is_floor_plus_1023() {
        let mut window = Window::default();
        window.raise(10);
        assert!(!window.is_beyond(10 + WINDOW - 1));
        assert!(window.is_beyond(10 + WINDOW));
        window.mark(10 + WINDOW - 1);
        assert!(window.is_done(10 + WINDOW - 1));
        assert!(!window.is_done(10 + WINDOW));
        assert!(!window.is_done(11));
    }

    #[test]
    fn a_far_raise_forgets_every_bit() {
        let mut window = Window::default();
        window.mark(7);
        window.raise(5000);
        assert_eq!(window, Window { floor: 5000, words: [0; WORDS] });
        window.raise(u64::MAX);
        assert!(window.is_done(u64::MAX));
    }

    #[test]
    fn counting_done_seqs_costs_the_window_and_not_the_count() {
        let mut window = Window::default();
        window.raise(1 << 40);
        window.mark((1 << 40) + 3);
        // Four thousand million seqs at and below the floor: walking them would take seconds each.
        for _ in 0..1000 {
            assert_eq!(window.done_in(1, u32::MAX), u32::MAX);
        }
        assert_eq!(window.done_in((1 << 40) - 1, 6), 3);
        assert_eq!(window.done_in((1 << 40) + 1, u32::MAX), 1);
        window.raise(u64::MAX);
        assert_eq!(window.done_in(1, u32::MAX), u32::MAX);
        // Beyond the end of the integers there are no seqs.
        assert_eq!(window.done_in(u64::MAX - 5, u32::MAX), 5);
    }

    #[test]
    fn decoding_refuses_a_second_representation() {
        let mut bytes = Vec::new();
        let mut window = Window::default();
        window.mark(9);
        window.encode(&mut bytes);
        let bytes: [u8; Window::SIZE] = bytes.try_into().expect("the size is constant");
        assert_eq!(Window::decode(&bytes), Some(window));
        for bit in [0, 1] {
            let mut wrong = bytes;
            wrong[8] |= 1 << bit;
            assert_eq!(Window::decode(&wrong), None);
        }
    }
}
