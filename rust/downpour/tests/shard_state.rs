//! A shard's exported state: it goes on where it ended, in a shard of the same fragments or in
//! others, and no damaged, lying or foreign bytes are taken.

#![allow(clippy::cast_precision_loss, reason = "small integers")]

mod streams;

use std::collections::BTreeMap;
use std::ops::Range;

use downpour::dedupe::{Run, StateError, Verdict};
use downpour::kernel::DType;
use downpour::optimizer::Optimizer;
use downpour::shard::{Answer, ImportError, Record, Refused, Shard};
use downpour::store::{Admission, Geometry, Store};
use proptest::prelude::*;
use streams::*;

const ACCEPT: Decision = Decision::Accept(1.0);

#[test]
fn an_exported_state_goes_on_and_knows_the_duplicates() {
    let (old, new) = (shard(), shard());
    feed(&mut inlet(), &old, &push(1, &gradient()), &[usize::MAX], ACCEPT);
    new.store().load_plane(0, 0, &parameters(&old)).unwrap();
    new.import_state(&[&old.export_state()]).unwrap();
    assert_eq!(state(&new), state(&old));
    let again = [push(1, &gradient()), push(2, &gradient())].concat();
    for shard in [&old, &new] {
        let (events, error) = feed(&mut inlet(), shard, &again, &[usize::MAX], ACCEPT);
        let applied: Vec<_> = settled(&events).iter().map(|s| s.applied).collect();
        assert_eq!((applied, error), (vec![0, 0, 3, 1], None));
    }
    assert_eq!(state(&new), state(&old));
}

#[test]
fn damaged_states_are_refused_and_change_nothing() {
    let old = shard();
    feed(&mut inlet(), &old, &push(1, &gradient()), &[usize::MAX], ACCEPT);
    let bytes = old.export_state();
    let new = shard();
    let before = state(&new);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(new.import_state(&[&damaged]).is_err(), "byte {at} went unnoticed");
        assert!(new.import_state(&[&bytes[..at]]).is_err(), "cut at {at} went unnoticed");
    }
    assert!(new.import_state(&[&[&bytes[..], &[0]].concat()]).is_err());
    assert_eq!(state(&new), before);
    let run = Run { replica: 1, incarnation: 1, push: 1, fragment: FIRST, count: 1, first_open: 1 };
    assert_eq!(new.admit(&run), Verdict::New);
    new.import_state(&[&bytes]).unwrap();
    assert!(old.import_state(&[&bytes]).is_err(), "the old one has applied records");
}

#[test]
fn a_lying_state_is_refused_although_its_checksum_is_right() {
    let old = shard();
    let poisoned: Vec<f32> =
        gradient().iter().enumerate().map(|(i, g)| if i == 40 { f32::NAN } else { *g }).collect();
    // Push 1 is done; of push 2 the second of four fragments is not.
    let stream = [push(1, &gradient()), push(2, &poisoned)].concat();
    feed(&mut inlet(), &old, &stream, &[usize::MAX], ACCEPT);
    let bytes = old.export_state();
    let new = shard();
    let body = bytes.len() - 4;
    let retired = 48 + 24 * FRAGMENTS;
    let entry = retired + 16;
    // Version, reserved, geometry, LSN, counts, a fragment's version, its LSN, who is retired, the
    // replica's fields, and of its window floor, count, first and last push, bits.
    let fields = [4, 5, 8, 16, 24, 28, 40, 44, 48, 56, retired, retired + 4];
    let of_entry = [8, 12, 16, 24, 40, 48, 56, 64, 72].map(|at| entry + at);
    // No push above 1 touches the floor whole, or was announced; no bitmap is empty.
    let small = [(entry + 32, 2), (entry + 72, 2), (entry + 72, 0xD), (32, 1 << 2)];
    let large = fields.into_iter().chain(of_entry).map(|at| (at, 0x80));
    for (at, change) in large.chain(small) {
        let mut lie = bytes.clone();
        lie[at] ^= change;
        let crc = downpour::checksum::crc32c(&lie[..body]);
        lie[body..].copy_from_slice(&crc.to_le_bytes());
        assert!(new.import_state(&[&lie]).is_err(), "byte {at} went unnoticed");
    }
    assert_eq!(new.find(1), None);
    new.import_state(&[&bytes]).unwrap();
}

/// Fragments and elements of a layout whose last fragment is shorter.
const LAYOUT_FRAGMENTS: u32 = 7;
const LAYOUT_LEN: usize = 6 * FRAGMENT_LEN + 9;

