//! What one replica has had applied, and the questions that are asked about it.

use std::ops::Range;

use super::bytes::Words;
use super::window::{Piece, Window};
use super::{Run, Verdict};

/// What is known about one record, while its replica's entry is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Apply it, then [`Entry::complete`] it under the same lock.
    New,
    /// It was applied before.
    Done,
    /// A newer incarnation lives.
    Fenced,
    /// This incarnation was never admitted here.
    Unknown,
    /// Its fragment is another shard's.
    Elsewhere,
    /// Too many pushes are open.
    Window,
}

/// What one replica has had applied here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    incarnation: u32,
    /// Whether this incarnation was admitted; a fence alone only shuts older ones out.
    is_known: bool,
    window: Window,
    /// The highest push that was announced or applied; the replica's word moves the floor no
    /// further.
    announced: u64,
    pub(super) last_lsn: u64,
    pub(super) applied: u64,
}

impl Entry {
    pub(super) fn new(fragments: u32) -> Self {
        Self {
            incarnation: 0,
            is_known: false,
            window: Window::new(fragments),
            announced: 0,
            last_lsn: 0,
            applied: 0,
        }
    }

    /// The newest incarnation seen or fenced.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The floor of that incarnation.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.window.floor()
    }

    /// How many bitmaps are kept for pushes above the floor.
    #[must_use]
    pub fn open(&self) -> usize {
        self.window.open()
    }

    /// LSN of the last record of this replica that was applied, 0 before the first.
    #[must_use]
    pub fn last_lsn(&self) -> u64 {
        self.last_lsn
    }

    /// Records applied, in all incarnations.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Judge one record, by its fragment's place in this shard; `None` if it has none.
    #[must_use]
    pub fn judge(&self, incarnation: u32, push: u64, fragment: Option<u32>) -> Judgement {
        if incarnation < self.incarnation {
            return Judgement::Fenced;
        }
        if incarnation > self.incarnation || !self.is_known {
            return Judgement::Unknown;
        }
        let Some(fragment) = fragment else {
            return Judgement::Elsewhere;
        };
        if self.window.is_done(push, fragment) {
            Judgement::Done
        } else if self.window.has_room(push) {
            Judgement::New
        } else {
            Judgement::Window
        }
    }

    /// Remember that a record, which was judged as new, was applied as `lsn`.
    pub fn complete(&mut self, push: u64, fragment: u32, lsn: u64) {
        self.window.mark(push, fragment);
        self.announced = self.announced.max(push);
        self.last_lsn = self.last_lsn.max(lsn);
        self.applied += 1;
    }

    /// Judge a run; `fragments` are its places in this shard, `None` if some have none.
    pub(super) fn admit(&mut self, run: &Run, fragments: Option<Range<u32>>) -> Verdict {
        if run.incarnation < self.incarnation {
            return Verdict::Fenced;
        }
        let is_new = run.incarnation > self.incarnation || !self.is_known;
        let settled = run.first_open.saturating_sub(1);
        let announced = if is_new { 0 } else { self.announced };
        if settled > announced {
            // An answer was given for a push that this shard never heard of.
            return Verdict::Unknown;
        }
        if is_new {
            self.start_over(run.incarnation, true);
        }
        self.window.raise(settled);
        let verdict = match fragments.map(|fragments| self.window.done_in(run.push, fragments)) {
            None => Verdict::Elsewhere,
            Some(done) if done == run.count && done > 0 => Verdict::Done,
            // It has no answer yet: it was not heard.
            Some(_) if !self.window.has_room(run.push) => return Verdict::Window,
            Some(0) => Verdict::New,
            Some(_) => Verdict::Partly,
        };
        if run.count > 0 {
            self.announced = self.announced.max(run.push);
        }
        verdict
    }

    pub(super) fn fence(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.start_over(incarnation, false);
        }
    }

    fn start_over(&mut self, incarnation: u32, is_known: bool) {
        self.incarnation = incarnation;
        self.is_known = is_known;
        self.window = Window::new(self.window.fragments());
        self.announced = 0;
    }

    /// What the entries of one replica at other shards say together.
    ///
    /// Only the newest incarnation has a past that matters: older ones are fenced. Nobody has
    /// counted by fragments, so the count begins anew. `None` if the windows are so far apart that
    /// they take more bitmaps than one may have.
    pub(super) fn join(fragments: u32, shares: &[Share<'_>], lsn: u64) -> Option<Self> {
        let entries = || shares.iter().filter_map(|share| share.entry);
        let incarnation = entries().map(|entry| entry.incarnation).max()?;
        let is_newest = |entry: &&Self| entry.incarnation == incarnation && entry.is_known;
        let nothing: Vec<_> = shares.iter().map(|share| Window::new(share.from.end)).collect();
        let windows: Vec<_> = shares
            .iter()
            .zip(&nothing)
            .map(|(share, nothing)| {
                let newest = share.entry.filter(is_newest);
                let window = newest.map_or(nothing, |entry| &entry.window);
                Piece { window, from: share.from.clone(), to: share.to }
            })
            .collect();
        Some(Self {
            incarnation,
            is_known: entries().any(|entry| is_newest(&entry)),
            window: Window::join_pieces(fragments, &windows)?,
            announced: entries().filter(is_newest).map(|entry| entry.announced).max().unwrap_or(0),
            last_lsn: if entries().any(|entry| entry.last_lsn > 0) { lsn } else { 0 },
            applied: 0,
        })
    }

    pub(super) fn encode(&self, replica: u32, bytes: &mut Vec<u8>) {
        let words = [replica, self.incarnation, u32::from(self.is_known), 0];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let words = [self.last_lsn, self.applied, self.announced];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.window.encode(bytes);
    }

    /// The next replica and its entry, if what is left begins with one.
    pub(super) fn decode(words: &mut Words<'_>, fragments: u32) -> Option<(u32, Self)> {
        let (replica, incarnation) = (words.u32()?, words.u32()?);
        let (is_known, zero) = (words.u32()?, words.u32()?);
        let (last_lsn, applied, announced) = (words.u64()?, words.u64()?, words.u64()?);
        let window = Window::decode(fragments, || words.u64())?;
        let is_blank = window == Window::new(fragments) && announced == 0;
        let is_sound = zero == 0
            && (is_known == 1 || is_known == 0 && is_blank)
            && announced >= window.last()
            && applied <= last_lsn;
        let is_known = is_known == 1;
        let entry = Self { incarnation, is_known, window, announced, last_lsn, applied };
        is_sound.then_some((replica, entry))
    }
}

/// A replica's entry at another shard, and which of its fragments come here.
#[derive(Clone, Debug)]
pub(super) struct Share<'a> {
    pub(super) entry: Option<&'a Entry>,
    /// Fragments by their place there.
    pub(super) from: Range<u32>,
    /// The place of the first of them here.
    pub(super) to: u32,
}
