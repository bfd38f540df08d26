//! One entry a replica, and the questions that are asked of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{LedgerError, Window};

/// A run of consecutive seqs of one incarnation, as a PUSH announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who pushes.
    pub replica: u32,
    /// Which life of the replica.
    pub incarnation: u32,
    /// The first seq.
    pub first_seq: u64,
    /// How many seqs; 0 asks only about the replica.
    pub count: u32,
    /// The replica's oldest seq here without an answer.
    pub first_incomplete: u64,
}

/// What the ledger says about a run, before anything of it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No record of it was applied.
    New,
    /// Every record of it was applied.
    Done,
    /// Some records of it were applied.
    Partly,
    /// A newer incarnation lives.
    Fenced,
    /// The replica has a past here that this shard does not know: it calls seqs settled that
    /// were never announced.
    Unknown,
    /// The last seq is too far above the floor.
    Window,
}

impl Verdict {
    /// The word that the binding answers with.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Done => "done",
            Self::Partly => "partly",
            Self::Fenced => "fenced",
            Self::Unknown => "unknown",
            Self::Window => "window",
        }
    }
}

/// What the ledger says about one record, while its entry is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Apply it, then [`Entry::complete`] it under the same lock.
    New,
    /// It was applied before.
    Done,
    /// A newer incarnation lives.
    Fenced,
    /// This incarnation was never admitted here.
    Unknown,
    /// The seq is too far above the floor.
    Window,
}

/// What one replica has had applied here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    incarnation: u32,
    /// Whether this incarnation was admitted; a fence alone only shuts older ones out.
    is_known: bool,
    window: Window,
    /// The highest seq that was announced or applied; the replica's word moves the floor no
    /// further.
    announced: u64,
    last_lsn: u64,
    applied: u64,
}

/// Bytes of an encoded entry: replica, incarnation, known, counts, announced, window.
pub const ENTRY_SIZE: usize = 4 + 4 + 4 + 8 + 8 + 8 + Window::SIZE;

impl Entry {
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

    /// Judge one record.
    #[must_use]
    pub fn claim(&self, incarnation: u32, seq: u64) -> Claim {
        if incarnation < self.incarnation {
            Claim::Fenced
        } else if incarnation > self.incarnation || !self.is_known {
            Claim::Unknown
        } else if self.window.is_done(seq) {
            Claim::Done
        } else if self.window.is_beyond(seq) {
            Claim::Window
        } else {
            Claim::New
        }
    }

    /// Remember that the record `seq`, which was claimed as new, was applied as `lsn`.
    pub fn complete(&mut self, seq: u64, lsn: u64) {
        self.window.mark(seq);
        self.announced = self.announced.max(seq);
        self.last_lsn = self.last_lsn.max(lsn);
        self.applied += 1;
    }

    fn admit(&mut self, run: &Run) -> Verdict {
        if run.incarnation < self.incarnation {
            return Verdict::Fenced;
        }
        let is_new = run.incarnation > self.incarnation || !self.is_known;
        let settled = run.first_incomplete.saturating_sub(1);
        let announced = if is_new { 0 } else { self.announced };
        if settled > announced {
            // An answer was given for a seq that this shard never heard of.
            return Verdict::Unknown;
        }
        if is_new {
            self.start_over(run.incarnation, true);
        }
        self.window.raise(settled);
        let last = run.first_seq.saturating_add(u64::from(run.count)).saturating_sub(1);
        if self.window.is_beyond(last) {
            return Verdict::Window;
        }
        if run.count > 0 {
            self.announced = self.announced.max(last);
        }
        match self.window.done_in(run.first_seq, run.count) {
            0 => Verdict::New,
            done if done == run.count => Verdict::Done,
            _ => Verdict::Partly,
        }
    }

    fn fence(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.start_over(incarnation, false);
        }
    }

    fn start_over(&mut self, incarnation: u32, is_known: bool) {
        self.incarnation = incarnation;
        self.is_known = is_known;
        self.window = Window::default();
        self.announced = 0;
    }

    pub(super) fn encode(&self, replica: u32, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&replica.to_le_bytes());
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.is_known).to_le_bytes());
        bytes.extend_from_slice(&self.last_lsn.to_le_bytes());
        bytes.extend_from_slice(&self.applied.to_le_bytes());
        bytes.extend_from_slice(&self.announced.to_le_bytes());
        self.window.encode(bytes);
    }

    fn decode(bytes: &[u8; ENTRY_SIZE]) -> Option<(u32, Self)> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let is_known = match word(8) {
            0 => false,
            1 => true,
            _ => return None,
        };
        let announced = double(28);
        let window = Window::decode(bytes[36..].try_into().ok()?)?;
        if !is_known && (announced != 0 || window != Window::default()) {
            return None;
        }
        if announced < window.last() || window.is_beyond(announced) {
            return None;
        }
        let entry = Self {
            incarnation: word(4),
            is_known,
            window,
            announced,
            last_lsn: double(12),
            applied: double(20),
        };
        Some((word(0), entry))
    }
}