/// A shard of some fragments of that layout.
fn part(fragments: Range<u32>) -> Shard {
    let elements = elements(&fragments);
    let parts = [("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 1.0)]))];
    let geometry = Geometry { len: elements.len(), stripe_len: 16, fragment_len: FRAGMENT_LEN };
    let store = Store::new(geometry, Optimizer::compile(&parts, None).unwrap()).unwrap();
    Shard::new(store, fragments.start).unwrap()
}

fn elements(fragments: &Range<u32>) -> Range<usize> {
    let [start, stop] = [fragments.start, fragments.end].map(|f| f as usize * FRAGMENT_LEN);
    start..stop.min(LAYOUT_LEN)
}

/// The layout in shards, cut before some fragments.
fn cut_at(cuts: &[u32]) -> Vec<Shard> {
    let mut bounds: Vec<_> = cuts.iter().copied().chain([0, LAYOUT_FRAGMENTS]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| part(pair[0]..pair[1])).collect()
}

/// The parameters of all shards, one after the other.
fn whole(shards: &[Shard]) -> Vec<f32> {
    let mut values = vec![0.0; LAYOUT_LEN];
    for shard in shards {
        let target = &mut values[elements(&shard.fragments())];
        shard.store().read_plane(0, 0, target).unwrap();
    }
    values
}

/// The same parameters and past in other shards.
fn cut_anew(shards: &[Shard], cuts: &[u32]) -> Vec<Shard> {
    let values = whole(shards);
    let states: Vec<_> = shards.iter().map(Shard::export_state).collect();
    let states: Vec<_> = states.iter().map(|bytes| &bytes[..]).collect();
    let new = cut_at(cuts);
    for shard in &new {
        let part = &values[elements(&shard.fragments())];
        shard.store().load_plane(0, 0, part).unwrap();
        shard.import_state(&states).unwrap();
        let versions = (0..shard.store().fragments()).map(|place| shard.store().version(place));
        assert_eq!(versions.sum::<u64>(), shard.store().lsn());
        let applied: u64 = (1..4).filter_map(|id| shard.find(id)).map(|e| e.applied()).sum();
        assert_eq!(applied + shard.applied_of_nobody(), shard.store().lsn());
    }
    new
}

/// Admit and settle one record, at the shard that has its fragment.
fn settle(shards: &[Shard], replica: u32, push: u64, fragment: u32) -> Result<Answer, Refused> {
    let shard = shards.iter().find(|shard| shard.place(fragment).is_some()).unwrap();
    let len = shard.fragment_len(fragment).unwrap();
    let run = Run { replica, incarnation: 1, push, fragment, count: 1, first_open: 1 };
    let verdict = shard.admit(&run);
    assert!(matches!(verdict, Verdict::New | Verdict::Done), "{verdict:?}");
    shard.settle(&Record {
        again: false,
        replica,
        incarnation: 1,
        push,
        fragment,
        base_version: 0,
        dtype: DType::F32 as u8,
        codec: 0,
        payload: &bytes_of(&vec![-1.0; len]),
        admission: Admission::default(),
    })
}

proptest! {
    /// Whatever was applied before the shards were cut anew is a duplicate afterwards, and nothing
    /// else is: however often, and wherever the cuts are.
    #[test]
    fn each_record_is_applied_once_however_the_shards_are_cut(
        records in prop::collection::vec((1..4u32, 1..9u64, 0..LAYOUT_FRAGMENTS), 1..60),
        cuts in prop::collection::vec(prop::collection::vec(1..LAYOUT_FRAGMENTS, 0..4), 1..5),
    ) {
        let mut shards = cut_at(&[]);
        let mut expected = vec![0.0; LAYOUT_LEN];
        let mut seen = std::collections::HashSet::new();
        for (i, record) in records.iter().chain(&records).enumerate() {
            let (replica, push, fragment) = *record;
            let is_new = seen.insert(*record);
            let answer = settle(&shards, replica, push, fragment).unwrap();
            prop_assert_eq!(matches!(answer, Answer::Applied { .. }), is_new);
            if is_new {
                expected[elements(&(fragment..fragment + 1))].iter_mut().for_each(|e| *e += 1.0);
            }
            if i % 11 == 10 {
                shards = cut_anew(&shards, &cuts[i % cuts.len()]);
            }
            prop_assert_eq!(whole(&shards), &expected[..]);
        }
    }
}

#[test]
fn a_shard_of_other_fragments_begins_to_count_where_all_of_them_are_new() {
    let shards = cut_at(&[3]);
    for fragment in [0, 0, 4] {
        settle(&shards, 1, u64::from(fragment) + shards[0].store().lsn() + 1, fragment).unwrap();
    }
    let [one]: [Shard; 1] = cut_anew(&shards, &[]).try_into().unwrap();
    assert_eq!(one.store().lsn(), 3);
    let lsns: Vec<_> = (0..7).map(|place| one.store().fragment_lsn(place)).collect();
    assert_eq!(lsns, [3, 0, 0, 0, 3, 0, 0]);
    // The same fragments again: as they were.
    let same = part(0..3);
    let states = [shards[0].export_state(), shards[1].export_state()];
    same.import_state(&[&states[0], &states[1]]).unwrap();
    assert_eq!(same.export_state(), states[0]);
}

#[test]
fn states_must_have_each_fragment_once_and_of_the_same_layout() {
    let [one, other, whole] =
        [part(0..3), part(3..7), part(0..7)].map(|shard| shard.export_state());
    let refused = |states: &[&[u8]]| match part(0..7).import_state(states) {
        Err(ImportError::State(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[]), StateError::Count { fragment: 0, count: 0 });
    assert_eq!(refused(&[&one]), StateError::Count { fragment: 3, count: 0 });
    assert_eq!(refused(&[&other, &whole, &one]), StateError::Count { fragment: 0, count: 2 });
    // Fragment 3 has all its elements where it is not the last.
    let expected = StateError::Fragment { fragment: 6, found: 32, expected: 9 };
    let longer = Geometry { len: 4 * FRAGMENT_LEN, stripe_len: 16, fragment_len: FRAGMENT_LEN };
    let parts = [("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 1.0)]))];
    let store = Store::new(longer, Optimizer::compile(&parts, None).unwrap()).unwrap();
    let longer = Shard::new(store, 3).unwrap().export_state();
    assert_eq!(refused(&[&one, &longer]), expected);
    let foreign = shard().export_state();
    assert_eq!(refused(&[&foreign]), StateError::Count { fragment: 0, count: 0 });
    part(0..7).import_state(&[&other, &one]).unwrap();
}
