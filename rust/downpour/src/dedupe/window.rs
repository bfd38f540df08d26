//! The floor of one replica's pushes, and the bitmaps above it.

use std::ops::Range;

/// Bitmaps that one window may keep. A replica has at most a handful of pushes open, each of which
/// needs one; more than this are open only where answers are not believed, or a state was put
/// together of shards that are far apart.
pub const PUSHES_OPEN_MAX: usize = 64;

/// Consecutive pushes of which the same fragments are done.
///
/// Mostly one push; many where the floor waits for an older one, or where other shards' fragments
/// of them were done elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    first: u64,
    last: u64,
    /// Bits that are set: at least one.
    done: u32,
    words: Box<[u64]>,
}

impl Open {
    fn new(first: u64, last: u64, fragments: u32) -> Self {
        let words = vec![0; fragments.div_ceil(64) as usize].into();
        Self { first, last, done: 0, words }
    }

    fn has(&self, fragment: u32) -> bool {
        self.words[(fragment / 64) as usize] & (1 << (fragment % 64)) != 0
    }

    fn set(&mut self, fragment: u32) {
        let word = &mut self.words[(fragment / 64) as usize];
        let mask = 1 << (fragment % 64);
        self.done += u32::from(*word & mask == 0);
        *word |= mask;
    }

    /// Whether `next` could be part of this.
    fn joins(&self, next: &Self) -> bool {
        self.last.checked_add(1) == Some(next.first)
            && self.done == next.done
            && self.words == next.words
    }
}

/// The fragments of a shard that are done of one incarnation's pushes.
///
/// # Layout
/// Every fragment of the pushes up to `floor` is done, or will never be asked about. Above it
/// `open` ascends, has no push twice, nothing empty, no neighbours that could be one, and nothing
/// that the floor could climb over: every state has one representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    fragments: u32,
    floor: u64,
    open: Vec<Open>,
}

/// Some fragments of a window, and where they come to lie in another one.
#[derive(Clone, Debug)]
pub(super) struct Piece<'a> {
    pub(super) window: &'a Window,
    /// Fragments of `window`.
    pub(super) from: Range<u32>,
    /// The first of them in the other one.
    pub(super) to: u32,
}

impl Window {
    /// Of a shard with so many fragments, before the first push.
    #[must_use]
    pub fn new(fragments: u32) -> Self {
        Self { fragments, floor: 0, open: Vec::new() }
    }

    /// Fragments of the shard.
    pub(super) fn fragments(&self) -> u32 {
        self.fragments
    }

    /// Every fragment of every push up to here is done, or will never be asked about.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Bitmaps that are kept.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The place of a push, or where it would have to be.
    fn place(&self, push: u64) -> Result<usize, usize> {
        let place = self.open.partition_point(|open| open.last < push);
        match self.open.get(place) {
            Some(open) if open.first <= push => Ok(place),
            _ => Err(place),
        }
    }

    /// Whether a fragment of `push` may be marked. A push that has no bitmap of its own takes one,
    /// and may cut another one in two.
    #[must_use]
    pub fn has_room(&self, push: u64) -> bool {
        let is_single = |place: usize| self.open[place].first == self.open[place].last;
        push <= self.floor
            || self.open.len() + 2 <= PUSHES_OPEN_MAX
            || self.place(push).is_ok_and(is_single)
    }

    /// Whether a fragment of a push is done.
    #[must_use]
    pub fn is_done(&self, push: u64, fragment: u32) -> bool {
        push <= self.floor || self.place(push).is_ok_and(|place| self.open[place].has(fragment))
    }

    /// Remember that a fragment of a push is done.
    ///
    /// # Panics
    /// Without room for it: the caller asks [`has_room`](Self::has_room) first.
    pub fn mark(&mut self, push: u64, fragment: u32) {
        assert!(self.has_room(push), "no bitmap left for push {push} above {}", self.floor);
        if self.is_done(push, fragment) {
            return;
        }
        let place = self.single(push);
        self.open[place].set(fragment);
        self.join(place);
        self.climb();
    }

    /// Raise the floor to `floor` if it is lower, and then over pushes that are done and touch it.
    pub fn raise(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.open.retain_mut(|open| {
            open.first = open.first.max(floor.saturating_add(1));
            open.last > floor
        });
        self.floor = floor;
        self.climb();
    }

    /// How many of some fragments of a push are done.
    #[must_use]
    pub fn done_in(&self, push: u64, fragments: Range<u32>) -> u32 {
        if push <= self.floor {
            return fragments.end.saturating_sub(fragments.start);
        }
        self.place(push).map_or(0, |place| {
            fragments.map(|fragment| u32::from(self.open[place].has(fragment))).sum()
        })
    }

