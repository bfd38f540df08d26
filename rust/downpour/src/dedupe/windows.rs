//! One entry a replica, and who will never have one again.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::StateError;
use super::bytes::Words;
use super::entry::{Entry, Share};
use super::retired::Retired;

/// A run of consecutive fragments of one push, as a PUSH announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who pushes.
    pub replica: u32,
    /// Which life of the replica.
    pub incarnation: u32,
    /// Which of its pushes.
    pub push: u64,
    /// The first fragment, of the whole layout.
    pub fragment: u32,
    /// How many fragments; 0 asks only about the replica.
    pub count: u32,
    /// The replica's oldest push here without an answer to every record.
    pub first_open: u64,
}

/// What is known about a run, before anything of it is applied.
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
    /// The replica has a past here that this shard does not know: it calls pushes settled that
    /// were never announced.
    Unknown,
    /// Some of the fragments are another shard's.
    Elsewhere,
    /// Too many of its pushes are open.
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
            Self::Elsewhere => "elsewhere",
            Self::Window => "window",
        }
    }
}

/// An entry shared by the streams of one replica. Locking it orders that replica's records.
type Shared = Arc<Mutex<Entry>>;

/// Who is known, and who never will be again.
#[derive(Debug, Default)]
struct Known {
    entries: HashMap<u32, Shared>,
    retired: Retired,
}

/// What of every replica was applied to the fragments of one shard.
///
/// A record is judged, applied and completed under its entry's lock: whoever asks afterwards
/// finds it done, and whoever asks meanwhile waits. Two replicas never wait for each other.
#[derive(Debug)]
pub struct Windows {
    fragments: Range<u32>,
    known: RwLock<Known>,
}

