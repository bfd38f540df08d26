//! Records that say "again": what they stand for, that they count once, and where there is nothing.

#![cfg(not(loom))]
#![allow(clippy::float_cmp, reason = "small whole numbers")]

use std::collections::BTreeMap;

use downpour::dedupe::Run;
use downpour::frame::Code;
use downpour::kernel::DType;
use downpour::optimizer::Optimizer;
use downpour::shard::{Answer, Record, Refused, Shard};
use downpour::store::{Admission, ENTRY_SIZE, Geometry, Recording, Store};

const FIRST: u32 = 5;
const LEN: usize = 48;
const FRAGMENT_LEN: usize = 32;
const ROOM: usize = 1 << 20;

fn shard(journal: Option<&Recording>) -> Shard {
    let parts = [("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 1.0)]))];
    let geometry = Geometry { len: LEN, stripe_len: 16, fragment_len: FRAGMENT_LEN };
    let store = Store::new(geometry, Optimizer::compile(&parts, None).unwrap()).unwrap();
    let store = match journal {
        Some(journal) => store.journaled(Box::new(journal.clone()), FIRST),
        None => store,
    };
    let shard = Shard::new(store, FIRST).unwrap();
    shard.keep_gradients(ROOM);
    shard
}

struct Life<'a> {
    shard: &'a Shard,
    replica: u32,
    incarnation: u32,
}

impl Life<'_> {
    fn settle(
        &self,
        push: u64,
        fragment: u32,
        value: Option<f32>,
        base_version: u64,
    ) -> Result<Answer, Refused> {
        let Self { shard, replica, incarnation } = *self;
        let _ = shard.admit(&Run { replica, incarnation, push, fragment, count: 1, first_open: 1 });
        let len = shard.fragment_len(fragment).unwrap();
        let values = vec![value.unwrap_or_default(); len];
        let payload = if value.is_some() { bytemuck::cast_slice(&values) } else { &[] };
        shard.settle(&Record {
            replica,
            incarnation,
            push,
            fragment,
            base_version,
            dtype: DType::F32 as u8,
            codec: 0,
            payload,
            again: value.is_none(),
            admission: Admission::default(),
        })
    }

    fn again(&self, push: u64, fragment: u32) -> Result<Answer, Refused> {
        self.settle(push, fragment, None, 1 << 40)
    }
}

fn values(shard: &Shard) -> Vec<f32> {
    let mut values = vec![0.0; LEN];
    shard.store().read_plane(0, 0, &mut values).unwrap();
    values
}

fn nothing_kept(answer: &Result<Answer, Refused>) -> bool {
    matches!(answer, Err(Refused { code: Code::NothingKept, .. }))
}

#[test]
fn again_is_the_last_gradient_of_the_same_life_and_fragment() {
    let shard = shard(None);
    let (one, two) = (
        Life { shard: &shard, replica: 1, incarnation: 1 },
        Life { shard: &shard, replica: 2, incarnation: 1 },
    );
    assert!(nothing_kept(&one.again(1, FIRST)), "the first push");
    one.settle(1, FIRST, Some(-1.0), 0).unwrap();
    one.settle(1, FIRST + 1, Some(-10.0), 0).unwrap();
    assert!(nothing_kept(&two.again(1, FIRST)), "another's");
    two.settle(1, FIRST, Some(-100.0), 0).unwrap();
    one.again(2, FIRST).unwrap();
    one.again(2, FIRST + 1).unwrap();
    two.again(2, FIRST).unwrap();
    assert_eq!((values(&shard)[0], values(&shard)[LEN - 1]), (202.0, 20.0));
    one.settle(3, FIRST, Some(-2.0), 0).unwrap();
    one.again(4, FIRST).unwrap();
    one.again(5, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 208.0);
    // Another life begins with nothing, and ends what the older one had.
    let newer = Life { incarnation: 2, ..one };
    assert!(nothing_kept(&newer.again(1, FIRST)));
    newer.settle(1, FIRST, Some(-1000.0), 0).unwrap();
    assert!(nothing_kept(&newer.again(2, FIRST + 1)), "of the life before");
    newer.again(2, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 2208.0);
}

/// A push that was turned down at first may be taken behind a newer one.
#[test]
fn the_newest_push_is_the_last_whichever_came_last() {
    let shard = shard(None);
    let life = Life { shard: &shard, replica: 1, incarnation: 1 };
    life.settle(2, FIRST, Some(-10.0), 0).unwrap();
    life.settle(1, FIRST, Some(-1.0), 0).unwrap();
    life.again(3, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 21.0);
}