    /// The highest push of which anything is done, or the floor.
    pub(super) fn last(&self) -> u64 {
        self.open.last().map_or(self.floor, |open| open.last)
    }

    /// The place of a bitmap that is of this push alone.
    fn single(&mut self, push: u64) -> usize {
        let mut place = match self.place(push) {
            Ok(place) => place,
            Err(place) => {
                self.open.insert(place, Open::new(push, push, self.fragments));
                return place;
            }
        };
        if self.open[place].first < push {
            let before = Open { last: push - 1, ..self.open[place].clone() };
            self.open[place].first = push;
            self.open.insert(place, before);
            place += 1;
        }
        if self.open[place].last > push {
            let after = Open { first: push + 1, ..self.open[place].clone() };
            self.open[place].last = push;
            self.open.insert(place + 1, after);
        }
        place
    }

    /// Join one that has changed with its neighbours.
    fn join(&mut self, place: usize) {
        for place in [place + 1, place] {
            if let Some(before) = place.checked_sub(1)
                && place < self.open.len()
                && self.open[before].joins(&self.open[place])
            {
                self.open[before].last = self.open.remove(place).last;
            }
        }
    }

    /// The floor climbs over pushes that are done and touch it.
    fn climb(&mut self) {
        if let Some(open) = self.open.first()
            && open.done == self.fragments
            && open.first - 1 == self.floor
        {
            // What comes behind it is another push or has another bitmap.
            self.floor = self.open.remove(0).last;
        }
    }

    /// What pieces of the windows of other shards remember together. `None` if that takes more
    /// bitmaps than a window may have.
    ///
    /// Pushes of which every piece says the same thing are looked at once, however many they are.
    pub(super) fn join_pieces(fragments: u32, pieces: &[Piece<'_>]) -> Option<Self> {
        let windows = || pieces.iter().map(|piece| piece.window);
        let mut joined = Self::new(fragments);
        joined.floor = windows().map(Self::floor).min()?;
        // Where what is said may change: behind a floor, before and behind a bitmap.
        let open = windows().flat_map(|window| &window.open);
        let mut bounds: Vec<u64> = windows()
            .map(|window| window.floor)
            .chain(open.flat_map(|open| [open.first - 1, open.last]))
            .filter(|bound| *bound >= joined.floor)
            .collect();
        bounds.sort_unstable();
        bounds.dedup();
        for pair in bounds.windows(2) {
            let (first, last) = (pair[0] + 1, pair[1]);
            let mut open = Open::new(first, last, fragments);
            for Piece { window, from, to } in pieces {
                let done = from.clone().filter(|fragment| window.is_done(first, *fragment));
                done.for_each(|fragment| open.set(to + fragment - from.start));
            }
            if open.done > 0 {
                joined.open.push(open);
                joined.join(joined.open.len() - 1);
                joined.climb();
            }
        }
        (joined.open.len() <= PUSHES_OPEN_MAX).then_some(joined)
    }

    /// Append floor, count and bitmaps, little-endian.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let count = self.open.len() as u64; // At most PUSHES_OPEN_MAX.
        bytes.extend([self.floor, count].iter().flat_map(|word| word.to_le_bytes()));
        for open in &self.open {
            let words = [open.first, open.last].into_iter().chain(open.words.iter().copied());
            bytes.extend(words.flat_map(u64::to_le_bytes));
        }
    }