/// An entry shared by the streams of one replica. Locking it orders that replica's records.
type Shared = Arc<Mutex<Entry>>;

/// Which ids will never push again: those below `next` that are in none of the ranges.
///
/// Ids are given in ascending order and never twice, so this is all there is to say about any
/// number of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Retired {
    next: u32,
    /// Records that were applied of those who are forgotten.
    applied: u64,
    /// Ascending, `[start, stop)`, with gaps between them.
    known: Vec<(u32, u32)>,
}

/// Ranges that [`Ledger::retire`] takes: whoever has more joins the last ones.
pub const RANGES_MAX: usize = 1024;

impl Retired {
    fn has(&self, replica: u32) -> bool {
        let after = self.known.partition_point(|(start, _)| *start <= replica);
        replica < self.next && after.checked_sub(1).is_none_or(|i| replica >= self.known[i].1)
    }

    /// What [`Ledger::encode`] begins with, and the bytes behind it.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (next, count) = (word(0)?, word(4)? as usize);
        let applied = u64::from(word(8)?) | u64::from(word(12)?) << 32;
        if count > RANGES_MAX {
            return None;
        }
        let ranges = (0..count).map(|i| Some((word(16 + 8 * i)?, word(20 + 8 * i)?)));
        let retired = Self { next, applied, known: ranges.collect::<Option<_>>()? };
        retired.is_sound().then_some((retired, &bytes[16 + 8 * count..]))
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
}

/// Who is known, and who never will be again.
#[derive(Debug, Default)]
struct Known {
    entries: HashMap<u32, Shared>,
    retired: Retired,
}

/// The entries of all replicas.
///
/// A record is judged, applied and completed under its entry's lock: whoever asks afterwards
/// finds it done, and whoever asks meanwhile waits. Two replicas never wait for each other.
#[derive(Debug, Default)]
pub struct Ledger {
    known: RwLock<Known>,
}