#[test]
fn it_counts_once_and_a_refused_one_may_come_whole_under_its_identity() {
    let shard = shard(None);
    let life = Life { shard: &shard, replica: 1, incarnation: 1 };
    assert!(nothing_kept(&life.again(1, FIRST)));
    life.settle(1, FIRST, Some(-1.0), 0).unwrap();
    for applied in [true, false, false] {
        let answer = life.again(2, FIRST).unwrap();
        assert_eq!(matches!(answer, Answer::Applied { .. }), applied);
    }
    // Nor is the whole one taken behind it.
    assert!(matches!(life.settle(2, FIRST, Some(-9.0), 0), Ok(Answer::Duplicate { .. })));
    life.again(3, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 3.0);
}

#[test]
fn what_was_refused_is_not_kept() {
    let shard = shard(None).with_norm_max(Some(100.0));
    shard.keep_gradients(ROOM);
    let life = Life { shard: &shard, replica: 1, incarnation: 1 };
    life.settle(1, FIRST, Some(-1.0), 0).unwrap();
    for poison in [f32::NAN, 1e9] {
        life.settle(2, FIRST, Some(poison), 0).unwrap_err();
    }
    life.again(3, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 2.0);
}

/// Its staleness is that of the gradient, whatever its own header says; and the journal has the
/// gradient, so that who replays it needs nothing else.
#[test]
fn it_is_as_stale_as_what_it_stands_for_and_journaled_as_that() {
    let journal = Recording::new(1 << 20);
    let shard = shard(Some(&journal));
    let life = Life { shard: &shard, replica: 7, incarnation: 3 };
    life.settle(1, FIRST, Some(-1.0), 0).unwrap();
    for (push, staleness) in [(2, 1), (3, 2), (4, 3)] {
        let answer = life.again(push, FIRST).unwrap();
        assert_eq!(answer, Answer::Applied { lsn: push, staleness });
    }
    let entries = journal.take();
    assert_eq!(entries.len(), 4);
    for (entry, push) in entries.iter().zip(1_u64..) {
        assert_eq!(entry[ENTRY_SIZE..], entries[0][ENTRY_SIZE..], "the gradient itself");
        assert_eq!(entry[24..32], push.to_le_bytes());
        assert_eq!(entry[32..40], 0_u64.to_le_bytes(), "its own base");
    }
}

#[test]
fn what_is_kept_is_bounded_counted_and_let_go() {
    let shard = shard(None);
    let room = LEN * 4 + FRAGMENT_LEN * 4;
    shard.keep_gradients(room);
    let lives = [1, 2].map(|replica| Life { shard: &shard, replica, incarnation: 1 });
    for life in &lives {
        life.settle(1, FIRST, Some(-1.0), 0).unwrap();
        life.settle(1, FIRST + 1, Some(-1.0), 0).unwrap();
    }
    assert_eq!(shard.kept_bytes(), room);
    assert!(nothing_kept(&lives[1].again(2, FIRST + 1)), "did not fit");
    lives[0].again(2, FIRST + 1).unwrap();
    lives[1].settle(3, FIRST, Some(-4.0), 0).unwrap(); // in the place of the one before
    lives[1].again(4, FIRST).unwrap();
    assert_eq!(values(&shard)[0], 10.0);
    // Who is gone for good is forgotten; then there is room.
    assert!(shard.retire(3, &[(2, 3)]));
    assert_eq!(shard.kept_bytes(), FRAGMENT_LEN * 4);
    lives[1].settle(5, FIRST + 1, Some(-1.0), 0).unwrap();
    lives[1].again(6, FIRST + 1).unwrap();
    shard.keep_gradients(0);
    assert_eq!(shard.kept_bytes(), 0);
    assert!(nothing_kept(&lives[1].again(7, FIRST)));
    lives[1].settle(7, FIRST, Some(-1.0), 0).unwrap();
    assert_eq!(shard.kept_bytes(), 0);
}

/// A process that takes the shard over knows who has had what applied, and no gradients.
#[test]
fn a_shard_that_was_moved_asks_for_the_whole() {
    let (old, new) = (shard(None), shard(None));
    let life = Life { shard: &old, replica: 1, incarnation: 1 };
    life.settle(1, FIRST, Some(-1.0), 0).unwrap();
    life.again(2, FIRST).unwrap();
    new.store().load_plane(0, 0, &values(&old)).unwrap();
    new.import_state(&[&old.export_state()]).unwrap();
    let life = Life { shard: &new, ..life };
    assert!(matches!(life.again(2, FIRST), Ok(Answer::Duplicate { .. })), "it was applied there");
    assert!(nothing_kept(&life.again(3, FIRST)));
    life.settle(3, FIRST, Some(-5.0), 2).unwrap();
    assert_eq!(values(&new)[0], 7.0);
}