    /// Read what [`encode`](Self::encode) wrote, word by word; `None` if it is not the one
    /// representation.
    pub(super) fn decode(fragments: u32, mut word: impl FnMut() -> Option<u64>) -> Option<Self> {
        let mut window = Self { floor: word()?, ..Self::new(fragments) };
        let count = word()?;
        if count > PUSHES_OPEN_MAX as u64 || window.floor == u64::MAX {
            return None;
        }
        for _ in 0..count {
            let mut open = Open::new(word()?, word()?, fragments);
            for place in 0..open.words.len() {
                open.words[place] = word()?;
                open.done += open.words[place].count_ones();
            }
            let last = open.words[open.words.len() - 1];
            let beyond = !fragments.is_multiple_of(64) && last >> (fragments % 64) != 0;
            let ascends = window.last() < open.first && open.first <= open.last;
            let joins = window.open.last().is_some_and(|before| before.joins(&open));
            let touches = open.done == fragments && open.first - 1 == window.floor;
            if beyond || !ascends || joins || touches || open.done == 0 || open.last == u64::MAX {
                return None;
            }
            window.open.push(open);
        }
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of a shard with two fragments, and what is done above its floor.
    fn window(floor: u64, done: &[(u64, u32)]) -> Window {
        let mut window = Window::new(2);
        window.raise(floor);
        for (push, fragment) in done {
            window.mark(*push, *fragment);
        }
        window
    }

    #[test]
    fn the_floor_climbs_over_whole_pushes_that_touch_it() {
        let mut window = window(0, &[(2, 0), (2, 1), (3, 1), (3, 0), (5, 0), (5, 1), (1, 1)]);
        assert_eq!((window.floor(), window.open()), (0, 3));
        window.mark(1, 0);
        assert_eq!((window.floor(), window.open()), (3, 1));
        window.raise(4);
        assert_eq!((window.floor(), window.open()), (5, 0));
    }

    #[test]
    fn consecutive_pushes_with_the_same_fragments_share_a_bitmap() {
        let mut window = window(0, &[(2, 1), (4, 1), (3, 1)]);
        assert_eq!(window.open(), 1);
        window.mark(3, 0);
        assert_eq!(window.open(), 3);
        let done = |push| [window.is_done(push, 0), window.is_done(push, 1)];
        assert_eq!([2, 3, 4].map(done), [[false, true], [true, true], [false, true]]);
        assert_eq!([1, 5].map(done), [[false; 2]; 2]);
        window.raise(3);
        assert_eq!((window.floor(), window.open(), window.last()), (3, 1, 4));
    }

    #[test]
    fn bitmaps_are_limited_and_those_that_are_there_go_on() {
        let mut window = Window::new(3);
        let pushes = (2..).step_by(2).take(PUSHES_OPEN_MAX - 1);
        pushes.for_each(|push| window.mark(push, 0));
        let last = window.last();
        assert!(!window.has_room(last + 2) && window.has_room(last));
        window.mark(last, 1);
        window.raise(last - 2);
        assert!(window.has_room(last + 2));
    }

    #[test]
    fn a_far_raise_forgets_every_bit() {
        let mut window = window(0, &[(7, 1)]);
        window.raise(5000);
        assert_eq!(window, self::window(5000, &[]));
        window.raise(u64::MAX - 1);
        assert!(window.is_done(u64::MAX - 1, 0) && !window.is_done(u64::MAX, 0));
        assert_eq!(window.done_in(1, 0..2), 2);
    }

    #[test]
    fn pieces_of_windows_remember_what_each_of_them_did() {
        let (one, other) = (window(10, &[(12, 0)]), window(100_000, &[(100_002, 1)]));
        let pieces = [
            Piece { window: &one, from: 0..2, to: 0 },
            Piece { window: &other, from: 0..2, to: 2 },
        ];
        let joined = Window::join_pieces(4, &pieces).expect("a few bitmaps");
        assert_eq!((joined.floor(), joined.open()), (10, 4));
        for (push, fragments) in [
            (10, 0b1111),
            (11, 0b1100),
            (12, 0b1101),
            (13, 0b1100),
            (100_001, 0),
            (100_002, 0b1000),
        ] {
            let bits = (0..4).map(|f| u32::from(joined.is_done(push, f)) << f).sum::<u32>();
            assert_eq!(bits, fragments, "push {push}");
        }
        let half = [Piece { window: &joined, from: 2..4, to: 0 }];
        assert_eq!(Window::join_pieces(2, &half), Some(other));
    }

    #[test]
    fn decoding_refuses_a_second_representation() {
        let read = |words: &[u64]| {
            let mut words = words.iter().copied();
            Window::decode(2, || words.next())
        };
        let window = window(7, &[(9, 1), (10, 0)]);
        let good = [7, 2, 9, 9, 2, 10, 10, 1];
        assert_eq!(read(&good), Some(window.clone()));
        let mut bytes = Vec::new();
        window.encode(&mut bytes);
        assert_eq!(bytes, good.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        let wrong: [&[u64]; 9] = [
            &[7, 2, 9, 9, 2],
            &[7, 1, 9, 9, 0],
            &[7, 1, 9, 9, 5],
            &[7, 1, 7, 9, 1],
            &[7, 1, 9, 8, 1],
            &[7, 2, 9, 9, 2, 9, 10, 1],
            &[7, 2, 9, 9, 1, 10, 10, 1],
            &[7, 1, 8, 8, 3],
            &[7, 65, 9, 9, 1],
        ];
        for words in wrong {
            assert_eq!(read(words), None, "{words:?}");
        }
    }
}