/// Lock an entry. Poisoning is ignored: an entry is changed by plain stores that cannot panic
/// half-way, and `complete` runs only after the apply returned.
pub(crate) fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Windows {
    /// Of a shard that owns these fragments of the layout.
    #[must_use]
    pub fn new(fragments: Range<u32>) -> Self {
        Self { fragments, known: RwLock::default() }
    }

    /// The fragments of the layout that are the shard's.
    #[must_use]
    pub fn fragments(&self) -> Range<u32> {
        self.fragments.clone()
    }

    fn count(&self) -> u32 {
        self.fragments.end - self.fragments.start
    }

    /// The place of a fragment in this shard, if it is one of its own.
    #[must_use]
    pub fn place(&self, fragment: u32) -> Option<u32> {
        self.fragments.contains(&fragment).then(|| fragment - self.fragments.start)
    }

    /// The places of a run's fragments, if all are the shard's own. A run of none has none.
    fn places(&self, run: &Run) -> Option<Range<u32>> {
        if run.count == 0 {
            return Some(0..0);
        }
        let last = run.fragment.checked_add(run.count - 1)?;
        Some(self.place(run.fragment)?..self.place(last)? + 1)
    }

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
        let new = || Arc::new(Mutex::new(Entry::new(self.count())));
        Some(Arc::clone(known.entries.entry(replica).or_insert_with(new)))
    }

    /// Judge a run, fence older incarnations, raise the floor. Applies nothing.
    #[must_use]
    pub fn admit(&self, run: &Run) -> Verdict {
        if run.first_open > 1 && self.entry(run.replica).is_none() {
            let retired = self.is_retired(run.replica);
            return if retired { Verdict::Fenced } else { Verdict::Unknown };
        }
        self.entry_or_new(run.replica)
            .map_or(Verdict::Fenced, |entry| lock(&entry).admit(run, self.places(run)))
    }

    /// Refuse incarnations of `replica` below `incarnation` for ever.
    pub fn fence(&self, replica: u32, incarnation: u32) {
        if let Some(entry) = self.entry_or_new(replica) {
            lock(&entry).fence(incarnation);
        }
    }

    /// Fence the ids below `next` that are in none of the ranges `[start, stop)`, for ever, and
    /// forget what they have pushed. False, and nothing changes, if the ranges overlap, do not
    /// ascend, pass `next`, or are more than [`RANGES_MAX`](super::RANGES_MAX).
    pub fn retire(&self, next: u32, ranges: &[(u32, u32)]) -> bool {
        let Some(retired) = Retired::new(next, ranges) else {
            return false;
        };
        let mut known = self.write();
        let mut applied = known.retired.applied;
        known.entries.retain(|replica, entry| {
            let stays = !retired.has(*replica);
            if !stays {
                applied += lock(entry).applied();
            }
            stays
        });
        known.retired = retired.counting(applied);
        true
    }

    /// Whether an id was retired.
    #[must_use]
    pub fn is_retired(&self, replica: u32) -> bool {
        self.read().retired.has(replica)
    }

    /// Records applied that no replica's entry counts: of those who are forgotten, and of before
    /// the fragments came to this shard.
    #[must_use]
    pub fn applied_of_nobody(&self) -> u64 {
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
        let mut bytes = Vec::with_capacity(known.retired.size());
        known.retired.encode(&mut bytes);
        for (replica, entry) in sorted {
            lock(entry).encode(*replica, &mut bytes);
        }
        bytes
    }

    /// Read what [`encode`](Self::encode) wrote at a shard with these fragments. `offset` is where
    /// the bytes lie in their file and `lsn` the shard's: no record of an entry may be later.
    ///
    /// # Errors
    /// [`StateError`] for a broken length, order, bitmap or count.
    pub fn decode(
        fragments: Range<u32>,
        bytes: &[u8],
        offset: usize,
        lsn: u64,
    ) -> Result<Self, StateError> {
        let mut words = Words::new(bytes);
        let inconsistent = StateError::Inconsistent { what: "who is retired", offset };
        let retired = Retired::decode(&mut words).ok_or(inconsistent)?;
        let windows = Self::new(fragments);
        let mut entries = HashMap::new();
        let mut previous = None;
        while words.left() > 0 {
            let offset = offset + bytes.len() - words.left();
            let wrong = |what| StateError::Inconsistent { what, offset };
            let (replica, entry) = Entry::decode(&mut words, windows.count())
                .ok_or_else(|| wrong("a replica's entry"))?;
            if previous.is_some_and(|previous| previous >= replica) || retired.has(replica) {
                return Err(wrong("the order of replicas"));
            }
            if entry.last_lsn() > lsn {
                return Err(wrong("a replica's count"));
            }
            previous = Some(replica);
            entries.insert(replica, Arc::new(Mutex::new(entry)));
        }
        Ok(Self { known: RwLock::new(Known { entries, retired }), ..windows })
    }

    /// What is known at other shards about fragments that come to this one: of each shard, the
    /// fragments that do. `lsn` is what this one has applied of anybody.
    ///
    /// # Errors
    /// [`StateError::Apart`] if a replica's windows, or [`StateError::Retired`] if what the shards
    /// know about who is gone, differ by more than can be kept.
    pub fn join(
        fragments: Range<u32>,
        shares: &[(&Self, Range<u32>)],
        lsn: u64,
    ) -> Result<Self, StateError> {
        let joined = Self::new(fragments);
        let known: Vec<_> = shares.iter().map(|(windows, _)| windows.read()).collect();
        let mut retired = Retired::default();
        for known in &known {
            retired = retired.and(&known.retired).ok_or(StateError::Retired)?;
        }
        let replicas: BTreeSet<_> =
            known.iter().flat_map(|known| known.entries.keys().copied()).collect();
        let mut entries = HashMap::new();
        for replica in replicas.into_iter().filter(|replica| !retired.has(*replica)) {
            let found: Vec<_> = known
                .iter()
                .map(|known| known.entries.get(&replica).map(|one| lock(one)))
                .collect();
            let shares: Vec<_> = found
                .iter()
                .zip(shares)
                .map(|(entry, (windows, fragments))| {
                    let start = windows.fragments.start;
                    Share {
                        entry: entry.as_deref(),
                        from: fragments.start - start..fragments.end - start,
                        to: fragments.start - joined.fragments.start,
                    }
                })
                .collect();
            let entry =
                Entry::join(joined.count(), &shares, lsn).ok_or(StateError::Apart { replica })?;
            entries.insert(replica, Arc::new(Mutex::new(entry)));
        }
        *joined.write() = Known { entries, retired: retired.counting(lsn) };
        Ok(joined)
    }

    /// Take the memory of `other` in place of this one.
    pub fn replace(&self, other: Self) {
        *self.write() = other.known.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Judgement, PUSHES_OPEN_MAX, RANGES_MAX};
    use super::*;

    /// Of a shard with fragments 10 and 11.
    fn windows() -> Windows {
        Windows::new(10..12)
    }

    fn run(incarnation: u32, push: u64, count: u32, first_open: u64) -> Run {
        Run { replica: 3, incarnation, push, fragment: 10, count, first_open }
    }

    fn complete(windows: &Windows, push: u64, fragment: u32) {
        let place = windows.place(fragment).expect("a fragment of this shard");
        lock(&windows.entry(3).expect("admitted")).complete(push, place, push);
    }

    fn judge(windows: &Windows, incarnation: u32, push: u64, fragment: u32) -> Judgement {
        let entry = windows.find(3).expect("admitted");
        entry.judge(incarnation, push, windows.place(fragment))
    }

    #[test]
    fn a_run_is_new_then_partly_then_done() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 1, 2, 1)), Verdict::New);
        complete(&windows, 1, 11);
        assert_eq!(windows.admit(&run(1, 1, 2, 1)), Verdict::Partly);
        assert_eq!(windows.admit(&run(1, 1, 1, 1)), Verdict::New);
        complete(&windows, 1, 10);
        assert_eq!(windows.admit(&run(1, 1, 2, 1)), Verdict::Done);
        assert_eq!(windows.find(3).map(|e| (e.floor(), e.applied())), Some((1, 2)));
    }

    #[test]
    fn a_push_that_leaves_fragments_out_is_passed_by_the_replica_s_word() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 1, 1, 1)), Verdict::New);
        complete(&windows, 1, 10);
        assert_eq!(windows.find(3).map(|entry| (entry.floor(), entry.open())), Some((0, 1)));
        // Nothing of pushes 2 to 8 is of this shard.
        assert_eq!(windows.admit(&run(1, 9, 1, 2)), Verdict::New);
        assert_eq!(windows.find(3).map(|entry| (entry.floor(), entry.open())), Some((1, 0)));
        assert_eq!(windows.admit(&run(1, 10, 1, 10)), Verdict::New);
        assert_eq!(windows.find(3).map(|entry| entry.floor()), Some(9));
    }

    #[test]
    fn fragments_of_other_shards_are_elsewhere() {
        let windows = windows();
        for (fragment, count) in [(9, 2), (11, 2), (0, 1), (12, 1), (10, u32::MAX), (u32::MAX, 2)] {
            let run = Run { fragment, ..run(1, 1, count, 1) };
            assert_eq!(windows.admit(&run), Verdict::Elsewhere, "{count} from {fragment} on");
        }
        assert_eq!(judge(&windows, 1, 1, 12), Judgement::Elsewhere);
        assert_eq!(judge(&windows, 1, 1, 11), Judgement::New);
    }

    #[test]
    fn a_newer_incarnation_fences_and_starts_over() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 1, 1, 1)), Verdict::New);
        complete(&windows, 1, 10);
        assert_eq!(windows.admit(&run(2, 1, 1, 1)), Verdict::New);
        assert_eq!(windows.admit(&run(1, 1, 1, 1)), Verdict::Fenced);
        assert_eq!(judge(&windows, 1, 2, 10), Judgement::Fenced);
        assert_eq!(judge(&windows, 2, 1, 10), Judgement::New);
        assert_eq!(judge(&windows, 3, 1, 10), Judgement::Unknown);
        assert_eq!(windows.find(3).expect("admitted").applied(), 1);
    }

    #[test]
    fn a_lost_past_is_unknown_and_changes_nothing() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 7, 1, 7)), Verdict::Unknown);
        assert_eq!(windows.find(3), None);
        windows.fence(3, 4);
        assert_eq!(windows.admit(&run(4, 7, 1, 7)), Verdict::Unknown);
        assert_eq!(windows.admit(&run(3, 1, 1, 1)), Verdict::Fenced);
        assert_eq!(judge(&windows, 4, 1, 10), Judgement::Unknown);
        assert_eq!(windows.admit(&run(4, 1, 1, 1)), Verdict::New);
    }

    #[test]
    fn open_pushes_are_limited_after_the_floor_was_raised() {
        let windows = windows();
        let most = PUSHES_OPEN_MAX as u64;
        for push in 1..most {
            assert_eq!(windows.admit(&run(1, 2 * push, 1, 1)), Verdict::New);
            complete(&windows, 2 * push, 10);
        }
        let next = 2 * most;
        assert_eq!(windows.admit(&run(1, next, 1, 1)), Verdict::Window);
        assert_eq!(judge(&windows, 1, next, 10), Judgement::Window);
        // It was not taken, so nobody can have answered it.
        assert_eq!(windows.admit(&run(1, next, 1, next)), Verdict::Unknown);
        assert_eq!(windows.admit(&run(1, next, 1, 3)), Verdict::New);
    }

    #[test]
    fn a_replica_s_word_moves_the_floor_no_further_than_it_has_announced() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 5, 2, 1)), Verdict::New);
        let before = windows.find(3);
        for settled in [6, 1 << 40, 1 << 62, u64::MAX - 1] {
            assert_eq!(windows.admit(&run(1, 6, 2, settled + 1)), Verdict::Unknown, "{settled}");
            assert_eq!(windows.find(3), before);
        }
        assert_eq!(windows.admit(&run(1, 6, 2, 6)), Verdict::New);
        assert_eq!(windows.find(3).map(|entry| entry.floor()), Some(5));
    }

    #[test]
    fn what_names_no_record_is_not_announced() {
        let windows = windows();
        assert_eq!(windows.admit(&run(1, 1000, 0, 1)), Verdict::New);
        assert_eq!(windows.admit(&run(1, 1, 1, 2)), Verdict::Unknown);
        assert_eq!(windows.find(3).map(|entry| entry.floor()), Some(0));
    }

    #[test]
    fn a_retired_id_is_forgotten_and_fenced_for_ever() {
        let windows = windows();
        for replica in [1, 2, 3, 5] {
            assert_eq!(windows.admit(&Run { replica, ..run(1, 1, 1, 1) }), Verdict::New);
        }
        complete(&windows, 1, 11);
        assert!(windows.retire(5, &[(1, 3)]));
        assert_eq!((windows.replicas(), windows.applied_of_nobody()), (3, 1));
        for replica in [3, 4] {
            assert!(windows.is_retired(replica));
            for first_open in [1, 2] {
                let again = Run { replica, ..run(9, 1, 1, first_open) };
                assert_eq!(windows.admit(&again), Verdict::Fenced);
            }
            windows.fence(replica, 7);
            assert!(windows.entry(replica).is_none(), "no window begins anew");
        }
        for replica in [1, 2, 5, 6, u32::MAX] {
            assert!(!windows.is_retired(replica));
        }
        let again = Windows::decode(10..12, &windows.encode(), 0, 1).expect("just encoded");
        assert_eq!(again.encode(), windows.encode());
        assert!(again.is_retired(3) && !again.is_retired(2));
    }

    #[test]
    fn ranges_that_contradict_each_other_retire_nobody() {
        let windows = windows();
        let wrong: [&[(u32, u32)]; 5] =
            [&[(1, 1)], &[(3, 2)], &[(1, 3), (2, 4)], &[(4, 5), (1, 2)], &[(1, 11)]];
        for ranges in wrong {
            assert!(!windows.retire(10, ranges), "{ranges:?}");
        }
        assert!(!windows.retire(u32::MAX, &[(1, 2); RANGES_MAX + 1]));
        assert!(!windows.is_retired(1));
    }
}