/// Lock an entry. Poisoning is ignored: an entry is changed by plain stores that cannot panic
/// half-way, and `complete` runs only after the apply returned.
pub(crate) fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica's entry, if it has one.
    #[must_use]
    pub fn entry(&self, replica: u32) -> Option<Shared> {
        self.read().entries.get(&replica).cloned()
    }

    /// `None` for an id that is retired: no window may begin anew under it.
    fn entry_or_new(&self, replica: u32) -> Option<Shared> {
        if let Some(entry) = self.entry(replica) {
            return Some(entry);
        }
        let mut known = self.write();
        if known.retired.has(replica) {
            return None;
        }
        Some(Arc::clone(known.entries.entry(replica).or_default()))
    }

    /// Judge a run, fence older incarnations, raise the floor. Applies nothing.
    #[must_use]
    pub fn admit(&self, run: &Run) -> Verdict {
        if run.first_incomplete > 1 && self.entry(run.replica).is_none() {
            let retired = self.is_retired(run.replica);
            return if retired { Verdict::Fenced } else { Verdict::Unknown };
        }
        self.entry_or_new(run.replica).map_or(Verdict::Fenced, |entry| lock(&entry).admit(run))
    }

    /// Refuse incarnations of `replica` below `incarnation` for ever.
    pub fn fence(&self, replica: u32, incarnation: u32) {
        if let Some(entry) = self.entry_or_new(replica) {
            lock(&entry).fence(incarnation);
        }
    }

    /// Fence the ids below `next` that are in none of the ranges `[start, stop)`, for ever, and
    /// forget what they have pushed. False, and nothing changes, if the ranges overlap, do not
    /// ascend, pass `next`, or are more than [`RANGES_MAX`].
    pub fn retire(&self, next: u32, ranges: &[(u32, u32)]) -> bool {
        let mut retired = Retired { next, applied: 0, known: ranges.to_vec() };
        if !retired.is_sound() {
            return false;
        }
        let mut known = self.write();
        let mut applied = known.retired.applied;
        known.entries.retain(|replica, entry| {
            let stays = !retired.has(*replica);
            if !stays {
                applied += lock(entry).applied();
            }
            stays
        });
        retired.applied = applied;
        known.retired = retired;
        true
    }

    /// Whether an id was retired.
    #[must_use]
    pub fn is_retired(&self, replica: u32) -> bool {
        self.read().retired.has(replica)
    }

    /// Records applied of replicas that are forgotten.
    #[must_use]
    pub fn applied_of_retired(&self) -> u64 {
        self.read().retired.applied
    }

    /// Replicas that are remembered.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.read().entries.len()
    }

    /// A copy of the replica's entry.
    #[must_use]
    pub fn find(&self, replica: u32) -> Option<Entry> {
        self.entry(replica).map(|entry| lock(&entry).clone())
    }

    /// Who is retired, then all entries in the order of the replica ids.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let known = self.read();
        let mut sorted: Vec<_> = known.entries.iter().collect();
        sorted.sort_unstable_by_key(|(replica, _)| **replica);
        let ranges = &known.retired.known;
        let size = 16 + 8 * ranges.len() + sorted.len() * ENTRY_SIZE;
        let mut bytes = Vec::with_capacity(size);
        // `retire` takes no more ranges than 32 bits count.
        let count = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        for word in [known.retired.next, count] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&known.retired.applied.to_le_bytes());
        for (start, stop) in ranges {
            bytes.extend_from_slice(&start.to_le_bytes());
            bytes.extend_from_slice(&stop.to_le_bytes());
        }
        for (replica, entry) in sorted {
            lock(entry).encode(*replica, &mut bytes);
        }
        bytes
    }

    /// Read what [`encode`](Self::encode) wrote. `offset` is where the bytes lie in their file and
    /// `lsn` the shard's: no record of an entry may be later.
    ///
    /// # Errors
    /// [`LedgerError`] for a broken length, order, bitmap or count.
    pub fn decode(bytes: &[u8], offset: usize, lsn: u64) -> Result<Self, LedgerError> {
        let inconsistent = LedgerError::Inconsistent { what: "who is retired", offset };
        let (retired, rest) = Retired::decode(bytes).ok_or(inconsistent)?;
        let offset = offset + bytes.len() - rest.len();
        let bytes = rest;
        let (chunks, rest) = bytes.as_chunks::<ENTRY_SIZE>();
        if !rest.is_empty() {
            let expected = offset + chunks.len() * ENTRY_SIZE;
            return Err(LedgerError::Size { actual: offset + bytes.len(), expected });
        }
        let mut entries = HashMap::with_capacity(chunks.len());
        let mut previous = None;
        for (i, chunk) in chunks.iter().enumerate() {
            let wrong = |what| LedgerError::Inconsistent { what, offset: offset + i * ENTRY_SIZE };
            let (replica, entry) =
                Entry::decode(chunk).ok_or_else(|| wrong("a replica's entry"))?;
            if previous.is_some_and(|previous| previous >= replica) || retired.has(replica) {
                return Err(wrong("the order of replicas"));
            }
            if entry.last_lsn > lsn
                || entry.applied > lsn
                || (entry.applied == 0) != (entry.last_lsn == 0)
            {
                return Err(wrong("a replica's count"));
            }
            previous = Some(replica);
            entries.insert(replica, Arc::new(Mutex::new(entry)));
        }
        Ok(Self { known: RwLock::new(Known { entries, retired }) })
    }

    /// Take the memory of `other` in place of this one.
    pub fn replace(&self, other: Self) {
        *self.write() = other.known.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(incarnation: u32, first_seq: u64, count: u32, first_incomplete: u64) -> Run {
        Run { replica: 3, incarnation, first_seq, count, first_incomplete }
    }

    fn complete(ledger: &Ledger, seq: u64) {
        lock(&ledger.entry(3).expect("admitted")).complete(seq, seq);
    }

    #[test]
    fn a_run_is_new_then_partly_then_done() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 1, 2, 1)), Verdict::New);
        complete(&ledger, 2);
        assert_eq!(ledger.admit(&run(1, 1, 2, 1)), Verdict::Partly);
        complete(&ledger, 1);
        assert_eq!(ledger.admit(&run(1, 1, 2, 1)), Verdict::Done);
        assert_eq!(ledger.find(3).map(|e| (e.floor(), e.applied())), Some((2, 2)));
    }

    #[test]
    fn a_newer_incarnation_fences_and_starts_over() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 1, 1, 1)), Verdict::New);
        complete(&ledger, 1);
        assert_eq!(ledger.admit(&run(2, 1, 1, 1)), Verdict::New);
        assert_eq!(ledger.admit(&run(1, 1, 1, 1)), Verdict::Fenced);
        let entry = ledger.find(3).expect("admitted");
        assert_eq!(entry.claim(1, 2), Claim::Fenced);
        assert_eq!(entry.claim(2, 1), Claim::New);
        assert_eq!(entry.claim(3, 1), Claim::Unknown);
        assert_eq!(entry.applied(), 1);
    }

    #[test]
    fn a_lost_past_is_unknown_and_changes_nothing() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 7, 1, 7)), Verdict::Unknown);
        assert_eq!(ledger.find(3), None);
        ledger.fence(3, 4);
        assert_eq!(ledger.admit(&run(4, 7, 1, 7)), Verdict::Unknown);
        assert_eq!(ledger.admit(&run(3, 1, 1, 1)), Verdict::Fenced);
        assert_eq!(ledger.find(3).expect("fenced").claim(4, 1), Claim::Unknown);
        assert_eq!(ledger.admit(&run(4, 1, 1, 1)), Verdict::New);
    }

    #[test]
    fn the_window_is_judged_after_the_floor_was_raised() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 1, 1024, 1)), Verdict::Window);
        assert_eq!(ledger.admit(&run(1, 1, 1023, 1)), Verdict::New);
        assert_eq!(ledger.admit(&run(1, 1024, 10, 11)), Verdict::New);
        assert_eq!(ledger.find(3).expect("admitted").claim(1, 1034), Claim::Window);
    }

    #[test]
    fn a_replica_s_word_moves_the_floor_no_further_than_it_has_announced() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 1, 5, 1)), Verdict::New);
        let before = ledger.find(3);
        for settled in [6, 1 << 40, 1 << 62, u64::MAX - 1] {
            assert_eq!(ledger.admit(&run(1, 6, 1, settled + 1)), Verdict::Unknown, "{settled}");
            assert_eq!(ledger.find(3), before);
        }
        assert_eq!(ledger.admit(&run(1, 6, 1, 6)), Verdict::New);
        assert_eq!(ledger.find(3).map(|entry| entry.floor()), Some(5));
    }

    #[test]
    fn a_retired_id_is_forgotten_and_fenced_for_ever() {
        let ledger = Ledger::default();
        for replica in [1, 2, 3, 5] {
            assert_eq!(ledger.admit(&Run { replica, ..run(1, 1, 1, 1) }), Verdict::New);
        }
        complete(&ledger, 1);
        assert!(ledger.retire(5, &[(1, 3)]));
        assert_eq!((ledger.replicas(), ledger.applied_of_retired()), (3, 1));
        for replica in [3, 4] {
            assert!(ledger.is_retired(replica));
            for first_incomplete in [1, 2] {
                let again = Run { replica, ..run(9, 1, 1, first_incomplete) };
                assert_eq!(ledger.admit(&again), Verdict::Fenced);
            }
            ledger.fence(replica, 7);
            assert!(ledger.entry(replica).is_none(), "no window begins anew");
        }
        for replica in [1, 2, 5, 6, u32::MAX] {
            assert!(!ledger.is_retired(replica));
        }
        let again = Ledger::decode(&ledger.encode(), 0, 1).expect("just encoded");
        assert_eq!(again.encode(), ledger.encode());
        assert!(again.is_retired(3) && !again.is_retired(2));
    }

    #[test]
    fn ranges_that_contradict_each_other_retire_nobody() {
        let ledger = Ledger::default();
        let wrong: [&[(u32, u32)]; 5] =
            [&[(1, 1)], &[(3, 2)], &[(1, 3), (2, 4)], &[(4, 5), (1, 2)], &[(1, 11)]];
        for ranges in wrong {
            assert!(!ledger.retire(10, ranges), "{ranges:?}");
        }
        assert!(!ledger.retire(u32::MAX, &[(1, 2); RANGES_MAX + 1]));
        assert!(!ledger.is_retired(1));
    }

    #[test]
    fn what_was_not_taken_or_names_no_record_is_not_announced() {
        let ledger = Ledger::default();
        assert_eq!(ledger.admit(&run(1, 1 << 40, 5, 1)), Verdict::Window);
        assert_eq!(ledger.admit(&run(1, 1000, 0, 1)), Verdict::New);
        assert_eq!(ledger.admit(&run(1, 1, 1, 2)), Verdict::Unknown);
        assert_eq!(ledger.find(3).map(|entry| entry.floor()), Some(0));
    }
}
