//! The ledger against a set that remembers everything, under random histories.

use std::collections::{HashMap, HashSet};

use downpour::dedupe::{Claim, Ledger, Run, Verdict, WINDOW};
use proptest::prelude::*;

/// One replica as the rules tell it, with nothing clever.
#[derive(Default, Clone)]
struct Model {
    incarnation: u32,
    known: bool,
    said: u64,
    announced: u64,
    done: HashSet<(u32, u64)>,
}

impl Model {
    fn floor(&self) -> u64 {
        let mut floor = self.said;
        while self.done.contains(&(self.incarnation, floor + 1)) {
            floor += 1;
        }
        floor
    }

    fn admit(&mut self, run: &Run) -> Verdict {
        if run.incarnation < self.incarnation {
            return Verdict::Fenced;
        }
        let is_new = run.incarnation > self.incarnation || !self.known;
        if run.first_incomplete.saturating_sub(1) > if is_new { 0 } else { self.heard() } {
            return Verdict::Unknown;
        }
        if is_new {
            self.start_over(run.incarnation, true);
        }
        self.said = self.floor().max(run.first_incomplete.saturating_sub(1));
        let floor = self.floor();
        let stop = run.first_seq.saturating_add(u64::from(run.count));
        if stop > floor + WINDOW {
            return Verdict::Window;
        }
        let seqs = run.first_seq..stop;
        if !seqs.is_empty() {
            self.announced = self.announced.max(stop - 1);
        }
        let is_done = |seq: &u64| *seq <= floor || self.done.contains(&(self.incarnation, *seq));
        match seqs.clone().filter(is_done).count() {
            0 => Verdict::New,
            done if done as u64 == u64::from(run.count) => Verdict::Done,
            _ => Verdict::Partly,
        }
    }

    /// The highest seq of this incarnation that was announced or applied.
    fn heard(&self) -> u64 {
        let mine = self.done.iter().filter(|(life, _)| *life == self.incarnation);
        mine.map(|(_, seq)| *seq).max().unwrap_or(0).max(self.announced)
    }

    fn start_over(&mut self, incarnation: u32, known: bool) {
        (self.incarnation, self.known, self.said, self.announced) = (incarnation, known, 0, 0);
    }

    fn fence(&mut self, incarnation: u32) {
        if incarnation > self.incarnation {
            self.start_over(incarnation, false);
        }
    }

    fn claim(&self, incarnation: u32, seq: u64) -> Claim {
        if incarnation < self.incarnation {
            Claim::Fenced
        } else if incarnation > self.incarnation || !self.known {
            Claim::Unknown
        } else if seq <= self.floor() || self.done.contains(&(incarnation, seq)) {
            Claim::Done
        } else if seq >= self.floor() + WINDOW {
            Claim::Window
        } else {
            Claim::New
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Admit(Run),
    Fence { replica: u32, incarnation: u32 },
    Record { replica: u32, incarnation: u32, seq: u64 },
    Reload,
}

/// Numbers at the end of the integers, where sums overflow.
fn far() -> impl Strategy<Value = u64> {
    prop_oneof![u64::MAX - 3..=u64::MAX, Just(1 << 62), Just(1 << 40), (1 << 31)..(1u64 << 33)]
}

fn act() -> impl Strategy<Value = Act> {
    // Small numbers meet often; around the window's edge they meet the edge.
    let seq = prop_oneof![4 => 1..12u64, 4 => 1018..1030u64, 4 => 1..3000u64, 1 => far()];
    let (replica, incarnation) = (1..3u32, 1..4u32);
    let incomplete = prop_oneof![8 => Just(1u64), 2 => 0..8u64, 2 => 1..2000u64, 1 => far()];
    let count = prop_oneof![8 => 0..6u32, 2 => 0..1100u32, 1 => Just(u32::MAX)];
    let run = (replica.clone(), incarnation.clone(), seq.clone(), count, incomplete);
    prop_oneof![
        4 => run.prop_map(|(replica, incarnation, first_seq, count, first_incomplete)| {
            Act::Admit(Run { replica, incarnation, first_seq, count, first_incomplete })
        }),
        1 => (replica.clone(), incarnation.clone())
            .prop_map(|(replica, incarnation)| Act::Fence { replica, incarnation }),
        8 => (replica, incarnation, seq)
            .prop_map(|(replica, incarnation, seq)| Act::Record { replica, incarnation, seq }),
        1 => Just(Act::Reload),
    ]
}

proptest! {
    #[test]
    fn the_ledger_answers_as_the_set(acts in prop::collection::vec(act(), 1..80)) {
        let mut ledger = Ledger::default();
        let mut models: HashMap<u32, Model> = HashMap::new();
        let mut lsn = 0;
        for act in acts {
            match act {
                Act::Admit(run) => {
                    let model = models.entry(run.replica).or_default();
                    prop_assert_eq!(ledger.admit(&run), model.admit(&run));
                }
                Act::Fence { replica, incarnation } => {
                    ledger.fence(replica, incarnation);
                    models.entry(replica).or_default().fence(incarnation);
                }
                Act::Record { replica, incarnation, seq } => {
                    let Some(entry) = ledger.entry(replica) else { continue };
                    let model = models.get_mut(&replica).expect("the ledger has an entry");
                    let mut entry = entry.lock().unwrap();
                    let claim = entry.claim(incarnation, seq);
                    prop_assert_eq!(claim, model.claim(incarnation, seq));
                    if claim == Claim::New {
                        lsn += 1;
                        entry.complete(seq, lsn);
                        model.done.insert((incarnation, seq));
                    }
                    prop_assert_eq!(entry.floor(), model.floor());
                    prop_assert_eq!(entry.applied(), model.done.len() as u64);
                }
                Act::Reload => {
                    let bytes = ledger.encode();
                    ledger = Ledger::decode(&bytes, 0, lsn).unwrap();
                    prop_assert_eq!(ledger.encode(), bytes);
                }
            }
        }
    }
}

#[test]
fn many_streams_of_one_replica_apply_each_record_once() {
    let ledger = Ledger::default();
    let run = Run { replica: 1, incarnation: 1, first_seq: 1, count: 500, first_incomplete: 1 };
    assert_eq!(ledger.admit(&run), Verdict::New);
    let applied: u64 = std::thread::scope(|scope| {
        let stream = || {
            (1..=500)
                .filter(|seq| {
                    let entry = ledger.entry(1).unwrap();
                    let mut entry = entry.lock().unwrap();
                    let is_new = entry.claim(1, *seq) == Claim::New;
                    if is_new {
                        entry.complete(*seq, *seq);
                    }
                    is_new
                })
                .count() as u64
        };
        let streams: Vec<_> = (0..3).map(|_| scope.spawn(stream)).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).sum()
    });
    assert_eq!(applied, 500);
    assert_eq!(ledger.find(1).map(|e| (e.floor(), e.applied())), Some((500, 500)));
}
