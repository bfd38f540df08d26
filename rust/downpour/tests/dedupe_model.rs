//! The windows against a set that remembers everything, under random histories in which the
//! fragments are cut into other shards again and again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use downpour::dedupe::{Judgement, PUSHES_OPEN_MAX, Run, StateError, Verdict, Windows};
use proptest::prelude::*;

/// Fragments of the layout.
const FRAGMENTS: u32 = 5;

/// One replica at one shard as the rules tell it, with nothing clever.
#[derive(Default, Clone)]
struct Model {
    incarnation: u32,
    known: bool,
    announced: u64,
    /// Of each fragment of the shard: the push up to which the replica has its answers.
    said: BTreeMap<u32, u64>,
    /// (push, fragment) of this incarnation.
    done: HashSet<(u64, u32)>,
    applied: u64,
}

impl Model {
    fn new(fragments: Range<u32>) -> Self {
        Self { said: fragments.map(|fragment| (fragment, 0)).collect(), ..Self::default() }
    }

    fn is_done(&self, push: u64, fragment: u32) -> bool {
        push <= self.said[&fragment] || self.done.contains(&(push, fragment))
    }

    fn floor(&self) -> u64 {
        let mut floor = self.said.values().copied().min().unwrap_or(0);
        while self.said.keys().all(|fragment| self.is_done(floor + 1, *fragment)) {
            floor += 1;
        }
        floor
    }

    /// Runs of pushes above the floor of which the same fragments are done.
    fn runs(&self) -> Vec<Range<u64>> {
        let floor = self.floor();
        let around = self.done.iter().flat_map(|(push, _)| [push - 1, *push]);
        let mut bounds: Vec<_> =
            self.said.values().copied().chain(around).filter(|bound| *bound >= floor).collect();
        bounds.push(floor);
        bounds.sort_unstable();
        bounds.dedup();
        let bits = |push: u64| -> Vec<bool> {
            self.said.keys().map(|fragment| self.is_done(push, *fragment)).collect()
        };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for pair in bounds.windows(2) {
            let (first, stop) = (pair[0] + 1, pair[1] + 1);
            if !bits(first).contains(&true) {
                continue;
            }
            match runs.last_mut().filter(|run| run.end == first && bits(run.start) == bits(first)) {
                Some(run) => run.end = stop,
                None => runs.push(first..stop),
            }
        }
        runs
    }

    fn has_room(&self, push: u64) -> bool {
        let runs = self.runs();
        push <= self.floor()
            || runs.len() + 2 <= PUSHES_OPEN_MAX
            || runs.contains(&(push..push + 1))
    }

    fn admit(&mut self, run: &Run) -> Verdict {
        if run.incarnation < self.incarnation {
            return Verdict::Fenced;
        }
        let is_new = run.incarnation > self.incarnation || !self.known;
        let settled = run.first_open.saturating_sub(1);
        if settled > if is_new { 0 } else { self.announced } {
            return Verdict::Unknown;
        }
        if is_new {
            self.start_over(run.incarnation, true);
        }
        let floor = self.floor().max(settled);
        self.said.values_mut().for_each(|said| *said = floor.max(*said));
        let count = u64::from(run.count);
        let fragments: Vec<_> = (0..count).map(|i| u64::from(run.fragment) + i).take(8).collect();
        let own = |fragment: &u64| self.said.keys().any(|own| u64::from(*own) == *fragment);
        let verdict = if fragments.iter().all(own) && count <= 8 {
            let done = |fragment: &&u64| {
                self.said
                    .keys()
                    .any(|own| u64::from(*own) == **fragment && self.is_done(run.push, *own))
            };
            let done = fragments.iter().filter(done).count() as u64;
            match done {
                _ if done == count && done > 0 => Verdict::Done,
                _ if !self.has_room(run.push) => return Verdict::Window,
                0 => Verdict::New,
                _ => Verdict::Partly,
            }
        } else {
            Verdict::Elsewhere
        };
        if count > 0 {
            self.announced = self.announced.max(run.push);
        }
        verdict
    }

    fn start_over(&mut self, incarnation: u32, known: bool) {
        (self.incarnation, self.known, self.announced) = (incarnation, known, 0);
        self.said.values_mut().for_each(|said| *said = 0);
        self.done.clear();
    }

    fn fence(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.start_over(incarnation, false);
        }
    }

    fn judge(&self, incarnation: u32, push: u64, fragment: u32) -> Judgement {
        if incarnation < self.incarnation {
            Judgement::Fenced
        } else if incarnation > self.incarnation || !self.known {
            Judgement::Unknown
        } else if !self.said.contains_key(&fragment) {
            Judgement::Elsewhere
        } else if self.is_done(push, fragment) {
            Judgement::Done
        } else if self.has_room(push) {
            Judgement::New
        } else {
            Judgement::Window
        }
    }

    fn complete(&mut self, push: u64, fragment: u32) {
        self.done.insert((push, fragment));
        self.announced = self.announced.max(push);
        self.applied += 1;
    }
}

/// A shard: its fragments, its windows, and what they must answer.
struct Shard {
    windows: Windows,
    models: HashMap<u32, Model>,
}

impl Shard {
    fn new(fragments: Range<u32>) -> Self {
        Self { windows: Windows::new(fragments), models: HashMap::new() }
    }

    fn model(&mut self, replica: u32) -> &mut Model {
        let fragments = self.windows.fragments();
        self.models.entry(replica).or_insert_with(|| Model::new(fragments))
    }

    /// What shards know together about some fragments, fragment by fragment.
    fn joined(fragments: Range<u32>, shards: &[Self]) -> HashMap<u32, Model> {
        let overlaps = |shard: &&Self| {
            let theirs = shard.windows.fragments();
            theirs.start < fragments.end && fragments.start < theirs.end
        };
        let shards: Vec<_> = shards.iter().filter(overlaps).collect();
        let mut joined = HashMap::new();
        for replica in shards.iter().flat_map(|shard| shard.models.keys()) {
            let models = || shards.iter().filter_map(|shard| shard.models.get(replica));
            let incarnation = models().map(|model| model.incarnation).max().unwrap();
            let newest = || models().filter(|m| m.incarnation == incarnation && m.known);
            let mut model = Model::new(fragments.clone());
            model.incarnation = incarnation;
            model.known = newest().next().is_some();
            model.announced = newest().map(|model| model.announced).max().unwrap_or(0);
            for old in newest() {
                for (fragment, said) in &mut model.said {
                    *said = old.said.get(fragment).copied().unwrap_or(*said);
                }
                let own = |(_, fragment): &&(u64, u32)| fragments.contains(fragment);
                model.done.extend(old.done.iter().filter(own));
            }
            if shards.len() == 1 && shards[0].windows.fragments() == fragments {
                model.applied = models().map(|model| model.applied).sum();
            }
            joined.insert(*replica, model);
        }
        joined
    }
}

/// The fragments of the layout in as many shards as there are cuts, and one more.
fn cut_at(cuts: &[u32]) -> Vec<Range<u32>> {
    let mut bounds: Vec<_> = cuts.iter().copied().chain([0, FRAGMENTS]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Admit(Run),
    Fence { replica: u32, incarnation: u32 },
    Records { replica: u32, incarnation: u32, push: u64, step: u64, count: u64, fragment: u32 },
    Cut(Vec<u32>),
}

/// Numbers at the end of the integers, where sums overflow.
fn far() -> impl Strategy<Value = u64> {
    prop_oneof![u64::MAX - 3..u64::MAX, Just(1 << 62), Just(1 << 40), (1 << 31)..(1u64 << 33)]
}

fn act() -> impl Strategy<Value = Act> {
    // Small numbers meet often.
    let push = prop_oneof![8 => 1..8u64, 2 => 1..100u64, 1 => far()];
    let (replica, incarnation) = (1..3u32, 1..4u32);
    let open = prop_oneof![8 => Just(1u64), 4 => 0..8u64, 2 => 1..100u64, 1 => far()];
    let count = prop_oneof![8 => 0..FRAGMENTS + 1, 1 => Just(u32::MAX)];
    let run = (replica.clone(), incarnation.clone(), push.clone(), 0..FRAGMENTS, count, open);
    let many = prop_oneof![6 => Just(1u64), 1 => 2..80u64];
    prop_oneof![
        4 => run.prop_map(|(replica, incarnation, push, fragment, count, first_open)| {
            Act::Admit(Run { replica, incarnation, push, fragment, count, first_open })
        }),
        1 => (replica.clone(), incarnation.clone())
            .prop_map(|(replica, incarnation)| Act::Fence { replica, incarnation }),
        8 => (replica, incarnation, push, 1..3u64, many, 0..FRAGMENTS).prop_map(
            |(replica, incarnation, push, step, count, fragment)| {
                Act::Records { replica, incarnation, push, step, count, fragment }
            }
        ),
        2 => prop::collection::vec(1..FRAGMENTS, 0..3).prop_map(Act::Cut),
    ]
}

proptest! {
    #[test]
    fn the_windows_answer_as_the_set(acts in prop::collection::vec(act(), 1..60)) {
        let mut shards = vec![Shard::new(0..FRAGMENTS)];
        let mut lsn = 0;
        for act in acts {
            match act {
                Act::Admit(run) => {
                    for shard in &mut shards {
                        let is_first = !shard.models.contains_key(&run.replica);
                        let expected = shard.model(run.replica).admit(&run);
                        if is_first && expected == Verdict::Unknown {
                            shard.models.remove(&run.replica);
                        }
                        prop_assert_eq!(shard.windows.admit(&run), expected);
                    }
                }
                Act::Fence { replica, incarnation } => {
                    for shard in &mut shards {
                        shard.windows.fence(replica, incarnation);
                        shard.model(replica).fence(incarnation);
                    }
                }
                Act::Records { replica, incarnation, push, step, count, fragment } => {
                    for shard in &mut shards {
                        let Some(entry) = shard.windows.entry(replica) else { continue };
                        let place = shard.windows.place(fragment);
                        let model = shard.models.get_mut(&replica).expect("it has an entry");
                        let mut entry = entry.lock().unwrap();
                        for push in (0..count).map(|i| push.saturating_add(i * step)) {
                            if push == u64::MAX {
                                break;
                            }
                            let judgement = entry.judge(incarnation, push, place);
                            prop_assert_eq!(judgement, model.judge(incarnation, push, fragment));
                            if judgement == Judgement::New {
                                lsn += 1;
                                entry.complete(push, place.expect("its own"), lsn);
                                model.complete(push, fragment);
                            }
                        }
                        prop_assert_eq!(entry.floor(), model.floor());
                        prop_assert_eq!(entry.open(), model.runs().len());
                        prop_assert_eq!(entry.applied(), model.applied);
                    }
                }
                Act::Cut(cuts) => {
                    // Through bytes and back, as a checkpoint does it.
                    for shard in &mut shards {
                        let (bytes, own) = (shard.windows.encode(), shard.windows.fragments());
                        shard.windows = Windows::decode(own, &bytes, 0, lsn).unwrap();
                        prop_assert_eq!(shard.windows.encode(), bytes);
                    }
                    let mut new = Vec::new();
                    for fragments in cut_at(&cuts) {
                        let models = Shard::joined(fragments.clone(), &shards);
                        let mut shares = Vec::new();
                        for shard in &shards {
                            let theirs = shard.windows.fragments();
                            let start = theirs.start.max(fragments.start);
                            let shared = start..theirs.end.min(fragments.end);
                            if !shared.is_empty() {
                                shares.push((&shard.windows, shared));
                            }
                        }
                        let windows = match &shares[..] {
                            [(same, _)] if same.fragments() == fragments => {
                                Ok(Windows::decode(fragments, &same.encode(), 0, lsn).unwrap())
                            }
                            _ => Windows::join(fragments, &shares, lsn),
                        };
                        let too_many = |model: &Model| model.runs().len() > PUSHES_OPEN_MAX;
                        match windows {
                            Ok(windows) => {
                                prop_assert!(!models.values().any(too_many));
                                new.push(Shard { windows, models });
                            }
                            Err(StateError::Apart { replica }) => {
                                prop_assert!(too_many(&models[&replica]));
                                return Ok(());
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    shards = new;
                    for shard in &shards {
                        for (replica, model) in &shard.models {
                            let entry = shard.windows.find(*replica).expect("it had one");
                            prop_assert_eq!(entry.incarnation(), model.incarnation);
                            prop_assert_eq!(entry.floor(), model.floor());
                            prop_assert_eq!(entry.open(), model.runs().len());
                            prop_assert_eq!(entry.applied(), model.applied);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn many_streams_of_one_replica_apply_each_record_once() {
    let windows = Windows::new(0..500);
    let run = Run { replica: 1, incarnation: 1, push: 1, fragment: 0, count: 500, first_open: 1 };
    assert_eq!(windows.admit(&run), Verdict::New);
    let applied: u64 = std::thread::scope(|scope| {
        let stream = || {
            (0..500)
                .filter(|fragment| {
                    let entry = windows.entry(1).unwrap();
                    let mut entry = entry.lock().unwrap();
                    let is_new = entry.judge(1, 1, Some(*fragment)) == Judgement::New;
                    if is_new {
                        entry.complete(1, *fragment, u64::from(*fragment) + 1);
                    }
                    is_new
                })
                .count() as u64
        };
        let streams: Vec<_> = (0..3).map(|_| scope.spawn(stream)).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).sum()
    });
    assert_eq!(applied, 500);
    assert_eq!(windows.find(1).map(|e| (e.floor(), e.applied())), Some((1, 500)));
}
